"""Document files: their format, detected from the content, and their limits."""

import io
import zipfile
from collections.abc import Iterable
from contextlib import suppress

from sie_triton.contract.tensors import DOCUMENT
from sie_triton.errors import InputError
from sie_triton.models.inputs.files import File, FileInput
from sie_triton.models.inputs.limits import LIMITS

# Folder in an Office archive → format.
OFFICE = {"word/": "docx", "ppt/": "pptx", "xl/": "xlsx"}
FORMATS = ("pdf", *OFFICE.values(), "html", "md")


class DocumentFile(File):
    """A document file of a request."""


class DocumentInput(FileInput):
    """Document files."""

    file = DocumentFile
    name = "document"
    tensors = (DOCUMENT,)
    max_size = 4 * 1024 * 1024
    chunk_size = 4 * 1024 * 1024
    nothing_read = "is empty; send a file"


def format_of(content: bytes) -> str:
    """Detect the format of a file from its content: one of FORMATS, or empty.

    >>> format_of(b"%PDF-1.7 ..."), format_of(b"  <!DOCTYPE html><p>"), format_of("# Größe".encode()), format_of(b"\\0")
    ('pdf', 'html', 'md', '')
    """
    head = content[:1024]
    if b"%PDF-" in head:
        return "pdf"
    if head.startswith(b"PK"):
        return _office(archive_entries(content))
    beginning = head.lstrip().lower()
    if beginning.startswith((b"<!doctype html", b"<html")) or b"<html" in beginning:
        return "html"
    try:
        content.decode()
    except UnicodeDecodeError:
        return ""
    return "" if b"\0" in content else "md"


def check_document(file: DocumentFile, max_bytes: int) -> str:
    """Return the format of a file. InputError says what is wrong with the file."""
    if not file.content:
        raise InputError.at(file.where, "is empty; send a file")
    if len(file.content) > max_bytes:
        raise InputError.at(
            file.where, f"has {len(file.content)} bytes; send at most {max_bytes}, or raise max_document_bytes"
        )
    is_archive = file.content.startswith(b"PK")
    # Each entry of an archive's directory begins with these bytes.
    if is_archive and (num_entries := file.content.count(b"PK\1\2")) > LIMITS.max_archive_entries:
        raise InputError.at(
            file.where, f"is an archive of {num_entries} entries; send at most {LIMITS.max_archive_entries}"
        )
    found = format_of(file.content)
    if not found:
        raise InputError.at(file.where, f"is not a document that can be read; send one of {', '.join(FORMATS)}")
    if is_archive:
        unpacked = sum(entry.file_size for entry in archive_entries(file.content))
        if unpacked > min(LIMITS.max_unpacked_ratio * len(file.content), LIMITS.max_unpacked_bytes):
            raise InputError.at(file.where, f"is an archive that unpacks to {unpacked} bytes; send a smaller document")
    return found


def archive_entries(content: bytes) -> list[zipfile.ZipInfo]:
    """Return the entries of a ZIP file; empty if it is damaged."""
    with suppress(Exception), zipfile.ZipFile(io.BytesIO(content)) as archive:  # any field may be damaged
        return archive.infolist()
    return []


def _office(entries: Iterable[zipfile.ZipInfo]) -> str:
    names = [entry.filename for entry in entries]
    return next((kind for folder, kind in OFFICE.items() if any(name.startswith(folder) for name in names)), "")
