"""Documents: which formats are told apart, what is refused, and what becomes of what Docling says."""

import io
import json
import zipfile

import numpy as np
import pytest

from sie_triton.contract import VERBS, Part
from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog import select
from sie_triton.models.catalog.config import DEFAULT_BATCH_COST
from sie_triton.models.families import family, load_processor, model_of
from sie_triton.models.families.docling import CONTENT, CONVERTED, DOCUMENT_COST
from sie_triton.models.families.docling.adapter import DoclingAdapter
from sie_triton.models.inputs import kind_of
from sie_triton.models.inputs.documents import DocumentFile, check_document, format_of
from sie_triton.models.inputs.images import ImageFile
from sie_triton.models.inputs.limits import LIMITS
from tests.support.stages import spec
from tests.support.unreadable import unreadable

KINDS = ("image", "document")


def office(folder: str, size: int = 10) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr(f"{folder}document.xml", bytes(size))
    return file.getvalue()


FORMATS = {
    "pdf": b"%PDF-1.7\n1 0 obj",
    "docx": office("word/"),
    "pptx": office("ppt/"),
    "xlsx": office("xl/"),
    "html": b"\n<!DOCTYPE html><html><p>hello</p></html>",
    "md": "# Größe\n\n| a |\n".encode(),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_known_by_what_is_in_the_file(name):
    assert check_document(DocumentFile(FORMATS[name], "document[0]"), 10_000) == name


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty; send a file"),
        (bytes(100), "is not a document that can be read; send one of pdf, docx, pptx, xlsx, html, md"),
        (b"\xff\xfe\x00binary", "is not a document that can be read"),
        (b"PK\x03\x04 cut off", "is not a document that can be read"),
        (office("other/"), "is not a document that can be read"),
        (office("other/word/"), "is not a document that can be read"),
        (office("word/", 100_000_000), "is an archive that unpacks to 10000000[0-9] bytes"),
        (b"%PDF-" + bytes(200_000), "has 200005 bytes; send at most 150000, or raise max_document_bytes"),
    ],
)
def test_a_file_that_is_no_document_is_refused(content, said):
    with pytest.raises(InputError, match=rf"^document\[1\]: {said}"):
        check_document(DocumentFile(content, "document[1]"), 150_000)


def test_the_unpacked_size_of_an_archive_is_limited():
    """Six megabytes that claim 1.1 gigabytes: less than 200 times as much."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("word/document.xml", bytes(6_000_000))
    content = bytearray(file.getvalue())
    size = content.index(b"PK\x01\x02") + 24
    content[size : size + 4] = (1_100_000_000).to_bytes(4, "little")
    with pytest.raises(InputError, match="is an archive that unpacks to 1100000000 bytes"):
        check_document(DocumentFile(bytes(content), "document[0]"), 1 << 26)


def test_an_archive_of_too_many_entries_is_refused_before_it_is_read(monkeypatch):
    """56 MB of directory became 1.7 GB of Python objects. The number that the archive's end tells is not believed."""
    file = bytearray(office("word/"))
    entry = file.index(b"PK\x01\x02")
    end = file.index(b"PK\x05\x06")
    file[end:end] = file[entry:end] * LIMITS.max_archive_entries
    monkeypatch.setattr("zipfile.ZipFile", None)
    with pytest.raises(InputError, match=r"^document\[0\]: is an archive of 20002 entries; send at most 10000"):
        check_document(DocumentFile(bytes(file), "document[0]"), 1 << 26)


def test_images_are_no_documents():
    for content, _ in unreadable().values():
        assert format_of(content) in ("", "pdf", "md", "html")


@pytest.fixture
def processor(tmp_path):
    return load_processor(spec(family="docling", inputs=KINDS, tasks=("extract",), dims={}), tmp_path)


def test_documents_go_to_the_worker_as_they_are(processor):
    files = [DocumentFile(FORMATS["md"], "document[0]"), DocumentFile(FORMATS["pdf"] + bytes(1000), "document[1]")]
    items = [{"document": file} for file in files]
    assert all(map(kind_of(KINDS).is_slow, items))
    features = processor.encode(list(map(processor.prepare, items)))
    assert features["read"].values.tolist() == [DOCUMENT_COST, DOCUMENT_COST + 1016 // 256]
    assert DOCUMENT_COST >= DEFAULT_BATCH_COST, "a document shares its forward pass with no other"
    content, lengths = features[CONTENT.name]
    assert content.tobytes() == FORMATS["md"] + FORMATS["pdf"] + bytes(1000)
    assert lengths.tolist() == [len(FORMATS["md"]), 1016]
    with pytest.raises(InputError, match=r"^document\[2\]: is not a document"):
        processor.prepare({"document": DocumentFile(bytes(9), "document[2]")})


def test_documents_that_need_ocr_are_refused(processor):
    with pytest.raises(InputError, match=r"^image\[0\]: is an image, which needs OCR"):
        processor.prepare({"image": ImageFile(b"png", "image[0]")})
    with pytest.raises(InputError, match=r"^parameter ocr: OCR is not supported, only the text stored in a document"):
        processor.frame(Part("items", [{"document": DocumentFile(FORMATS["md"], "")}], options={"ocr": True}))


def test_a_document_that_docling_cannot_convert_is_named():
    model = model_of(spec(family="docling", inputs=KINDS, tasks=("extract",), dims={}))
    rows = [
        {CONVERTED.name: np.frombuffer(json.dumps(each).encode(), np.uint8)}
        for each in ({"text": "a"}, {"error": "broken"})
    ]
    collect = VERBS["extract"].collect
    assert collect(model, {}, rows[:1], np.ones(1, np.int32))["num_pieces"].tolist() == [1]
    with pytest.raises(InputError, match=r"^items\[1\]: cannot be converted \(broken\)"):
        collect(model, {}, rows, np.ones(2, np.int32))


def test_without_docling_its_environment_is_named():
    with pytest.raises(LoadError, match=r"run sie-triton env add docling 'docling-slim\[format-pdf.*torch") as told:
        DoclingAdapter(10, 60.0)
    assert told.value.reason == "dependency"


def test_a_model_file_of_sies_is_served_in_that_environment(tmp_path):
    (tmp_path / "docling.yaml").write_text(
        "sie_id: docling\npackage_backed: true\ntasks: {extract: {}}\n"
        "inputs: {text: false, image: true, document: true}\n"
        "profiles: {default: {adapter_path: 'sie_server.adapters.docling:DoclingAdapter'}}\n"
    )
    (model,) = select([], tmp_path, allow_hub=False).models
    resolved = model.resolve(spec().runtime)
    assert (resolved.environment, resolved.weights) == ("docling", "package://sie_triton/models/families/docling")
    assert family(resolved.family).environment == "docling"
