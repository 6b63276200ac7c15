"""Convert errors of the model hub and of the network to LoadErrors with a remedy."""

from huggingface_hub import constants
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from sie_triton.checkpoints.files import first_line
from sie_triton.errors import LoadError

# Base class of connection, timeout and status errors: that of httpx, or of the client that the library uses instead.
HTTPError: type[Exception] = next(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")

PASSING = (408, 429, 500, 502, 503, 504)


def explained(error: Exception, repo: str, revision: str) -> LoadError:
    """Return the LoadError for `error`, which a request to the hub raised."""
    if isinstance(error, GatedRepoError):
        return LoadError(f"weights: {repo} is gated: accept its terms on the hub, then set HF_TOKEN", "gated")
    if isinstance(error, RevisionNotFoundError):
        message = f"weights: {repo} has no revision {revision}; hf_revision must be a branch, tag or commit of it"
        return LoadError(message, "not found")
    if isinstance(error, RepositoryNotFoundError):
        return LoadError(f"weights: the hub has no {repo}, or HF_TOKEN does not give access to it", "not found")
    if isinstance(error, DisabledRepoError):
        return LoadError(f"weights: the hub has disabled {repo}", "not found")
    if isinstance(error, HfHubHTTPError):
        return _of_status(error, repo)
    if isinstance(error, OfflineModeIsEnabled):
        return LoadError(f"weights: {repo} is not complete in the local cache, and HF_HUB_OFFLINE is set", "network")
    if type(error).__name__.endswith("Timeout"):
        message = f"weights: {repo}: the model hub, {constants.ENDPOINT}, takes too long to answer"
        return LoadError(f"{message}; HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT allow more seconds", "network")
    message = f"weights: {repo} is not complete in the local cache, and the model hub cannot be reached"
    return LoadError(f"{message} at {constants.ENDPOINT}: {first_line(error)}", "network")


def is_passing(error: Exception) -> bool:
    """Return whether another attempt may succeed."""
    return not isinstance(error, HfHubHTTPError) or error.response.status_code in PASSING


def _of_status(error: HfHubHTTPError, repo: str) -> LoadError:
    status = error.response.status_code
    if status == 401:
        return LoadError(f"weights: {repo}: the hub does not accept this HF_TOKEN; renew or unset it", "gated")
    if status == 403:
        return LoadError(f"weights: {repo}: HF_TOKEN has no read access to it; use a token that has", "gated")
    return LoadError(f"weights: {repo}: the hub answers with status {status}", "network")
