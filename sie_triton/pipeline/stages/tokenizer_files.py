"""A checkpoint's directory → a directory of links to its files, in which each tokenizer is as transformers makes it.

A worker process makes a tokenizer once for each state of its files and of the library; the result stays on the disk.
Preprocess and the adapters read it without importing the library.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from sie_triton.checkpoints.files import Fields, first_line, has_file, read_bytes, read_fields
from sie_triton.checkpoints.gliner import ENCODER, LABELS_TOKENIZER
from sie_triton.checkpoints.modules import modules_of, tokenizer_kwargs
from sie_triton.checkpoints.special_tokens import CONFIG, MAX_BYTES, REFUSED, TOKENIZER, VOCABULARIES, has_vocabulary
from sie_triton.checkpoints.tokenizer_steps import check_tokenizer
from sie_triton.contract.spec import ModelSpec
from sie_triton.errors import LoadError
from sie_triton.models.families import family
from sie_triton.models.weights import cache_of
from sie_triton.models.weights.trees import completed, locked
from sie_triton.pipeline.worker.handle import write_tokenizer
from sie_triton.pipeline.worker.messages import WriteTokenizer
from sie_triton.system.host.files import FULL
from sie_triton.system.host.private import private_directory, temporary_directory
from sie_triton.system.processes.fork_server import fork_server_directory

log = logging.getLogger(__name__)

# Files that the library's tokenizers read.
READ = (*VOCABULARIES, CONFIG, "special_tokens_map.json", "added_tokens.json", "config.json", "merges.txt")

# Directories with tokenizers besides those of modules: GLiNER's encoder and labels.
PARTS = (ENCODER, LABELS_TOKENIZER)

# Classes whose fast tokenizers obeyed add_bos_token and add_eos_token in transformers 4, by default true and false.
AROUND = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer")

# Packages whose releases make other tokenizers.
PACKAGES = ("sie-triton", "transformers", "tokenizers", "sentencepiece", "tiktoken")

# Number of the form of what a worker writes and refuses: tokenizers of another form are made again.
FORM = 2

# Files of a model, which get a link each. A directory of a trainer has a hundred.
MAX_FILES = 20_000

ReportProgress = Callable[[str], None]
Write = Callable[[WriteTokenizer], None]


def with_tokenizers(spec: ModelSpec, directory: Path, status_dir: Path, report_progress: ReportProgress) -> Path:
    """Return a directory with the files in `directory` and the tokenizers of transformers.

    Return `directory` itself if it holds no tokenizer, or if the model's library tokenizes without transformers.
    `report_progress` is called while a tokenizer is made, and may raise to stop. A tokenizer that transformers refuses
    fails the model when it is opened. Raise LoadError if a tokenizer cannot be read or stored.
    """
    if family(spec.family).keeps_tokenizer(directory):
        for home in _homes(directory):
            check_tokenizer(read_fields(home / TOKENIZER, required=False, most=MAX_BYTES))
        return directory
    waiting = partial(report_progress, "making the tokenizer")
    write = partial(write_tokenizer, fork_server=fork_server_directory(status_dir, ""), waiting=waiting)
    append_eos = bool(spec.options.get("append_eos"))
    try:
        return overlay(directory, _writable(cache_of(spec.runtime)), write, waiting, append_eos=append_eos)
    except OSError as exc:
        reason = "disk full" if exc.errno in FULL else "failed"
        raise LoadError(f"{directory}: its tokenizer cannot be read or stored: {first_line(exc)}", reason) from exc


@contextmanager
def naming(origin: Path, directory: Path) -> Iterator[None]:
    """Name `origin` in the messages of load errors, and not `directory`, which holds links to its files."""
    try:
        yield
    except LoadError as exc:
        if str(directory) not in str(exc) or directory == origin:
            raise
        raise LoadError(str(exc).replace(str(directory), str(origin)), exc.reason) from exc


def overlay(
    directory: Path,
    cache: Path,
    write: Write,
    waiting: Callable[[], object] = lambda: None,
    *,
    append_eos: bool = False,
) -> Path:
    """Return a directory below `cache` with links to all files in `directory`, and the tokenizers that `write` makes.

    `waiting` is called while another process makes the same tokenizer.
    """
    homes = _homes(directory)
    if not homes:
        return directory
    content: dict[str, Path | str] = dict(islice(_entries(directory, directory, homes), MAX_FILES + 1))
    if len(content) > MAX_FILES:
        raise LoadError(f"{directory}: may have at most {MAX_FILES} files", "unsupported")
    content.pop(REFUSED, None)
    for home in homes:
        files = {name: home / name for name in READ if has_file(home / name)}
        made = _replaced(directory, home, files, cache, write, waiting, append_eos)
        content |= {str(home.relative_to(directory) / name): new for name, new in made.items()}
    return completed(content, cache / "completed")


def _writable(cache: Path) -> Path:
    """Return `cache`, or a temporary directory of this user if nothing can be stored there safely."""
    try:
        return private_directory(cache)
    except OSError:
        return private_directory(temporary_directory() / "cache")


def _homes(directory: Path) -> list[Path]:
    """Return the directories that hold the vocabulary of one of the model's tokenizers."""
    homes = {directory, *(directory / name for name in PARTS)}
    with suppress(LoadError):  # of modules that the family refuses, or reads by itself
        homes |= {path for route in ("query", "document") for _, path in modules_of(directory, route)}
    return sorted(filter(has_vocabulary, homes))


def _entries(root: Path, directory: Path, homes: Collection[Path]) -> Iterator[tuple[str, Path]]:
    """Yield name and path of each file below `directory`, and of each link to a directory that holds no tokenizer."""
    for path in directory.iterdir():
        if not path.is_dir() or (path.is_symlink() and not any(path in (home, *home.parents) for home in homes)):
            yield str(path.relative_to(root)), path
        elif not path.name.startswith("."):
            yield from _entries(root, path, homes)


def _replaced(
    directory: Path,
    home: Path,
    files: Mapping[str, Path],
    cache: Path,
    write: Write,
    waiting: Callable[[], object],
    append_eos: bool,
) -> Mapping[str, Path | str]:
    """Return the files that replace those of a tokenizer: the library's, or why there are none."""
    try:
        settings = read_fields(home / CONFIG, required=False)
        arguments = tokenizer_kwargs(directory, home)
        around = _around(Fields(settings.where, {**settings.values, **arguments}))
        order = WriteTokenizer(files, Path(), arguments, around, append_eos)
        made = _made(order, private_directory(cache / "tokenizers"), write, waiting)
        own = json.loads((made / CONFIG).read_text())
        return {TOKENIZER: made / TOKENIZER, CONFIG: json.dumps({**settings.values, **own})}
    except LoadError as exc:
        return {REFUSED: json.dumps({"message": str(exc), "reason": exc.reason})}


def _around(settings: Fields) -> Mapping[str, bool]:
    """Return which special tokens the model's authors want around texts, if transformers 5 ignores their word.

    transformers 4 obeyed these keys in some classes; authors also wrote their own classes for them. transformers 5
    ignores them beside tokenizer.json.
    """
    obeys = settings.text("tokenizer_class", "").removesuffix("Fast") in AROUND
    if not (settings.flag("add_eos_token", False) and (obeys or settings.has("auto_map"))):
        return {}
    log.info("%s: add_eos_token: texts end with the end token, as the model's files say", settings.where)
    return {"add_bos_token": settings.flag("add_bos_token", obeys), "add_eos_token": True}


def _made(order: WriteTokenizer, cache: Path, write: Write, waiting: Callable[[], object]) -> Path:
    """Return the directory of the tokenizer that `write` makes of these files, now or earlier."""
    # Read once: a file that changes meanwhile must not be kept under the hash of its former content.
    content = {name: read_bytes(path, MAX_BYTES) for name, path in sorted(order.files.items())}
    if (total := sum(map(len, content.values()))) > MAX_BYTES:
        names = ", ".join(content)
        raise LoadError(f"{names}: may together have at most {MAX_BYTES} bytes (given {total})", "unsupported")
    target = cache / _key(order, content)
    with locked(cache / f"{target.name}.lock", waiting), TemporaryDirectory(dir=cache, prefix=".") as fresh:
        if target.is_dir():
            return target
        given, made = Path(fresh) / "given", Path(fresh) / "made"
        given.mkdir()
        made.mkdir()
        for name, each in content.items():
            (given / name).write_bytes(each)
        write(replace(order, files={name: given / name for name in content}, target=made))
        for name in (TOKENIZER, CONFIG):
            with (made / name).open("rb") as file:
                os.fsync(file.fileno())
        made.rename(target)
    return target


def _key(order: WriteTokenizer, content: Mapping[str, bytes]) -> str:
    """Return a hash of everything that the tokenizer depends on."""
    facts = [f"{name} {hashlib.sha256(each).hexdigest()}" for name, each in content.items()]
    facts += [
        json.dumps([FORM, order.arguments, order.around, order.append_eos], sort_keys=True),
        *map(_version, PACKAGES),
    ]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""
