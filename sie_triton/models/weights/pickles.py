"""Convert a model whose weights exist only as pickles into a directory of the same model with safetensors.

A pickle may contain code. A confined process (unpickle.py) reads it once; the result is cached under the identities of
the model's files.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from time import monotonic

from sie_triton.checkpoints.files import first_line, inside, read_fields
from sie_triton.checkpoints.modules import modules_of
from sie_triton.errors import REASONS, LoadError
from sie_triton.models.weights.disk import DiskCache, made_directories
from sie_triton.models.weights.limits import LIMITS, REFUSED
from sie_triton.models.weights.local_cache import listing
from sie_triton.models.weights.progress import ReportProgress
from sie_triton.models.weights.trees import fill, hashed, locked, made
from sie_triton.models.weights.uses import Uses, record_beside
from sie_triton.system.host.private import private_directory
from sie_triton.system.processes.child import describe_exit
from sie_triton.system.processes.confined import start

SINGLE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
OPEN_CLIP = "open_clip_pytorch_model.bin"

# Part of the identity of a conversion; changes when the conversion changes.
VERSION = "1"


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
    """Return a directory below `cache` with links to those files of `directory` that match `wanted`, `names` converted.

    `report_progress` is called periodically with a line of progress, and may raise to stop. LoadError says why a file
    cannot be converted. `disk` makes room for the conversions, and `uses` holds the result.
    """
    files = {name: directory / name for name in names}
    for path in files.values():
        if not path.is_file():
            raise LoadError(f"{path.name} is missing in {path.parent}", "not found")
    links = {name: directory / name for name in listing(directory) if matches(name, wanted) and name not in files}
    states = {name: (stat.st_size, stat.st_mtime_ns) for name, path in files.items() if (stat := path.stat())}
    origin = hashed({str(directory.resolve()): tuple(wanted)})
    try:
        tree = private_directory(cache) / f"{origin}-{hashed({**links, **states, 'version': VERSION})}"
        with locked(cache / f"{origin}.lock", lambda: report_progress("another process converts the weights")):
            uses.hold(record_beside(tree))
            if not tree.is_dir():
                disk.make_room(sum(size for size, _ in states.values()))
                with made(tree) as fresh:
                    fill(fresh, {**links, **_safe_indexes(directory, names)})
                    targets = {path: fresh / _safe_name(name) for name, path in files.items()}
                    _convert(targets, lambda: report_progress(f"converting {len(files)} pickled files to safetensors"))
                for outdated in made_directories(cache, f"{origin}-*/"):
                    outdated.remove()
    except OSError as exc:
        raise LoadError(f"{cache}: cannot store converted weights: {first_line(exc)}", "failed") from exc
    return tree


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


def _safe_indexes(directory: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the shard indexes (which tensor is in which file) of the pickles, for the converted files."""
    found = {}
    for module in {PurePosixPath(name).parent for name in names}:
        path = directory / module / INDEX
        if path.exists() and not (directory / module / SINGLE).exists():
            index = read_fields(path).text_map("weight_map")
            for shard in set(index.values()):
                inside(path.parent, shard, f"{path}: weight_map")
            size = {"total_size": read_fields(path).fields("metadata").integer("total_size", 0, most=None)}
            shards = {name: _safe_name(shard) for name, shard in index.items()}
            found[str(module / "model.safetensors.index.json")] = json.dumps({"metadata": size, "weight_map": shards})
    return found


def _convert(targets: Mapping[Path, Path], waiting: Callable[[], None]) -> None:
    """Convert each file to its target."""
    with ExitStack() as stack:
        for target in targets.values():
            target.parent.mkdir(parents=True, exist_ok=True)
        made = {path: stack.enter_context(target.open("wb")) for path, target in targets.items()}
        _unpickle({path: file.fileno() for path, file in made.items()}, waiting)
        for path, file in made.items():
            _check(targets[path], path)
            os.fsync(file.fileno())


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
