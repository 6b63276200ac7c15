"""Bodies of forms with files: multipart/form-data (RFC 7578), of fields that fit in memory."""

from email.parser import BytesHeaderParser

from sie_triton.doors.failures import Failure, invalid

MULTIPART = "multipart/form-data"

# Most fields of a form, and most bytes of a line between them and of the headers of one.
MAX_FIELDS, MAX_BOUNDARY, MAX_HEAD = 64, 128, 4096

FormField = str | bytes | list[str]


def read_form(body: bytes | bytearray) -> dict[str, FormField]:
    """Return the fields by name: a text, the bytes of a file, or the texts of a name that ends with [].

    The first line is the one between fields. Failure 400 if the form is invalid, 413 if it has too many fields.
    """
    line, end, _ = bytes(body[:MAX_BOUNDARY]).partition(b"\r\n")
    if not line.startswith(b"--") or not end:
        raise invalid("body", f"is not a form: its first line is no boundary of at most {MAX_BOUNDARY} bytes")
    parts = bytes(memoryview(body)[len(line) :]).split(b"\r\n" + line, MAX_FIELDS + 1)
    if len(parts) > MAX_FIELDS + 1:
        raise Failure("too_large", f"body: has more than {MAX_FIELDS} fields")
    if not parts.pop().startswith(b"--"):
        raise invalid("body", "is not a form: its last boundary is missing; send a whole body")
    found: dict[str, FormField] = {}
    for i, part in enumerate(parts):
        name, value = _field(part, i)
        several = found.setdefault(name, []) if name.endswith("[]") and isinstance(value, str) else None
        if isinstance(several, list) and isinstance(value, str):
            several.append(value)
        elif name in found:
            raise invalid(name[:80], "is in the form twice; send it once")
        else:
            found[name] = value
    return found


def _field(part: bytes, number: int) -> tuple[str, str | bytes]:
    head, end, content = part.partition(b"\r\n\r\n")
    headers = BytesHeaderParser().parsebytes(head[2 : MAX_HEAD + 2])
    name = headers.get_param("name", header="content-disposition")
    if not end or not head.startswith(b"\r\n") or len(head) > MAX_HEAD or not isinstance(name, str):
        raise invalid("body", f"is not a form: field {number} has no head with a name")
    if headers.get_filename() is not None:
        return name, content
    try:
        return name, content.decode()
    except UnicodeDecodeError as exc:
        raise invalid(name[:80], "is not UTF-8") from exc
