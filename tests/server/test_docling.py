"""Documents through Docling itself, in the environment that its refusal names; minutes to install, so not in CI."""

import io
import shlex
import zipfile

import pytest
from click.testing import CliRunner

from benchmarks.library_comparison import served
from sie_triton import InputError, SIEClient
from sie_triton.cli import cli
from sie_triton.errors import DeadlinePassed
from sie_triton.models.families.docling import PACKAGES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

HTML = (
    b"<html><body><h1>Vines</h1><p>They climb.</p><table><tr><th>a</th></tr><tr><td>1</td></tr></table></body></html>"
)
FILE = {
    "package_backed": True,
    "inputs": {"text": False, "image": True, "document": True},
    "tasks": {"extract": {}},
    "profiles": {"default": {"adapter_path": "docling"}},
}
DOCX = {
    "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/word/document.xml" '
    'ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>',
    "_rels/.rels": '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    '<Relationship Id="r1" Target="word/document.xml" '
    'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"/></Relationships>',
    "word/document.xml": '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>'
    "<w:p><w:r><w:t>They climb walls.</w:t></w:r></w:p></w:body></w:document>",
}
# Text is in two cells of 17 billion.
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
XLSX = {
    "[Content_Types].xml": DOCX["[Content_Types].xml"].partition("<Override")[0]
    + f'<Override PartName="/xl/workbook.xml" ContentType="{OFFICE}.sheet.main+xml"/>'
    f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{OFFICE}.worksheet+xml"/></Types>',
    "_rels/.rels": DOCX["_rels/.rels"].replace("word/document.xml", "xl/workbook.xml"),
    "xl/workbook.xml": f'<workbook xmlns="{SHEET}" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships">'
    '<sheets><sheet name="a" sheetId="1" r:id="r1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": DOCX["_rels/.rels"]
    .replace("word/document.xml", "worksheets/sheet1.xml")
    .replace("relationships/officeDocument", "relationships/worksheet"),
    "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{SHEET}"><sheetData><row r="1"><c r="A1"><v>1</v></c></row>'
    '<row r="1048576"><c r="XFD1048576"><v>1</v></c></row></sheetData></worksheet>',
}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    root = tmp_path_factory.mktemp("docling")
    packages = [package if package != "torch" else "torch==2.13.0+cpu" for package in shlex.split(PACKAGES)]
    done = CliRunner().invoke(cli, ["env", "add", "docling", *packages, f"--environments-dir={root / 'environments'}"])
    assert done.exit_code == 0, done.output
    with served(root, "docling", FILE, environments_dir=root / "environments") as client:
        yield client


def office(parts: dict[str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


def pdf(text: str, pages: int = 1) -> bytes:
    """Pages of one line each."""
    content = f"BT /F1 18 Tf 20 100 Td ({text}) Tj ET".encode()
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(pages))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {pages} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for i in range(pages):
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 144] /Contents {5 + 2 * i} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>".encode()
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
    file, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(file))
        file += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, len(file))
    return file + b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1) + table + end


def test_documents_of_every_kind_in_one_request(client: SIEClient):
    files = [HTML, b"# Walls\n\nVines climb them.\n", office(DOCX), pdf("Vines climb walls")]
    found = client.extract("docling", [{"document": file, "id": str(i)} for i, file in enumerate(files)])
    html, markdown, word, page = (each["data"] for each in found)
    assert "# Vines" in html["markdown"]
    assert "|" in html["markdown"]
    assert "Vines climb them." in markdown["text"]
    assert "They climb walls." in word["text"]
    assert "Vines climb walls" in page["text"]
    assert all(each["document"]["schema_name"] == "DoclingDocument" for each in (html, markdown, word, page))
    assert [each["id"] for each in found] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (b"%PDF-1.4 nothing more", r"items\[1\]: cannot be converted"),
        (office(DOCX)[:200], r"document\[1\]: is not a document"),
        (pdf("x", 201), r"items\[1\]: cannot be converted"),
        (bytes(100), r"document\[1\]: is not a document"),
    ],
)
def test_a_document_that_cannot_be_converted_is_named_in_the_error(client: SIEClient, file, said):
    with pytest.raises(InputError, match=said):
        client.extract("docling", [{"document": HTML}, {"document": file}])
    assert client.extract("docling", {"document": HTML})["data"]["text"]


@pytest.mark.parametrize(
    "file",
    [
        office(XLSX),
        b">" * 3000 + b" a",
        b"".join(b" " * 2 * depth + b"- a\n" for depth in range(1000)),
        b"<!doctype html>" + b"<div>" * 20_000,
        b"![" * 50_000,
        b"|a|\n|-|\n" + b"|b|\n" * 200_000,
    ],
)
def test_a_document_of_much_work_ends_with_its_request(client: SIEClient, file):
    with pytest.raises((InputError, DeadlinePassed)):
        client.extract("docling", {"document": file}, timeout=4)
    assert client.extract("docling", {"document": HTML}, timeout=60)["data"]["text"]
