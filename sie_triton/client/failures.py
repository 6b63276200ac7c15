"""Convert exceptions of tritonclient and the transports to our errors."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from sys import modules

from tritonclient.utils import InferenceServerException

from sie_triton.client.address import Address
from sie_triton.errors import BusyError, Cancelled, InputError, LoadError, ModelError, SIEError, Unreachable

# Our errors by status name of gRPC or HTTP.
ERRORS: Mapping[str, type[SIEError]] = {
    "INVALID_ARGUMENT": InputError,
    "400": InputError,
    "NOT_FOUND": InputError,
    "404": InputError,
    "UNAVAILABLE": BusyError,
    "503": BusyError,
    "INTERNAL": ModelError,
    "500": ModelError,
    "CANCELLED": Cancelled,
}

MAX_NAMES = 12

# Triton does not know model files, so it cannot tell a client what is wrong with one.
SEE_STATUS = "sie-triton status lists model files with errors"

# Beginning of the prefix that Triton adds to a step's message.
FRAMING = "in ensemble '"


class NotServed(InputError):
    """No model of that name is served; `model` is empty if the error came from Triton without the name."""

    def __init__(self, message: str, model: str = "") -> None:
        super().__init__(message)
        self.model = model


class NotTriton(SIEError):
    """The server at the address is not Triton."""


@contextmanager
def our_errors(address: Address, seconds: float) -> Iterator[None]:
    """Context manager that raises our errors; `seconds` is the timeout that a timeout error names."""
    try:
        yield
    except InferenceServerException as exc:
        raise _failure(exc, address, seconds) from exc
    except TimeoutError as exc:
        raise _too_late(address, seconds) from exc
    except _broken_connections() as exc:
        raise unreachable(address, exc) from exc
    except ValueError as exc:
        raise NotTriton(f"{address}: the server at this address is not Triton ({exc})") from exc


def is_of_a_step(error: SIEError) -> bool:
    """Return True if a step of a model caused the error, so that a server must be running."""
    cause = error.__cause__
    return isinstance(cause, InferenceServerException) and (cause.message() or "").startswith(FRAMING)


def unreachable(address: Address, cause: Exception) -> Unreachable:
    details = str(cause) or type(cause).__name__
    return Unreachable(
        f"{address}: no server answers ({details}); check that it runs and that this is its {address.transport} port"
    )


def not_served(model: str, served: Sequence[str]) -> NotServed:
    """Return an error that names the served models, the most similar first."""
    similar = get_close_matches(model, served, MAX_NAMES, 0.5)
    names = [*similar, *(name for name in served if name not in similar)]
    listed = ", ".join(names[:MAX_NAMES]) or "none"
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return NotServed(f"model: {model} is not served; served models: {listed}{more}; {SEE_STATUS}", model)


def _failure(exc: InferenceServerException, address: Address, seconds: float) -> SIEError:
    """Return our error for one of tritonclient's, without the prefix that Triton adds to the message of a step."""
    status = (exc.status() or "").rpartition(".")[2]
    if status == "DEADLINE_EXCEEDED":
        return _too_late(address, seconds)
    if status == "UNIMPLEMENTED" or (address.transport == "http" and exc.debug_details()):
        # With these statuses, a proxy reports that the server behind it is unavailable.
        error = BusyError if status in ("502", "503", "504") else NotTriton
        return error(f"{address}: the server at this address is not Triton (it answers with status {status})")
    message = exc.message() or str(exc)
    _, _, sentence = message.partition("', ")
    text = sentence if message.startswith(FRAMING) else message
    kind = NotServed if "unknown model" in text else ERRORS.get(status, SIEError)
    return LoadError.parse(text) or kind(text)


def _too_late(address: Address, seconds: float) -> BusyError:
    return BusyError(f"timeout: {address} did not answer within {seconds:.3g} s")


def _broken_connections() -> tuple[type[Exception], ...]:
    # A gRPC client does not need to import aiohttp.
    return (OSError, modules["aiohttp"].ClientError) if "aiohttp" in modules else (OSError,)
