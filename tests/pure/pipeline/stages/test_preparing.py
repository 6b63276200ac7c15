"""Slow elements are prepared by several threads; the last thread hands over."""

import threading
import time
from itertools import zip_longest

import pytest

from sie_triton.contract import Part
from sie_triton.errors import Cancelled
from sie_triton.models.inputs import NoFrame, Processor, kind_of
from sie_triton.models.inputs.decoding import PIXEL_BYTES, BoundedFile
from sie_triton.models.inputs.images import ImageFile, Page
from sie_triton.models.inputs.pdf_pages import ALL, PageReader
from sie_triton.models.inputs.request_parts import Framed
from sie_triton.models.inputs.text import TextInput
from sie_triton.pipeline.scheduling.background import Background
from sie_triton.pipeline.stages.preparing import Preparation, takes_long
from tests.support.pdfs import pages, pdf_of
from tests.support.stages import FREE_SLOTS

IMAGES = kind_of(["image"])


class Letters(TextInput):
    """Capital letters are slow."""

    def is_slow(self, element):
        return element.isupper()


class Slow(Processor):
    """The test delays capital letters with `waits`."""

    def __init__(self):
        self.taken, self.most, self.inside, self.lock = [], 0, 0, threading.Lock()
        self.waits = threading.Event()
        self.waits.set()

    def prepare(self, element):
        with self.lock:
            self.taken.append(element)
            self.inside += 1
            self.most = max(self.most, self.inside)
        if element.isupper():
            assert self.waits.wait(10)
            time.sleep(0.01)
        with self.lock:
            self.inside -= 1
        if element == "X":
            raise ValueError(element)
        return element * 2

    def encode(self, framed, *, is_query=False):
        pytest.fail("nothing is encoded here")


def asked(*parts):
    return [Framed(Part("text", list(elements)), NoFrame(), Letters()) for elements in parts]


def prepared(processor, parts, done, is_over=lambda: False):
    return Preparation(
        processor, parts, PageReader(ALL, 9, 1 << 20), is_over, lambda asked, _: done.append(asked), FREE_SLOTS
    )


def finish(strands):
    for _ in zip_longest(*strands):
        pass


@pytest.mark.parametrize(("most", "strands"), [(1, 1), (2, 2), (8, 3)])
def test_all_elements_are_prepared_once_and_handed_over_once(most, strands):
    processor, done = Slow(), []
    made = prepared(processor, asked("AbC", "Dee"), done).strands(most)
    assert len(made) == strands
    finish(made)
    (found,) = done
    assert [framed.part.elements for framed in found] == [["AA", "bb", "CC"], ["DD", "ee", "ee"]]
    assert sorted(processor.taken) == sorted("AbCDee")


def test_an_abandoned_request_is_not_prepared_further():
    processor, done, answers = Slow(), [], iter([False, False])
    preparation = prepared(processor, asked("ABCDEF"), done, lambda: next(answers, True))
    finish(preparation.strands(1))
    assert processor.taken == ["A", "B"]
    assert done == []


def test_an_image_of_an_abandoned_request_is_not_decoded_further():
    """The request is abandoned while its image is decoded."""
    processor, done = Slow(), []
    is_over = threading.Event()

    def decode(element):
        is_over.set()
        BoundedFile(bytes(PIXEL_BYTES), "image[0]").read(PIXEL_BYTES)

    processor.prepare = decode
    with pytest.raises(Cancelled):
        finish(prepared(processor, asked("A"), done, is_over.is_set).strands(1))
    assert done == []


def test_a_failing_element_hands_nothing_over():
    processor, done, failed = Slow(), [], []
    for strand in prepared(processor, asked("AXB"), done).strands(2):
        try:
            finish([strand])
        except ValueError as exc:
            failed.append(str(exc))
    assert failed == ["X"]
    assert done == []


def test_threads_share_a_large_request_and_small_ones_are_not_delayed():
    processor, done = Slow(), []
    pool = Background("images", lambda: None, 3)
    for name in ("ABCDEFGHIJKL", "M"):
        for strand in prepared(processor, asked(name), done).strands(3):
            pool.submit(strand, pytest.fail)
    pool.close()
    assert processor.most == 3
    assert [len(framed.part.elements) for (framed,) in done] == [1, 12]


def test_slow_elements_make_a_request_take_long():
    assert [takes_long(asked(each)) for each in ("abc", "abC")] == [False, True]
    queried = [Framed(Part("text", ["a"], query=query), NoFrame(), Letters()) for query in ("q", "Q", None)]
    assert [takes_long([each]) for each in queried] == [False, True, False]


def test_a_pdf_query_is_not_split_into_pages():
    """The pages of an item are read."""
    image, done = ImageFile(pdf_of(pages([(9, 9), (9, 9)])), "image[0]"), []
    both = [Framed(Part(name, [image]), NoFrame(), IMAGES) for name in ("items", "query")]
    finish(prepared(Processing(), both, done).strands(1))
    assert [[type(each) for each in framed.part.elements] for framed in done[0]] == [[Page, Page], [ImageFile]]


class Processing(Processor):
    def encode(self, framed, *, is_query=False):
        pytest.fail("nothing is encoded here")


def test_unneeded_threads_are_not_started():
    before = threading.active_count()
    idle = Background("images", lambda: None, 50)
    assert threading.active_count() == before
    idle.close()
