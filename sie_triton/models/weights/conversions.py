"""Pickles that were converted: their sizes, last uses, and removal.

`converted/models/KEY` has links to the files of a model, `converted/tensors` the converted weights among them.
"""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sie_triton.models.weights.uses import if_unused, last_use, record_beside

MODELS, TENSORS, LOCK = "models", "tensors", "lock"


@dataclass(frozen=True, slots=True)
class Conversion:
    """A model in `tree`, with its converted weights; `last_use` is in seconds since 1970."""

    tree: Path
    size: int
    last_use: float

    @property
    def name(self) -> str:
        return f"converted weights {self.tree.name}"

    def remove(self) -> bool:
        """Remove the model, and the weights that no other model has; return False if a process uses or makes one."""
        home, record = self.tree.parents[1], record_beside(self.tree)
        with if_unused(home / LOCK) as none_is_made, if_unused(record) as unused:
            if not (none_is_made and unused):
                return False
            tensors = _tensors(self.tree)
            shutil.rmtree(self.tree, ignore_errors=True)
            for path in tensors - {path for other in _trees(home) for path in _tensors(other)}:
                path.unlink(missing_ok=True)
            record.unlink(missing_ok=True)
        return True


def conversions(home: Path) -> Iterator[Conversion]:
    """Yield the models in `home`, the directory `converted`; without a record, the last use is when it was made."""
    for tree in _trees(home):
        with suppress(OSError):
            used = last_use(record_beside(tree))
            size = sum(path.stat().st_size for path in _tensors(tree) if path.exists())
            yield Conversion(tree, size, tree.stat().st_mtime if used is None else used)


def _trees(home: Path) -> list[Path]:
    return [path for path in sorted((home / MODELS).glob("[!.]*/")) if not path.is_symlink()]


def _tensors(tree: Path) -> set[Path]:
    """Return the converted files that a model links to, whether they still exist or not."""
    tensors = (tree.parents[1] / TENSORS).resolve()
    return {target for path in tree.rglob("*") if path.is_symlink() and (target := path.readlink()).parent == tensors}
