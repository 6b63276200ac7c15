"""Convert exceptions of tritonclient and the transports to our errors.

An error of a stage says what it is in its prefix (`error_prefix`), which is removed here. Triton's own errors have a
status only, and in one case a text.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from sys import modules

from tritonclient.utils import InferenceServerException

from sie_triton.client.address import Address
from sie_triton.contract.error_prefix import without_prefix
from sie_triton.contract.names import enumerated
from sie_triton.errors import BusyError, Cancelled, DeadlinePassed, InputError, ModelError, SIEError, Unreachable

MAX_NAMES = 12

# Triton does not know model files, so it cannot tell a client what is wrong with one.
SEE_STATUS = "sie-triton models add, or cluster add, adds a model; sie-triton status lists model files with errors"

USE_TRITONS = "SIEClient calls Triton's ports, by default 8000 for HTTP and 8001 for gRPC"

# Triton's text: what it puts before the message of a step, up to the end of the ensemble's name.
FRAMING, END_OF_FRAMING = "in ensemble '", "', "


# Triton's text about a stage that has died or stands still: "Stub process", its name, and this.
UNHEALTHY = "is not healthy"


class StageDied(BusyError):
    """A stage of the model died, or stands still; the server replaces it within seconds. The request may be why."""


class NotServed(InputError):
    """No model of that name is served; `model` is empty if the error came from Triton without the name."""

    kind = "not_served"
    field = "model"

    def __init__(self, message: str, model: str = "") -> None:
        super().__init__(message)
        self.model = model


class NotTriton(SIEError):
    """The server at the address is not Triton."""


class Unauthorized(SIEError):
    """The server requires a token, and got none or a wrong one."""

    field = "token"


# Errors without a prefix, which are Triton's own, by status name of gRPC or HTTP. With INVALID_ARGUMENT it refuses
# shapes, types and names of tensors, with UNAVAILABLE a full queue, with INTERNAL a fault of a stage.
ERRORS: Mapping[str, type[SIEError]] = {
    "INVALID_ARGUMENT": InputError,
    "400": InputError,
    "NOT_FOUND": NotServed,
    "404": NotServed,
    "UNAVAILABLE": BusyError,
    "503": BusyError,
    "INTERNAL": ModelError,
    "500": ModelError,
    "UNAUTHENTICATED": Unauthorized,
    "401": Unauthorized,
    "CANCELLED": Cancelled,
    "499": Cancelled,
}


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
        raise NotTriton(f"{address}: the server at this address is not Triton ({exc}); {USE_TRITONS}") from exc


def is_of_a_step(error: SIEError) -> bool:
    """Return True if a step of a model caused the error, so that a server must be running."""
    cause = error.__cause__
    return isinstance(cause, InferenceServerException) and (cause.message() or "").startswith(FRAMING)


def was_reached(text: str) -> bool:
    """Return True unless gRPC says that its call reached no server; `text` is the message of an error."""
    return not text.startswith("failed to connect")


def unreachable(address: Address, cause: Exception) -> Unreachable:
    details = str(cause) or type(cause).__name__
    return Unreachable(
        f"{address}: no server answers ({details}); check that it runs and that this is its {address.transport} port"
    )


def not_served(model: str, served: Sequence[str], advice: str = "") -> NotServed:
    """Return an error that names the served models, the most similar first, and ends with `advice`."""
    similar = get_close_matches(model, served, MAX_NAMES, 0.5)
    names = [*similar, *(name for name in served if name not in similar)]
    listed = enumerated(names, MAX_NAMES) or "none"
    return NotServed(f"model: {model} is not served; served models: {listed}; {SEE_STATUS}{advice}", model)


def _failure(exc: InferenceServerException, address: Address, seconds: float) -> SIEError:
    """Return our error for one of tritonclient's, without the prefixes of Triton and of the stage."""
    status = (exc.status() or "").rpartition(".")[2]
    if status == "DEADLINE_EXCEEDED":
        return _too_late(address, seconds)
    if status == "UNIMPLEMENTED" or (address.transport == "http" and exc.debug_details()):
        # With these statuses, a proxy reports that the server behind it is unavailable.
        error = BusyError if status in ("502", "503", "504") else NotTriton
        return error(
            f"{address}: the server at this address is not Triton (it answers with status {status}); {USE_TRITONS}"
        )
    message = exc.message() or str(exc)
    text = message.partition(END_OF_FRAMING)[2] if message.startswith(FRAMING) else message
    return without_prefix(text) or _of_triton(status, text)


def _of_triton(status: str, text: str) -> SIEError:
    """Return the error for a message of Triton's own."""
    # The status is NOT_FOUND or, if all versions of the model are unloaded, UNAVAILABLE, a busy server's.
    if text.startswith("Request for unknown model"):
        return NotServed(text)
    return StageDied(text) if UNHEALTHY in text else ERRORS.get(status, SIEError)(text)


def _too_late(address: Address, seconds: float) -> DeadlinePassed:
    return DeadlinePassed(f"timeout: {address} did not answer within {seconds:.3g} s")


def _broken_connections() -> tuple[type[Exception], ...]:
    # A gRPC client does not need to import aiohttp.
    return (OSError, modules["aiohttp"].ClientError) if "aiohttp" in modules else (OSError,)
