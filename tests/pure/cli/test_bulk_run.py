"""The run between lines and sink: order, limits and errors."""

import random
import threading
import time
import traceback
from contextlib import contextmanager

import pytest

from sie_triton import InputError, ModelError
from sie_triton.cli.bulk.lines import InputLine, Source
from sie_triton.cli.bulk.records import Sink
from sie_triton.cli.bulk.run import CHUNKS_A_REQUEST, progress, run
from sie_triton.client.fit import Misfit
from sie_triton.errors import BusyError


class Kept(Sink):
    """Keeps records in memory."""

    def __init__(self):
        self.records = []

    def _write(self, lines, records):
        self.records += records


class Closable:
    is_closed = False

    def close(self):
        self.is_closed = True


class Nothing(Source):
    name, identity = "nothing", None

    def lines(self, num_skipped=0):
        return iter(())


def lines(count, problems=()):
    return [InputLine(i, {"text": str(i)}, problem="is blank" if i in problems else "") for i in range(1, count + 1)]


def echo(sent):
    return [{"text": line.item["text"]} for line in sent]


def sent_in(chunk_size, all_lines):
    return (all_lines[i : i + chunk_size] for i in range(0, len(all_lines), chunk_size))


def ran(call, all_lines, *, chunk_size=4, max_concurrency=3, skip_errors=False, chunks=None):
    """Return the sink after a run, and the error that ended it."""
    sink, client, error = Kept(), Closable(), None
    with progress(Nothing(), 0, is_shown=False) as bar:
        try:
            run(
                chunks or sent_in(chunk_size, all_lines),
                call,
                sink,
                client,
                max_concurrency=max_concurrency,
                skip_errors=skip_errors,
                progress=bar,
            )
        except Exception as exc:
            error = exc
    assert client.is_closed == (error is not None)
    return sink, error


def test_records_are_in_the_order_of_the_lines():
    wait = random.Random(1)

    def call(sent):
        time.sleep(wait.random() / 100)
        return echo(sent)

    sink, _ = ran(call, lines(100))
    assert [record["text"] for record in sink.records] == [str(i) for i in range(1, 101)]


def test_a_bounded_number_of_chunks_is_read_ahead_and_of_calls_in_flight():
    in_flight, most, num_read, num_done = 0, 0, 0, 0
    lock = threading.Lock()

    @contextmanager
    def counted():
        nonlocal in_flight, most, num_done
        with lock:
            in_flight += 1
            most = max(most, in_flight)
        yield
        with lock:
            in_flight -= 1
            num_done += 1

    def call(sent):
        with counted():
            time.sleep(0.001)
            return echo(sent)

    def read():
        nonlocal num_read
        for chunk in sent_in(1, lines(60)):
            num_read += 1
            assert num_read - num_done <= CHUNKS_A_REQUEST * 2 + 1
            yield chunk

    sink, error = ran(call, [], max_concurrency=2, chunks=read())
    assert (error, len(sink.records)) == (None, 60)
    assert most <= 2


def failing(*numbers, error):
    """Return a call that fails if any of these lines is among those sent, and a list of the sizes of its calls."""
    sizes = []

    def call(sent):
        sizes.append(len(sent))
        for i, line in enumerate(sent):
            if line.number in numbers:
                raise error(i)
        return echo(sent)

    return call, sizes


OF_AN_ITEM = pytest.mark.parametrize(
    ("error", "problem"),
    [
        (lambda i: InputError.at(f"text[{i}]", "is too long"), "is too long"),
        (lambda i: InputError.at(f"items[{i}].image", "is empty"), "is empty"),
        (lambda i: ModelError("a result is not finite"), "a result is not finite"),
    ],
)


@OF_AN_ITEM
def test_the_line_at_fault_is_named_and_lines_before_it_are_kept(error, problem):
    call, _ = failing(50, 60, error=error)
    sink, raised = ran(call, lines(64), chunk_size=16)
    assert isinstance(raised, InputError)
    assert str(raised).startswith(f"line 50: {problem}; with --skip-errors")
    assert len(sink.records) == 48


@OF_AN_ITEM
def test_skipped_errors_stand_in_place_of_their_results(error, problem):
    call, _ = failing(3, 30, 31, error=error)
    sink, raised = ran(call, lines(40, problems=[5]), chunk_size=16, skip_errors=True)
    assert (raised, sink.num_errors) == (None, 4)
    wrong = {3: problem, 5: "is blank", 30: problem, 31: problem}
    assert sink.records == [{"line": i, "error": wrong[i]} if i in wrong else {"text": str(i)} for i in range(1, 41)]


def test_a_line_that_cannot_be_sent_ends_the_run_when_its_turn_comes():
    sink, raised = ran(echo, lines(20, problems=[10, 3 * 4 + 1]), chunk_size=4)
    assert str(raised).startswith("line 10: is blank; ")
    assert len(sink.records) == 8


@pytest.mark.parametrize(
    "error",
    [
        InputError.at("parameter text_threshold", "2 is not allowed"),
        InputError.at("model", "x is not served"),
        Misfit.at("items[0].text", "org/m takes no text here"),
        BusyError("later"),
    ],
)
def test_an_error_that_no_line_causes_ends_the_run_as_it_is(error):
    call, sizes = failing(2, error=lambda _: error)
    sink, raised = ran(call, lines(8), chunk_size=8, skip_errors=True)
    assert raised is error
    assert (sizes, sink.records) == ([8], [])


def test_a_call_that_does_not_fit_the_model_is_shown_as_an_input_error():
    (line,) = traceback.format_exception_only(Misfit.at("text", "org/m takes no text here"))
    assert line.startswith("sie_triton.errors.InputError: text: ")
