"""Convert a model whose weights exist only as pickles into a directory of the same model with safetensors.

A pickle may contain code. A confined process (unpickle.py) reads it once; the result is cached under the identity of
the pickle file.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import IO

from sie_triton.checkpoints.files import first_line, inside, read_fields
from sie_triton.checkpoints.modules import modules_of
from sie_triton.errors import REASONS, LoadError
from sie_triton.models.weights.conversions import LOCK, MODELS, TENSORS
from sie_triton.models.weights.disk import DiskCache
from sie_triton.models.weights.limits import LIMITS, REFUSED
from sie_triton.models.weights.local_cache import listing
from sie_triton.models.weights.trees import locked, tree_of
from sie_triton.models.weights.uses import Uses, record_beside, shared
from sie_triton.system.host.private import private_directory
from sie_triton.system.processes.child import describe_exit
from sie_triton.system.processes.confined import start

SINGLE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
OPEN_CLIP = "open_clip_pytorch_model.bin"

# Part of the names of converted files; changes when the conversion changes.
VERSION = "1"

HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

ReportProgress = Callable[[str], None]


def pickled(names: Collection[str], modules: Sequence[str], patterns: Sequence[str] = ()) -> list[str]:
    """Return the pickles among the files `names` that have no safetensors next to them.

    `modules` are the directories of the model's modules, `patterns` match further files that its family reads.

    >>> pickled({"pytorch_model.bin", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin"}, [".", "2_Dense"])
    ['pytorch_model.bin']
    """
    known = set(names)
    further = {name for name in known if name.endswith((".bin", ".pt", ".pth")) and matches(name, patterns)}
    found = {name for module in modules for name in _of_module(known, module)}
    return sorted(found | {name for name in further if _safe_name(name) not in known})


def modules(directory: Path) -> list[str]:
    """Return the directories of the model's modules, of all routes, relative to `directory`.

    LoadError if the files there do not define them.
    """
    paths = [path for route in ("document", "query") for _, path in modules_of(directory, route)]
    return [str(path.relative_to(directory)) for path in paths]


def without_pickles(
    directory: Path,
    wanted: Sequence[str],
    names: Sequence[str],
    cache: Path,
    report_progress: ReportProgress,
    disk: DiskCache,
    uses: Uses,
) -> Path:
    """Return a directory below `cache` with the files of `directory` that match `wanted`, and `names` converted.

    `report_progress` is called periodically with a line of progress, and may raise to stop. LoadError says why a file
    cannot be converted. `disk` makes room for the conversions, and `uses` holds the result.
    """
    try:
        home = private_directory(cache)
        with shared(home / LOCK):
            tree = _without_pickles(directory, wanted, names, home, report_progress, disk)
            uses.hold(record_beside(tree))
        return tree
    except OSError as exc:
        raise LoadError(f"{cache}: cannot store converted weights: {first_line(exc)}", "failed") from exc


def _without_pickles(
    directory: Path,
    wanted: Sequence[str],
    names: Sequence[str],
    home: Path,
    report_progress: ReportProgress,
    disk: DiskCache,
) -> Path:
    content: dict[str, Path | str] = {
        name: directory / name for name in listing(directory) if matches(name, wanted) and name not in names
    }
    paths = [directory / name for name in names]
    made = _converted(paths, private_directory(home / TENSORS), report_progress, disk)
    content |= {_safe_name(name): path for name, path in zip(names, made, strict=True)}
    for module in {str(PurePosixPath(name).parent) for name in names}:
        if (index := directory / module / INDEX).exists() and not (directory / module / SINGLE).exists():
            content[str(PurePosixPath(module, "model.safetensors.index.json"))] = _safe_index(index)
    return tree_of(content, private_directory(home / MODELS))


def _of_module(names: Collection[str], module: str) -> list[str]:
    here = {PurePosixPath(name).name: name for name in names if str(PurePosixPath(name).parent) == module}
    if any(fnmatchcase(name, "model*.safetensors") for name in here):
        return []
    if SINGLE in here:
        return [here[SINGLE]]
    if OPEN_CLIP in here and _safe_name(OPEN_CLIP) not in here:
        return [here[OPEN_CLIP]]
    return [name for base, name in here.items() if INDEX in here and fnmatchcase(base, "pytorch_model-*-of-*.bin")]


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _safe_name(name: str) -> str:
    """Return the name of the safetensors file that a pickle is converted to.

    >>> _safe_name("0_Transformer/pytorch_model-00001-of-00002.bin"), _safe_name("sparse_linear.pt")
    ('0_Transformer/model-00001-of-00002.safetensors', 'sparse_linear.safetensors')
    """
    path = PurePosixPath(name).with_suffix(".safetensors")
    return str(path.with_name(path.name.replace("pytorch_model", "model", 1)))


def _safe_index(path: Path) -> str:
    """Return the shard index (which tensor is in which file), with the names of the converted files."""
    index = read_fields(path).text_map("weight_map")
    for shard in set(index.values()):
        inside(path.parent, shard, f"{path}: weight_map")
    size = {"total_size": read_fields(path).fields("metadata").integer("total_size", 0, most=None)}
    return json.dumps({"metadata": size, "weight_map": {name: _safe_name(shard) for name, shard in index.items()}})


def _converted(paths: Sequence[Path], home: Path, report_progress: ReportProgress, disk: DiskCache) -> list[Path]:
    """Convert the files that are not converted yet; return the safetensors of each of `paths`."""
    for path in paths:
        if not path.is_file():
            raise LoadError(f"{path.name} is missing in {path.parent}", "not found")
    origins = [_identity(path) for path in paths]
    targets = [home / f"{origin}-{state}.safetensors" for origin, state in origins]
    with ExitStack() as stack:
        for origin in sorted({origin for origin, _ in origins}):
            stack.enter_context(
                locked(home / f"{origin}.lock", lambda: report_progress("another process converts the weights"))
            )
        missing = {path: target for path, target in zip(paths, targets, strict=True) if not target.exists()}
        if missing:
            disk.make_room(sum(path.stat().st_size for path in missing))
            _convert(missing, lambda: report_progress(f"converting {len(missing)} pickled files to safetensors"))
            _remove_outdated(home, dict(origins))
    return targets


def _remove_outdated(home: Path, states: Mapping[str, str]) -> None:
    """Remove conversions of earlier states of these files."""
    for origin, state in states.items():
        for path in home.glob(f"{origin}-*"):
            if path.name != f"{origin}-{state}.safetensors":
                path.unlink()


def _identity(path: Path) -> tuple[str, str]:
    """Return an id of the file's origin and an id of its state.

    For a file in the hub's cache, the origin is the hash that names its blob; otherwise a hash of the path.
    """
    file = path.stat()
    link = Path(os.readlink(path)) if path.is_symlink() else path
    if link.parent.name == "blobs" and HASH.fullmatch(link.name):
        return link.name, f"{file.st_size}-{VERSION}"
    origin = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    return origin, f"{file.st_size}-{file.st_mtime_ns}-{VERSION}"


def _convert(targets: Mapping[Path, Path], waiting: Callable[[], None]) -> None:
    """Convert each file to its target, all or none."""
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
    """Yield a new temporary file in `directory`, which is removed at the end unless it was renamed."""
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".", delete=False) as file:
        try:
            yield file
        finally:
            Path(file.name).unlink(missing_ok=True)


def _unpickle(files: Mapping[Path, int], waiting: Callable[[], None]) -> None:
    """Convert each pickle into the open file of its descriptor, in a confined process; LoadError says why it failed."""
    arguments = [each for path, descriptor in files.items() for each in (path.absolute(), descriptor)]
    with start("sie_triton.models.weights.unpickle", *arguments, descriptors=files.values()) as process:
        try:
            seconds = LIMITS.conversion_s(sum(path.stat().st_size for path in files))
            ended = monotonic() + seconds + LIMITS.conversion_grace_s
            while (status := _status(process)) is None and monotonic() < ended:
                waiting()
        finally:
            process.kill()
        assert process.stdout is not None
        said = process.stdout.read(4096)
    if status != 0:
        raise _refused(status, said, ", ".join(map(str, files)))


def _status(process: subprocess.Popen[bytes]) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(LIMITS.poll_s)
    return None


def _refused(status: int | None, said: bytes, files: str) -> LoadError:
    """Return the error that the process reported, which is trusted no more than the files are."""
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        given = json.loads(said)
        if status == REFUSED and given["reason"] in REASONS:
            return LoadError(first_line(ValueError(given["message"])), given["reason"])
    how = "took too long" if status in (None, -signal.SIGALRM) else f"ended {describe_exit(status)}"
    reason = "out of memory" if status == -signal.SIGKILL else "corrupt"
    return LoadError(f"{files}: cannot be converted to safetensors: the process that read them {how}", reason)


def _check(made: Path, path: Path) -> None:
    """Raise LoadError unless `made` is a safetensors file; the process that wrote it is not trusted."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(made, "numpy") as tensors:
            tensors.keys()
    except (OSError, SafetensorError) as exc:
        raise LoadError(f"{path}: its conversion is not valid safetensors: {first_line(exc)}", "corrupt") from exc
