"""Open calls, written by a door and read by a stage."""

import asyncio
import multiprocessing
import os
import subprocess
from contextlib import contextmanager
from threading import Event, Thread
from types import SimpleNamespace

import pytest

from sie_triton.errors import InputError
from sie_triton.records import calls
from sie_triton.records.calls import CALL, CallBook, CallLost, Calls, unless_lost
from sie_triton.records.limits import RecordLimits


def test_a_call_is_over_when_its_client_has_gone(tmp_path):
    book, stage = CallBook(tmp_path), Calls(tmp_path, "inference")
    with book.call() as first:
        call = stage.find(first[CALL])
        with book.call() as second:
            assert [call.is_revoked(), stage.find(second[CALL]).is_revoked()] == [False, False]
        assert [call.is_revoked(), stage.find(second[CALL]).is_revoked()] == [False, True]
    assert call.is_revoked()
    assert stage.find("") is None


def test_a_place_that_is_taken_again_is_another_call(tmp_path, monkeypatch):
    monkeypatch.setattr(calls, "NUM_PLACES", 1)
    monkeypatch.setattr(calls, "NUM_BYTES", 8 * calls.NUM_COLUMNS)
    book, stage = CallBook(tmp_path), Calls(tmp_path, "inference")
    with book.call() as first:
        before = stage.find(first[CALL])
        with book.call() as second:
            assert second == {}
    with book.call() as third:
        assert before.is_revoked()
        assert not stage.find(third[CALL]).is_revoked()


@pytest.mark.parametrize("token", ["x", "1", "1.2.3.4", "1.2.3.4.5.6", "../../etc/passwd", "{me}.-1.1", "{me}.4096.1"])
def test_a_token_that_no_door_wrote_is_refused(tmp_path, token):
    book = CallBook(tmp_path)
    with book.call() as right:
        me = ".".join(right[CALL].split(".")[:3])
        with pytest.raises(InputError, match=r"^parameter sie_call: is set by the server's own HTTP routes"):
            Calls(tmp_path, "inference").find(token.format(me=me))


def test_a_door_with_a_directory_of_its_own_has_no_calls_here(tmp_path):
    for each in ("here", "there"):
        (tmp_path / each).mkdir()
    with CallBook(tmp_path / "there").call() as elsewhere:
        assert Calls(tmp_path / "here", "inference").find(elsewhere[CALL]) is None


def test_a_door_in_another_pid_namespace_has_no_calls_here(tmp_path, monkeypatch):
    """It may share the directory, but not the meaning of a pid."""
    with CallBook(tmp_path).call() as elsewhere:
        monkeypatch.setattr(calls, "_namespace", lambda: 1)
        assert Calls(tmp_path, "inference").find(elsewhere[CALL]) is None


def _call_and_die(directory, told):
    told.put(CallBook(directory).call().__enter__())
    told.close()
    told.join_thread()
    os._exit(0)


def test_calls_of_a_door_that_has_ended_are_over(tmp_path):
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    process = context.Process(target=_call_and_die, args=(tmp_path, told))
    process.start()
    token = told.get(timeout=60)[CALL]
    process.join()
    assert Calls(tmp_path, "inference", RecordLimits(door_alive_s=0.0)).find(token).is_revoked()
    left = {path.name for path in tmp_path.glob("*.calls")}
    CallBook(tmp_path)
    assert left.isdisjoint(path.name for path in tmp_path.glob("*.calls"))


def test_stages_that_know_a_door_see_the_calls_of_its_next_book(tmp_path):
    stage = Calls(tmp_path, "inference")
    first = CallBook(tmp_path).call()
    before = stage.find(first.__enter__()[CALL])
    assert not before.is_revoked()
    book = CallBook(tmp_path)
    assert before.is_revoked()
    with book.call() as parameters:
        assert not stage.find(parameters[CALL]).is_revoked()
        assert before.is_revoked()


def test_a_next_book_does_not_shorten_the_file(tmp_path, monkeypatch):
    """A stage that reads a mapped file which has become shorter is killed."""
    made, reserve = [], calls.reserve
    monkeypatch.setattr(calls, "reserve", lambda path, size: made.append(path) or reserve(path, size))
    for _ in range(2):
        CallBook(tmp_path)
    assert len(made) == 1


@pytest.fixture
def other_process():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def end(process):
    process.kill()
    process.wait()


@contextmanager
def process_is(pid, monkeypatch):
    """Let stages write this pid as their own."""
    with monkeypatch.context() as context:
        context.setattr(calls.os, "getpid", lambda: pid)
        yield


def held_by(pid, token, stage, tmp_path, monkeypatch):
    """Return the call as a stage sees that has deferred it in the process `pid`."""
    call = Calls(tmp_path, stage).find(token[CALL])
    with process_is(pid, monkeypatch):
        call.hold()
    return call


@pytest.fixture
def opened(tmp_path, monkeypatch, other_process):
    """An open call: `hold` lets a stage defer it in another process, `is_lost` looks for dead ones."""
    book, lost = CallBook(tmp_path), []
    with (call := book.call()) as token:
        call.when_lost = lambda: lost.append("call")

        def hold(pid=other_process.pid, stage="inference"):
            return held_by(pid, token, stage, tmp_path, monkeypatch)

        def is_lost():
            book.end_lost()
            return lost == ["call"]

        yield SimpleNamespace(book=book, call=call, hold=hold, is_lost=is_lost)


@pytest.mark.parametrize("stage", ["preprocess", "inference", "postprocess"])
def test_a_call_is_lost_with_the_process_that_deferred_it(opened, tmp_path, monkeypatch, other_process, stage):
    with opened.book.call() as living:
        there = opened.hold(stage=stage)
        held_by(os.getpid(), living, stage, tmp_path, monkeypatch)
        assert not opened.is_lost()
        assert not there.is_revoked()
        end(other_process)
        assert opened.is_lost()
        assert there.is_revoked()
        assert not Calls(tmp_path, stage).find(living[CALL]).is_revoked()


def test_a_call_is_not_lost_with_a_process_that_has_answered(opened, monkeypatch, other_process):
    there = opened.hold(stage="preprocess")
    with process_is(other_process.pid, monkeypatch):
        there.release()
    end(other_process)
    assert not opened.is_lost()


@pytest.mark.parametrize("is_older", [False, True])
def test_a_call_is_lost_with_either_of_two_processes_of_a_stage(opened, other_process, is_older):
    """One takes the place of the other, each has a request of the call, and one has answered its own."""
    if is_older:
        opened.hold()
    ours = opened.hold(os.getpid())
    if not is_older:
        opened.hold()
    ours.release()
    assert not opened.is_lost()
    end(other_process)
    assert opened.is_lost()


def test_a_revoked_call_is_still_found_lost(opened, other_process):
    there = opened.hold()
    opened.call.revoke()
    assert there.is_revoked()
    end(other_process)
    assert opened.is_lost()


def test_a_slot_that_is_taken_again_is_not_held(tmp_path, monkeypatch, other_process):
    monkeypatch.setattr(calls, "NUM_PLACES", 1)
    monkeypatch.setattr(calls, "NUM_BYTES", 8 * calls.NUM_COLUMNS)
    book, lost = CallBook(tmp_path), []
    with book.call() as token:
        there = held_by(other_process.pid, token, "inference", tmp_path, monkeypatch)
    end(other_process)
    with (call := book.call()) as token:
        call.when_lost = lambda: lost.append("call")
        with process_is(other_process.pid, monkeypatch):
            there.hold()
        book.end_lost()
        assert not lost


def test_work_for_a_lost_call_is_cancelled(tmp_path, monkeypatch, other_process):
    async def wait() -> None:
        book = CallBook(tmp_path)
        with (call := book.call()) as token:
            held_by(other_process.pid, token, "inference", tmp_path, monkeypatch)
            other_process.kill()
            other_process.wait()
            asyncio.get_running_loop().call_soon(book.end_lost)
            with pytest.raises(CallLost, match="a process of the model died before it answered"):
                async with unless_lost(call):
                    await asyncio.sleep(600)
            async with unless_lost(call):
                pass
            call.when_lost()  # the work has ended
            with pytest.raises(TimeoutError, match="of its own"):
                async with unless_lost(call):
                    raise TimeoutError("of its own")

    asyncio.run(wait())


def test_a_call_that_is_answered_during_a_look_is_not_lost(tmp_path, monkeypatch):
    """A stage changes its column at any time: no process has the pid 0."""
    book, lost = CallBook(tmp_path), []
    with (call := book.call()) as token, (other := book.call()):
        call.when_lost = other.when_lost = lambda: lost.append("call")
        there = held_by(os.getpid(), token, "inference", tmp_path, monkeypatch)
        stopped = Event()

        def answer_and_defer() -> None:
            while not stopped.is_set():
                there.release()
                there.hold()

        thread = Thread(target=answer_and_defer, daemon=True)
        thread.start()
        try:
            for _ in range(40):
                book.end_lost()
        finally:
            stopped.set()
            thread.join()
    assert not lost


def test_a_file_of_another_size_is_left_as_it_is(tmp_path):
    book = CallBook(tmp_path)
    with book.call() as token:
        (path,) = tmp_path.glob("*.calls")
        path.write_bytes(b"short")
        assert Calls(tmp_path, "inference").find(token[CALL]) is None
        assert path.read_bytes() == b"short"
