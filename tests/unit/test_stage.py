"""What every stage does with requests before and after its own work: takes, counts, refuses, loads once."""

import threading
from collections.abc import Iterator

import pytest

from sie_triton.errors import BusyError
from sie_triton.records.status import StatusWriter
from sie_triton.stages.open_requests import NEVER
from sie_triton.stages.request import DEFERRED
from sie_triton.stages.stage import ColdStage
from tests.stages import FakeRequest, run

LIMIT = 4


class Echo(ColdStage[str]):
    """Answers at once; loading waits for `may_load`."""

    name = "echo"

    def __init__(self, status: StatusWriter) -> None:
        super().__init__(status, LIMIT)
        self.may_load = threading.Event()
        self.may_load.set()
        self.num_loads = 0
        self.asked: list[list[FakeRequest]] = []

    def load(self):
        assert self.may_load.wait(20)
        self.num_loads += 1
        return "loaded"

    def answer(self, loaded, requests):
        self.asked.append(list(requests))
        return [{"x": 1}] * len(requests)

    def deadline_ns(self, request):
        return NEVER


@pytest.fixture
def echo(tmp_path) -> Iterator[Echo]:
    stage = Echo(StatusWriter(tmp_path, "m", "preprocess", 0))
    yield stage
    stage.close()


@pytest.mark.parametrize("num_over", [0, 2])
def test_a_full_stage_refuses_all_however_full_it_is(echo, num_over):
    echo.warm_up()
    echo.status.add(num_open=LIMIT + num_over)
    answers = run(echo, [FakeRequest() for _ in range(3)])
    assert all(isinstance(answer, BusyError) for answer in answers)
    assert not any(echo.asked)
    record = echo.status.record
    assert (record["num_requests"], record["num_refused"], record["num_open"]) == (0, 3, LIMIT + num_over)


def test_what_is_loaded_is_not_loaded_again(echo):
    echo.warm_up()
    echo.load_soon()
    echo.close()
    assert echo.num_loads == 1


def test_only_what_nobody_has_answered_meanwhile_is_computed_after_the_load(echo):
    echo.may_load.clear()
    first, second = FakeRequest(), FakeRequest()
    assert echo.execute([first, second]) == [DEFERRED] * 2
    assert echo.open.reply(first, BusyError("its time is over"))
    echo.may_load.set()
    assert second.answer(DEFERRED) == {"x": 1}
    echo.close()
    assert echo.asked == [[second]]
    assert echo.status.record["num_open"] == 0


def test_a_request_counts_as_use_when_it_comes(echo):
    """A model whose only request waits for the load is not idle."""
    echo.may_load.clear()
    request = FakeRequest()
    echo.execute([request])
    assert echo.status.record["last_used_ns"] > 0
    echo.may_load.set()
    request.answer(DEFERRED)
