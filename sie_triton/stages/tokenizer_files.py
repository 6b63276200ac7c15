"""A checkpoint's directory → a directory of links to its files, in which each tokenizer is as transformers makes it.

A worker process makes a tokenizer once for each state of its files and of the library; the result stays on the disk.
Preprocess and the adapters read it without importing the library.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from sie_triton.checkpoints.files import Fields, has_file, read_fields
from sie_triton.checkpoints.modules import tokenizer_kwargs
from sie_triton.checkpoints.special_tokens import CONFIG, REFUSED, TOKENIZER, VOCABULARIES
from sie_triton.errors import LoadError
from sie_triton.families import family
from sie_triton.host.private import private_directory
from sie_triton.processes.fork_server import fork_server_directory
from sie_triton.spec import ModelSpec
from sie_triton.weights import cache_of
from sie_triton.weights.listing import listing
from sie_triton.weights.pickles import completed
from sie_triton.worker.messages import WriteTokenizer
from sie_triton.worker.process import write_tokenizer

log = logging.getLogger(__name__)

# Files that the library's tokenizers read beside a vocabulary.
READ = (CONFIG, "special_tokens_map.json", "added_tokens.json", "config.json", "merges.txt")

# Packages whose releases make other tokenizers.
PACKAGES = ("sie-triton", "transformers", "tokenizers", "sentencepiece", "tiktoken")

# A larger file is not read. The largest tokenizers have 40 MB.
MAX_BYTES = 256 << 20

# More directories with a tokenizer than any model has.
MAX_TOKENIZERS = 10

ReportProgress = Callable[[str], None]
Write = Callable[[WriteTokenizer], None]


def with_tokenizers(spec: ModelSpec, directory: Path, status_dir: Path, report_progress: ReportProgress) -> Path:
    """Return a directory with the files in `directory` and the tokenizers of its library; itself if it has none.

    `report_progress` is called while a tokenizer is made, and may raise to stop. A tokenizer that the library refuses
    fails the model when it is opened. Raise LoadError if a tokenizer cannot be stored.
    """
    if family(spec.family).keeps_tokenizer(directory):
        return directory
    cache, fork_server = cache_of(spec.runtime), fork_server_directory(status_dir, "")
    waiting = partial(report_progress, "making the tokenizer")
    write = partial(write_tokenizer, fork_server=fork_server, waiting=waiting)
    return overlaid(directory, cache, write, append_eos=bool(spec.options.get("append_eos")))


@contextmanager
def naming(origin: Path, directory: Path) -> Iterator[None]:
    """Name `origin` in the messages of load errors, and not `directory`, which holds links to its files."""
    try:
        yield
    except LoadError as exc:
        if str(directory) not in str(exc) or directory == origin:
            raise
        raise LoadError(str(exc).replace(str(directory), str(origin)), exc.reason) from exc


def overlaid(directory: Path, cache: Path, write: Write, *, append_eos: bool = False) -> Path:
    """Return a directory below `cache` with links to all files in `directory`, and the tokenizers that `write` made."""
    names = listing(directory)
    changed: dict[str, Path | str] = {}
    for place in _places(names):
        here = {PurePosixPath(name).name: directory / name for name in names if PurePosixPath(name).parent == place}
        made = _tokenizer({name: path for name, path in here.items() if _is_read(name)}, cache, write, append_eos)
        changed |= {str(place / name): content for name, content in made.items()}
    if not changed:
        return directory
    return completed({name: directory / name for name in names} | changed, cache / "completed")


def _places(names: Sequence[str]) -> Iterator[PurePosixPath]:
    """Yield the directories that hold a vocabulary."""
    found = {PurePosixPath(name).parent for name in names if PurePosixPath(name).name in VOCABULARIES}
    if len(found) > MAX_TOKENIZERS:
        raise LoadError(f"{len(found)} directories hold a tokenizer; at most {MAX_TOKENIZERS} are read", "unsupported")
    yield from sorted(found)


def _is_read(name: str) -> bool:
    return name in READ or name in VOCABULARIES


def _tokenizer(files: Mapping[str, Path], cache: Path, write: Write, append_eos: bool) -> Mapping[str, Path | str]:
    """Return the files that replace those of a tokenizer: the library's, or why there are none."""
    try:
        place = next(iter(files.values())).parent
        settings = read_fields(place / CONFIG, required=False)
        arguments = tokenizer_kwargs(place)
        if ends_texts := _ends_texts(settings, arguments):
            log.info("%s: add_eos_token: texts end with the end token", place)
        order = WriteTokenizer(files, Path(), arguments, append_eos or ends_texts)
        made = _made(order, private_directory(cache / "tokenizers"), write)
        own = json.loads((made / CONFIG).read_text())
        return {TOKENIZER: made / TOKENIZER, CONFIG: json.dumps({**settings.values, **own})}
    except LoadError as exc:
        return {REFUSED: json.dumps({"message": str(exc), "reason": exc.reason})}


def _ends_texts(settings: Fields, arguments: Mapping[str, Any]) -> bool:
    """True if the model's authors want the end token at the end of texts.

    transformers 4 adds it; transformers 5 ignores the key of a model with tokenizer.json.
    """
    given = Fields(settings.where, {**settings.values, **arguments})
    return given.flag("add_eos_token", False) and given.has("eos_token")


def _made(order: WriteTokenizer, home: Path, write: Write) -> Path:
    """Return the directory of the tokenizer that `write` makes of these files, now or earlier."""
    for path in order.files.values():
        if path.stat().st_size > MAX_BYTES:
            raise LoadError(f"{path}: a tokenizer's file may have at most {MAX_BYTES} bytes", "unsupported")
    target = home / _key(order)
    if has_file(target):
        return target
    with TemporaryDirectory(dir=home, prefix=".") as fresh:
        made = Path(fresh) / "made"
        made.mkdir()
        write(WriteTokenizer(order.files, made, order.arguments, order.append_eos))
        try:
            made.rename(target)
        except OSError:  # another process was first
            if not has_file(target):
                raise
    return target


def _key(order: WriteTokenizer) -> str:
    """Return a hash of everything that the tokenizer depends on."""
    facts = [f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for name, path in sorted(order.files.items())]
    facts += [json.dumps([order.arguments, order.append_eos], sort_keys=True), *map(_version, PACKAGES)]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""
