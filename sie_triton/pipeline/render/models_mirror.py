"""A copy of the model files of an object store in the data directory, where the server finds them as it does others.

models_dir (s3://…) → MIRROR in the data directory → the controller's watch
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path, PurePosixPath

from sie_triton.contract.names import matches
from sie_triton.errors import CatalogError, ServerError
from sie_triton.models.catalog.bundles import DIRECTORY as BUNDLES
from sie_triton.models.catalog.bundles import models_of_bundle
from sie_triton.models.weights.object_store import ObjectStore, StoreError
from sie_triton.pipeline.limits import MirrorLimits
from sie_triton.records.serving_file import SUFFIXES, model_files
from sie_triton.settings import Settings
from sie_triton.system.host.files import write_atomically
from sie_triton.system.host.private import private_directory
from sie_triton.system.host.repeated import repeated

MIRROR = "mirrored-models"

Say = Callable[[str], None]


class Mirror:
    """The model files of the store at `url`, copied into `directory`. One thread calls `sync`.

    Holds the version of each file that was read last, and whether the last comparison failed.
    """

    def __init__(self, url: str, directory: Path, limits: MirrorLimits = MirrorLimits()) -> None:
        self._url, self._directory, self._limits = url, directory, limits
        self._store: ObjectStore | None = None
        self._versions: Mapping[str, tuple[str, int]] = {}
        self._has_failed = False

    def sync(self) -> None:
        """Make the copy equal to the store; StoreError leaves it as it is."""
        self._store = self._store or ObjectStore(self._url, make=False)
        listed = self._listed(self._store)
        contents = {name: self._read(self._store, name) for name in listed if listed[name] != self._versions.get(name)}
        directory = private_directory(self._directory)
        for name, content in contents.items():
            _write(private_directory((directory / name).parent) / PurePosixPath(name).name, content)
        bundles = directory / BUNDLES
        for path in (*model_files(directory), *(model_files(bundles) if bundles.is_dir() else ())):
            if str(path.relative_to(directory)) not in listed:
                path.unlink()
        self._versions = listed

    def keep_in_sync(self, say: Say) -> None:
        """Like `sync`; a fault is reported once, and so is its end."""
        try:
            self.sync()
        except (StoreError, OSError) as exc:
            if not self._has_failed:
                say(f"model files: {exc}; their last state stays in service")
            self._has_failed = True
        else:
            if self._has_failed:
                say(f"model files: {self._url} can be read again")
            self._has_failed = False

    def _listed(self, store: ObjectStore) -> Mapping[str, tuple[str, int]]:
        limits = self._limits
        found: dict[str, tuple[str, int]] = {}
        for number, each in enumerate(store.list()):
            if number >= limits.num_objects:
                raise StoreError(
                    f"{self._url} has more than {limits.num_objects} objects; give the model files their own prefix"
                )
            if _is_model_file(each.path.removeprefix(f"{BUNDLES}/")):
                found[each.path] = each.version, each.size
        num_bytes = sum(size for _, size in found.values())
        if len(found) > limits.num_files or num_bytes > limits.all_bytes:
            raise StoreError(
                f"{self._url} has {len(found)} model files of {num_bytes} bytes in all; at most {limits.num_files} and "
                f"{limits.all_bytes} bytes are allowed"
            )
        return found

    def _read(self, store: ObjectStore, name: str) -> bytes:
        content = store.read(name, self._limits.file_bytes)
        if content is None:
            raise StoreError(f"{self._url}/{name} was removed while it was read")
        return content


def mirrored(settings: Settings) -> Settings:
    """Return settings whose models_dir is a directory: of a URL, its copy, made now.

    If the store cannot be read, an earlier copy is used; ServerError if there is none.
    """
    if not settings.models_url:
        return settings
    directory = settings.data_dir.absolute() / MIRROR
    try:
        Mirror(settings.models_url, directory).sync()
    except (StoreError, OSError) as exc:
        if not (directory.is_dir() and model_files(directory)):
            raise ServerError(f"models_dir: {exc}") from exc
    return settings.model_copy(update={"models_dir": directory})


def bundled(settings: Settings) -> Settings:
    """Return settings whose model_filter names the models of the bundle, of which that of `settings` allows some.

    `settings` are those of `mirrored`.
    """
    names = models_of_bundle(settings.bundle, settings.models_dir)
    allowed = [name for name in names if matches(name, settings.name_patterns)]
    if names and not allowed:
        raise CatalogError(f"model_filter: {settings.model_filter}: matches no model of the bundle {settings.bundle}")
    return settings.model_copy(update={"model_filter": ",".join(allowed)}) if names else settings


def kept_in_sync(settings: Settings, say: Say, limits: MirrorLimits = MirrorLimits()) -> AbstractContextManager[None]:
    """Compare the copy of models_dir with its store every `sync_s`, on a separate thread, inside the context.

    `settings` are those from before `mirrored`.
    """
    if not settings.models_url:
        return nullcontext()
    mirror = Mirror(settings.models_url, settings.data_dir.absolute() / MIRROR, limits)
    return repeated(lambda: mirror.keep_in_sync(say), limits.sync_s, "models-mirror")


def _is_model_file(path: str) -> bool:
    """
    >>> _is_model_file("a.yaml"), _is_model_file("old/a.yaml"), _is_model_file(".a.yaml"), _is_model_file("README")
    (True, False, False, False)
    """
    name = PurePosixPath(path).name
    return path == name and name.endswith(SUFFIXES) and not name.startswith(".") and name.isprintable()


def _write(path: Path, content: bytes) -> None:
    """Replace the file atomically; leave it alone if it has this content, so that nothing is rendered again."""
    with suppress(OSError):
        if path.read_bytes() == content:
            return
    write_atomically(path, content)
