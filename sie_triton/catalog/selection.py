"""The models of a server, whose files may change while it runs: one that is wrong never stops the others."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sie_triton.catalog.config import ModelConfig, triton_name
from sie_triton.catalog.load import load_file, starter_set
from sie_triton.catalog.select import select
from sie_triton.errors import CatalogError
from sie_triton.serving import is_model_file


@dataclass
class Selection:
    """`models` to serve; names of those that are `kept` as they are; `problems`, by the file that has them."""

    models: list[ModelConfig] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)


def first_selection(
    names: Sequence[str], models_dir: Path | None, added: Sequence[Path], *, allow_hub: bool
) -> Selection:
    """At the start. CatalogError for what is wrong with what was asked for; the files in `added` only have problems."""
    chosen = Selection()
    more = _read(added, chosen)
    known = {model.sie_id for model in more}
    rest = [name for name in names if name not in known]
    asked = select(rest, models_dir, allow_hub=allow_hub) if rest or not names else []
    chosen.models = _distinct([*asked, *more], chosen, {})
    return chosen


def selection(
    names: Sequence[str],
    own: Sequence[Path] | OSError | None,
    added: Sequence[Path],
    served: Mapping[str, str],
    removed: Container[str],
) -> Selection:
    """Later. `own` are the files of the user's directory, None where there is none; `served` says where each is from.

    A model whose file became wrong, or whose directory of files cannot be read, stays as it is, and so does one that
    was recognised in a directory.
    """
    chosen = Selection()
    if isinstance(own, OSError):
        chosen.problems[str(own.filename)] = f"{own.filename}: cannot be read ({own.strerror})"
        own = ()
    files, more = _read(own or (), chosen), _read(added, chosen)
    if names:
        known = {model.sie_id: model for model in [*starter_set(), *_distinct(files, chosen, served)]}
        files = [known[name] for name in names if name in known]
    elif own is None:
        files = starter_set()
    chosen.kept = {name for name, source in served.items() if name not in removed and _is_kept(source, chosen.problems)}
    asked = [model for model in files if model.sie_id not in removed]
    chosen.models = _distinct([*asked, *more], chosen, served)
    return chosen


def _is_kept(source: str, problems: Container[str]) -> bool:
    return not is_model_file(source) or source in problems or str(Path(source).parent) in problems


def _read(paths: Iterable[Path], chosen: Selection) -> list[ModelConfig]:
    models = []
    for path in paths:
        try:
            models.append(load_file(path))
        except CatalogError as exc:
            chosen.problems[str(path)] = str(exc)
    return models


def _distinct(models: Iterable[ModelConfig], chosen: Selection, served: Mapping[str, str]) -> list[ModelConfig]:
    """Of those that would have one name in Triton, the one that is served already, else the first."""
    taken = {triton_name(name): served[name] for name in chosen.kept}
    found = []
    for model in sorted(models, key=lambda model: served.get(model.sie_id) != model.source):
        name = triton_name(model.sie_id)
        if name not in taken:
            taken[name] = model.source
            found.append(model)
        elif taken[name] != model.source:
            chosen.problems[model.source] = collision(model, taken[name])
    return found


def collision(model: ModelConfig, other: str) -> str:
    return f"{model.source}: sie_id: {model.sie_id} is served from {other} already; give one of them another"
