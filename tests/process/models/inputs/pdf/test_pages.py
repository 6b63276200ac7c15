"""PDFs as images: the look of their pages, the choice of pages, and limits on the cost of hostile files."""

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc
from PIL import Image, ImageFont

from sie_triton.client.calls import ScoreCall
from sie_triton.client.results import encode_results, extract_results
from sie_triton.contract.spec import Runtime
from sie_triton.contract.tensors import TIMING_FIELDS
from sie_triton.errors import Cancelled, InputError
from sie_triton.models.inputs.images import ImageFile, ImageReader
from sie_triton.models.inputs.limits import InputLimits
from sie_triton.models.inputs.pdf.document import is_pdf, opened
from sie_triton.models.inputs.pdf_pages import ALL, PageReader, PageSelection
from sie_triton.pipeline.stages.preprocess import Preprocess
from sie_triton.pipeline.stages.request import DEFERRED
from sie_triton.records.status import StatusWriter
from tests.support import pdfs
from tests.support.controller import wait_for
from tests.support.items import Served
from tests.support.pdfs import embedded_font, pages, pdf_of, slow, unreadable, words, written
from tests.support.pictures import saved
from tests.support.stages import asked, run
from tests.support.towers import save_clip

PAGES = pages()
PDF = pdf_of(PAGES)
READER = PageReader(ALL, 9, 1 << 26)
IMAGES = ImageReader(Runtime())


def drawn(content: bytes, reader: PageReader = READER) -> list[tuple[int, np.ndarray]]:
    found = []
    for number, page in reader.pages(ImageFile(content, "image[4]")):
        with IMAGES.opened(page) as picture:
            found.append((number, np.asarray(picture)))
    return found


def drawing() -> list[psutil.Process]:
    """Return the drawing processes of this process that are still running."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # the process may end meanwhile
            found += [child] if "sie_triton.models.inputs.pdf.draw" in child.cmdline() else []
    return found


def refusal(content: bytes, reader: PageReader = READER) -> str:
    with pytest.raises(InputError) as told:
        drawn(content, reader)
    return str(told.value)


def test_a_page_is_drawn_as_the_library_draws_it():
    """The image shows the page's content, upright and in its colours."""
    for (number, found), picture, expected in zip(drawn(PDF), PAGES, pdfs.drawn(PDF), strict=True):
        assert np.array_equal(found, np.asarray(expected))
        near = np.asarray(Image.fromarray(found).resize(picture.size)).astype(float)
        assert np.abs(near - np.asarray(picture)).mean() < 12
        assert np.abs(near[::-1] - np.asarray(picture)).mean() > 24
        assert np.abs(near[:, :, ::-1] - np.asarray(picture)).mean() > 24
        assert number == PAGES.index(picture) + 1


@pytest.mark.parametrize("name", ["Helvetica", "Times-Roman", "Symbol"])
def test_a_standard_font_is_drawn_as_the_library_draws_it(name):
    pdf = words(b"<</Type/Font/Subtype/Type1/BaseFont/%s>>" % name.encode())
    ((_, found),) = drawn(pdf)
    assert np.array_equal(found, np.asarray(pdfs.drawn(pdf)[0]))
    assert (found < 128).any()


def test_an_embedded_font_is_drawn_as_the_library_draws_it():
    font = ImageFont.load_default(24)
    pdf = words(*embedded_font(font.font_bytes))
    ((_, found),) = drawn(pdf)
    assert np.array_equal(found, np.asarray(pdfs.drawn(pdf)[0]))
    assert not np.array_equal(found, drawn(words(b"<</Type/Font/Subtype/TrueType/BaseFont/Mine>>"))[0][1])


def test_another_font_is_replaced_by_one_of_the_librarys_own():
    """The font may be installed or not: the drawing process cannot open its files."""
    ((_, found),) = drawn(words(b"<</Type/Font/Subtype/TrueType/BaseFont/DejaVuSans>>"))
    assert (found < 128).any()


def test_a_large_page_is_drawn_smaller():
    ((_, found),) = drawn(written(box="0 0 20000 10000"))
    assert 4_100_000 < found.shape[0] * found.shape[1] < 4_300_000
    assert found.shape[1] == pytest.approx(2 * found.shape[0], abs=2)


@pytest.mark.parametrize(("text", "numbers"), [("", [1, 2, 3]), ("2", [2]), ("3,1-2,2", [1, 2, 3]), ("2-", [2, 3])])
def test_only_the_selected_pages_are_read(text, numbers):
    assert [number for number, _ in drawn(PDF, PageReader(PageSelection.read(text), 9, 1 << 26))] == numbers


@pytest.mark.parametrize("text", ["0", "3-2", "a", "1-2-3", "1,,2", "-2", "1e3", "٣", "9" * 10])
def test_an_invalid_page_selection_is_refused(text):
    with pytest.raises(InputError, match=r"^parameter pages: .* is not allowed; give page numbers from 1"):
        PageSelection.read(text)


def test_a_selection_takes_no_more_memory_than_the_pages_that_are_allowed():
    """The confined process says how many pages there are, and a file may have taken it over."""
    selection = PageSelection.read("1-," * 3000 + "5-")
    tracemalloc.start()
    with pytest.raises(InputError) as told:
        selection.of(1_000_000, "image[0]", 100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert told.value.field == "image[0]"
    assert peak < 100_000
    with pytest.raises(InputError) as told:
        PageSelection.read("1," * 5001)
    assert told.value.field == "pages"


def test_limits_name_the_image_and_the_setting():
    assert refusal(PDF, PageReader(ALL, 2, 1 << 26)) == (
        "image[4]: more than 2 pages of 3 are selected; select fewer with the parameter pages, or raise max_pages"
    )
    assert len(drawn(PDF, PageReader(PageSelection.read("1,3"), 2, 1 << 26))) == 2
    assert "send at most 99, or raise max_document_bytes" in refusal(PDF, PageReader(ALL, 9, 99))
    assert refusal(PDF, PageReader(PageSelection.read("2,4"), 9, 1 << 26)) == (
        "parameter pages: image[4] has 3 pages, but no page 4"
    )


@pytest.mark.parametrize("name", unreadable())
def test_malformed_pdfs_are_drawn_or_refused_within_the_pixel_limit(name):
    """Each file is drawn, or refused with the name of the image; no drawing process is left."""
    content, said = unreadable()[name]
    assert is_pdf(content)
    told = ""
    try:
        found = drawn(content, replace(READER, limits=InputLimits(pdf_step_s=120)))  # a busy machine draws slowly
    except InputError as exc:
        found, told = [], str(exc)
    assert all(picture.size <= 14_000_000 for _, picture in found)
    assert told.startswith("image[4]") or (found and not said)
    assert said in told
    assert drawing() == []


def test_an_error_names_the_page():
    assert refusal(written(box="0 0 50000 1")).startswith("image[4], page 1: has 104167 × 3 pixels")


def test_a_page_that_takes_too_long():
    hasty = replace(READER, limits=InputLimits(pdf_step_s=0.5))
    assert "is a PDF that takes longer than 0.5 s per page" in refusal(slow(), hasty)
    assert drawing() == []


def test_drawing_ends_once_the_pages_are_closed():
    pages = READER.pages(ImageFile(PDF, "image[0]"))
    next(pages)
    assert drawing()
    pages.close()
    assert drawing() == []


def test_the_drawing_process_is_confined():
    with opened(PDF, "image[0]"):
        (child,) = drawing()
        assert "\nSeccomp:\t2\n" in Path(f"/proc/{child.pid}/status").read_text()


def test_drawing_stops_once_the_request_is_over():
    """The drawing process is stopped; otherwise it would never end."""
    over: list[bool] = []
    reader = PageReader(ALL, 9, 1 << 26, lambda: bool(over))
    pages = reader.pages(ImageFile(PDF, "image[0]"))
    next(pages)
    drawing()[0].suspend()
    over.append(True)
    with pytest.raises(Cancelled):
        next(pages)
    assert drawing() == []


@pytest.fixture
def stage(tmp_path, clip, clip_directory, tokenizers_made_here) -> Iterator[Preprocess]:
    """Preprocess stage of a model that reads images, with one image thread."""
    of_clip = replace(clip.spec, weights=str(clip_directory), runtime=Runtime(image_workers=1))
    made = Preprocess(of_clip, StatusWriter(tmp_path, "m", "preprocess", 0))
    made.warm_up()
    yield made
    made.close()


def image_request(content: bytes):
    return asked("encode", image=np.array([[content]], object))


def test_an_image_does_not_wait_for_a_pdf(stage):
    """The PDF's pages are never drawn; a cancelled request leaves nothing behind."""
    slow, image = image_request(PDF), image_request(saved(PAGES[0]))
    stage.execute([slow])
    wait_for(drawing)
    drawing()[0].suspend()
    (answer,) = run(stage, [image])
    assert answer["lengths" if "lengths" in answer else "read"].tolist()
    assert not slow.answers
    slow.cancelled = True
    assert isinstance(slow.answer(DEFERRED), Cancelled)
    wait_for(lambda: not drawing())


def test_text_beside_an_image_is_refused_if_the_model_reads_either(stage):
    content = saved(PAGES[0])
    texts, images = np.array([[b"", b"a cat"]], object), np.array([[content, content]], object)
    refused, good = run(stage, [asked("encode", text=texts, image=images), image_request(content)])
    assert str(refused) == (
        "image[1]: the same item has text, and this model reads either text or image of an item; send them as two items"
    )
    assert len(good["read"]) == 1


def test_a_truncated_text_is_reported_beside_images(stage):
    long, content = b"word " * 400, saved(PAGES[0])
    texts, images = np.array([[b"a", b"", long]], object), np.array([[b"", content, b""]], object)
    (answer,) = run(stage, [asked("encode", text=texts, image=images)])
    assert answer["context"].truncated == [2]


def test_few_pdfs_are_open_at_once(stage):
    """Each PDF has its own process: of five PDFs, two are started, and the others follow."""
    requests = [image_request(PDF) for _ in range(5)]
    stage.execute(requests)
    most = 0
    while not all(request.answered.is_set() for request in requests):
        most = max(most, len(drawing()))
        time.sleep(0.005)
    assert 1 <= most <= 2
    assert all(len(request.answer(DEFERRED)["read"]) == len(PAGES) for request in requests)


def test_images_are_no_pdfs():
    noted = Image.Exif()
    noted[0x010E] = "%PDF-1.7"
    for content in (b"", saved(PAGES[0]), saved(PAGES[0], "JPEG", exif=noted)):
        assert not is_pdf(content)
        assert READER.pages(ImageFile(content, "image[0]")) is None
    assert READER.pages({"text": "%PDF-1.7"}) is None
    assert is_pdf(b"\xef\xbb\xbf\r\n%PDF-1.7")


@pytest.fixture(scope="module")
def clip_directory(tmp_path_factory, minilm_directory) -> Path:
    directory: Path = tmp_path_factory.mktemp("clip")
    save_clip(directory, minilm_directory)
    return directory


@pytest.fixture(scope="module")
def clip(clip_directory) -> Served:
    return Served("clip", clip_directory, dims={"dense": 32})


def test_a_page_gives_what_an_image_of_it_gives(clip):
    alone = [{"image": saved(Image.fromarray(found))} for _, found in drawn(PDF)]
    expected = clip.encode(["a cat", *alone, "a dog"])["dense"]
    found = clip.encode(["a cat", {"image": PDF}, "a dog"])["dense"]
    assert np.allclose(found, expected, atol=1e-6)
    assert np.allclose(clip.encode([{"image": PDF}], pages="2-")["dense"], expected[2:4], atol=1e-5)


class Response(dict):
    """Two rows of a PDF, between two items of one."""

    def __init__(self, **tensors) -> None:
        counts, timing = np.arange(3, 7, dtype=np.int32), np.arange(len(TIMING_FIELDS), dtype=np.float32)
        pages = {"num_pages": np.array([0, 2, 0], np.int32), "page_numbers": np.array([2, 5], np.int32)}
        super().__init__(token_count=counts, timing_ms=timing, **pages, **tensors)

    as_numpy = dict.get

    def get_response(self):
        return {"outputs": [{"name": name} for name in self]}


ITEMS = ["a", {"image": b"", "id": "doc"}, {"text": "c", "id": "last"}]


def test_a_pdf_has_a_result_for_each_page():
    first, of_pdf, last = encode_results(Response(dense=np.eye(4)), ITEMS, None, "float32")
    assert (first["token_count"], last["id"], last["dense"].argmax()) == (3, "last", 3)
    assert (of_pdf["id"], of_pdf["token_count"], of_pdf.get("dense")) == ("doc", 9, None)
    assert [(page["page"], page["dense"].argmax()) for page in of_pdf["pages"]] == [(2, 1), (5, 2)]
    found = [f'{{"data": {i}}}'.encode() for i in range(4)]
    first, of_pdf, last = extract_results(Response(extraction=np.array(found, np.object_)), ITEMS)
    assert (first["data"], last["data"]) == (0, 3)
    assert [(page["page"], page["data"]) for page in of_pdf["pages"]] == [(2, 1), (5, 2)]


def test_each_page_is_ranked_separately():
    items = ["a", {"image": b"x", "id": "doc"}, {"text": "c", "id": "last"}]
    call = ScoreCall(tritonclient.grpc, "org/model", "query", items, {})
    scores = call.results([Response(scores=np.array([0.1, 0.9, 0.2, 0.5], np.float32))])["scores"]
    assert [(each["item_id"], each.get("page"), each["rank"]) for each in scores] == [
        ("doc", 2, 0),
        ("last", None, 1),
        ("doc", 5, 2),
        ("item-0", None, 3),
    ]
