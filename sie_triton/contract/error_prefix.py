"""The prefix of an error's text that carries its kind, retry time and field across Triton, which knows none of them.

    [input field=text[2]] text[2]: not valid UTF-8 (byte 0xc3 at 0); send UTF-8 text
    [model_loading retry=5] timeout: passed while the model is being loaded; retry later, or allow more time

stage → `with_prefix` → Triton's error → `without_prefix` → client

Every error of a stage begins with a prefix, so no text of a client can be taken for one. Of a field that came from a
client the prefix contains letters, digits and `_.-[]` only: it ends at the first "] ".
"""

import re

from sie_triton.errors import KINDS, SIEError, error_of

_FIELD = re.compile(r"[\w.\[\]-]{1,100}", re.ASCII)
_PREFIX = re.compile(
    rf"\[(?P<kind>[a-z_.]{{1,40}})(?: retry=(?P<retry>\d{{1,6}}))?(?: field=(?P<field>{_FIELD.pattern}))?\] ", re.ASCII
)


def with_prefix(error: SIEError) -> str:
    """Return the text for Triton; a field that is not a plain name is left out, and lone surrogates are escaped.

    >>> from sie_triton.errors import BusyError, InputError
    >>> with_prefix(BusyError("512 requests are in progress")), with_prefix(InputError.at("labels[2]", "is empty"))
    ('[busy retry=5] 512 requests are in progress', '[input field=labels[2]] labels[2]: is empty')
    """
    retry = "" if error.retry_after_s is None else f" retry={error.retry_after_s}"
    field = f" field={error.field}" if _FIELD.fullmatch(error.field) else ""
    text = str(error).encode(errors="backslashreplace").decode()
    return f"[{error.kind}{retry}{field}] {text}"


def without_prefix(text: str) -> SIEError | None:
    """Return the error whose `with_prefix` has this text; None for other texts, and for kinds not in KINDS.

    >>> error = without_prefix("[busy retry=1] 512 requests are in progress")
    >>> error, error.retry_after_s
    (BusyError('512 requests are in progress'), 1)
    >>> without_prefix("[request id: 7] unexpected shape"), without_prefix("[newer retry=1] what is this")
    (None, None)
    """
    found = _PREFIX.match(text)
    if found is None or found["kind"] not in KINDS:
        return None
    retry = None if found["retry"] is None else int(found["retry"])
    return error_of(found["kind"], text[found.end() :], found["field"] or "", retry)
