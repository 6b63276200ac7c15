"""Weights that a model has only as pickles → a directory of the same model with safetensors in their place.

A pickle may carry code. It is read by a process that can do nothing with it (unpickle.py), once: what comes of it is
kept by what the file is.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from time import monotonic, sleep
from typing import IO

from sie_triton.checkpoints.files import first_line, inside, read_fields
from sie_triton.checkpoints.modules import modules_of
from sie_triton.errors import REASONS, LoadError
from sie_triton.private import private_directory
from sie_triton.processes.child import how_it_ended
from sie_triton.weights.unpickle import REFUSED, time_limit

SINGLE, SHARDS, INDEX = "pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json"
SAFE_INDEX = "model.safetensors.index.json"
OPEN_CLIP = "open_clip_pytorch_model.bin"
SUFFIXES = (".bin", ".pt", ".pth")

# Another way to read a pickle makes other files of it.
VERSION = "1"

HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

# How often somebody who waits looks whether to go on.
LOOK_S = 0.2
GRACE_S = 10.0
MAX_SAID = 4096

# Of the environment, what Python and PyTorch need to be found.
KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG")

Tell = Callable[[str], None]


def pickled(names: Collection[str], modules: Sequence[str], patterns: Sequence[str] = ()) -> list[str]:
    """Those of the files `names` that hold weights which no safetensors beside them hold.

    `modules` are the directories of a model's modules, `patterns` those of further files that its family reads.

    >>> pickled({"pytorch_model.bin", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin"}, [".", "2_Dense"])
    ['pytorch_model.bin']
    """
    known = set(names)
    further = {name for name in known if name.endswith(SUFFIXES) and matches(name, patterns)}
    found = {name for module in modules for name in _of_module(known, module)}
    return sorted(found | {name for name in further if _safe_name(name) not in known})


def modules(directory: Path) -> list[str]:
    """The directories of its modules, of any route, relative to it; LoadError where it does not say."""
    paths = [path for route in ("document", "query") for _, path in modules_of(directory, route)]
    return [str(path.relative_to(directory)) for path in paths]


def listing(directory: Path) -> list[str]:
    """Its files, relative to it; hidden directories are left out."""
    found = []
    for root, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if not name.startswith(".")]
        relative = Path(root).relative_to(directory)
        found += [str(PurePosixPath(relative / name)) for name in files]
    return found


def without_pickles(directory: Path, wanted: Sequence[str], names: Sequence[str], cache: Path, tell: Tell) -> Path:
    """A directory below `cache` with the files of `directory` that match `wanted`, and safetensors in place of `names`.

    `tell` is called now and then meanwhile and may raise to stop it. LoadError says why a file cannot be converted.
    """
    try:
        home = private_directory(cache)
        content: dict[str, Path | str] = {
            name: directory / name for name in listing(directory) if matches(name, wanted) and name not in names
        }
        made = _converted([directory / name for name in names], private_directory(home / "tensors"), tell)
        content |= {_safe_name(name): path for name, path in zip(names, made, strict=True)}
        for module in {str(PurePosixPath(name).parent) for name in names}:
            if (index := directory / module / INDEX).exists() and not (directory / module / SINGLE).exists():
                content[str(PurePosixPath(module, SAFE_INDEX))] = _safe_index(index)
        return _tree(content, private_directory(home / "models"))
    except OSError as exc:
        raise LoadError(f"{cache}: converted weights cannot be kept there: {first_line(exc)}", "failed") from exc


def completed(content: Mapping[str, Path], cache: Path) -> Path:
    """A directory below `cache` of links to these files."""
    try:
        return _tree(content, private_directory(private_directory(cache) / "models"))
    except OSError as exc:
        raise LoadError(f"{cache}: the model's files cannot be kept there: {first_line(exc)}", "failed") from exc


def _of_module(names: Collection[str], module: str) -> list[str]:
    here = {PurePosixPath(name).name: name for name in names if str(PurePosixPath(name).parent) == module}
    if any(fnmatchcase(name, "model*.safetensors") for name in here):
        return []
    if SINGLE in here:
        return [here[SINGLE]]
    if OPEN_CLIP in here and _safe_name(OPEN_CLIP) not in here:
        return [here[OPEN_CLIP]]
    return [name for base, name in here.items() if INDEX in here and fnmatchcase(base, SHARDS)]


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _safe_name(name: str) -> str:
    """
    >>> _safe_name("0_Transformer/pytorch_model-00001-of-00002.bin"), _safe_name("sparse_linear.pt")
    ('0_Transformer/model-00001-of-00002.safetensors', 'sparse_linear.safetensors')
    """
    path = PurePosixPath(name).with_suffix(".safetensors")
    return str(path.with_name(path.name.replace("pytorch_model", "model", 1)))


def _safe_index(path: Path) -> str:
    """Which tensor is in which file."""
    index = read_fields(path).text_map("weight_map")
    for shard in set(index.values()):
        inside(path.parent, shard, f"{path}: weight_map")
    size = {"total_size": read_fields(path).fields("metadata").integer("total_size", 0, most=None)}
    return json.dumps({"metadata": size, "weight_map": {name: _safe_name(shard) for name, shard in index.items()}})


def _converted(paths: Sequence[Path], home: Path, tell: Tell) -> list[Path]:
    """The safetensors that each of `paths` was, or is now, converted to."""
    for path in paths:
        if not path.is_file():
            raise LoadError(f"{path.name} is missing in {path.parent}", "not found")
    origins = [_identity(path) for path in paths]
    targets = [home / f"{origin}-{state}.safetensors" for origin, state in origins]
    with ExitStack() as stack:
        for origin in sorted({origin for origin, _ in origins}):
            stack.enter_context(_locked(home / f"{origin}.lock", lambda: tell("another process converts the weights")))
        missing = {path: target for path, target in zip(paths, targets, strict=True) if not target.exists()}
        if missing:
            _convert(missing, lambda: tell(f"converting {len(missing)} pickled files to safetensors"))
            _remove_outdated(home, dict(origins))
    return targets


def _remove_outdated(home: Path, states: Mapping[str, str]) -> None:
    """What was made of files that have changed since."""
    for origin, state in states.items():
        for path in home.glob(f"{origin}-*"):
            if path.name != f"{origin}-{state}.safetensors":
                path.unlink()


def _identity(path: Path) -> tuple[str, str]:
    """Where a file is from, and which state of it this is: in the hub's cache, the hash that its blob is named by."""
    file = path.stat()
    link = Path(os.readlink(path)) if path.is_symlink() else path
    if link.parent.name == "blobs" and HASH.fullmatch(link.name):
        return link.name, f"{file.st_size}-{VERSION}"
    origin = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    return origin, f"{file.st_size}-{file.st_mtime_ns}-{VERSION}"


@contextmanager
def _locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting()
                sleep(LOOK_S)
        yield


def _convert(targets: Mapping[Path, Path], waiting: Callable[[], None]) -> None:
    """Each file to another one, all or none."""
    with ExitStack() as stack:
        made = {path: stack.enter_context(_fresh(target.parent)) for path, target in targets.items()}
        _unpickle({path: file.fileno() for path, file in made.items()}, waiting)
        for path, file in made.items():
            _check(Path(file.name), path)
            os.fsync(file.fileno())
        for path, file in made.items():
            Path(file.name).rename(targets[path])


@contextmanager
def _fresh(directory: Path) -> Iterator[IO[bytes]]:
    """A file there, which is removed unless it has got another name."""
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".", delete=False) as file:
        try:
            yield file
        finally:
            Path(file.name).unlink(missing_ok=True)


def _unpickle(files: Mapping[Path, int], waiting: Callable[[], None]) -> None:
    """Into these open files; LoadError says why not."""
    arguments = [str(each) for path, descriptor in files.items() for each in (path.absolute(), descriptor)]
    process = subprocess.Popen(
        [sys.executable, "-m", "sie_triton.weights.unpickle", *arguments],
        env={name: os.environ[name] for name in KEPT if name in os.environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=list(files.values()),
    )
    with process:
        try:
            ended = monotonic() + time_limit(sum(path.stat().st_size for path in files)) + GRACE_S
            while (status := _status(process)) is None and monotonic() < ended:
                waiting()
        finally:
            process.kill()
        assert process.stdout is not None
        said = process.stdout.read(MAX_SAID)
    if status != 0:
        raise _refused(status, said, ", ".join(map(str, files)))


def _status(process: subprocess.Popen[bytes]) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(LOOK_S)
    return None


def _refused(status: int | None, said: bytes, files: str) -> LoadError:
    """What the process said, which is believed no more than the files."""
    with suppress(ValueError, KeyError, TypeError):
        given = json.loads(said)
        if status == REFUSED and given["reason"] in REASONS:
            return LoadError(first_line(ValueError(given["message"])), given["reason"])
    how = "took too long" if status in (None, -signal.SIGALRM) else f"ended {how_it_ended(status)}"
    reason = "out of memory" if status == -signal.SIGKILL else "corrupt"
    return LoadError(f"{files}: cannot be converted to safetensors: the process that read them {how}", reason)


def _check(made: Path, path: Path) -> None:
    """It is what it should be, whatever wrote it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(made, "numpy") as tensors:
            tensors.keys()
    except (OSError, SafetensorError) as exc:
        raise LoadError(f"{path}: what was made of it is no safetensors: {first_line(exc)}", "corrupt") from exc


def _tree(content: Mapping[str, Path | str], home: Path) -> Path:
    """A directory of links, and texts, named by what it holds: it never changes."""
    key = hashlib.sha256(repr(sorted(content.items(), key=lambda item: item[0])).encode()).hexdigest()[:32]
    target = home / key
    if target.is_dir():
        return target
    fresh = Path(tempfile.mkdtemp(dir=home, prefix="."))
    for name, source in content.items():
        (fresh / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(source, str):
            (fresh / name).write_text(source)
        else:
            (fresh / name).symlink_to(source.absolute())
    try:
        fresh.rename(target)
    except OSError:  # another process was first
        shutil.rmtree(fresh)
        if not target.is_dir():
            raise
    return target
