"""What the shelves of tokens hold, and which batches run and end by it; the runner is asked step by step."""

import asyncio
import threading
from hashlib import sha256

import pytest

from sie_triton.doors.batches.routes import NewBatch, _new
from sie_triton.doors.batches.runner import BatchRunner
from sie_triton.doors.batches.shelf import Shelf, new_id, to_its_end
from sie_triton.doors.failures import Failure
from sie_triton.doors.limits import BatchLimits, DoorLimits
from tests.support.doors import door_of

LIMITS = BatchLimits(num_running=2, sweep_s=0.0)
LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "org/m", "input": "x"}}\n'


def opened(shelf, **changed):
    """Open a batch of one request."""
    shelf.directory.mkdir(parents=True, exist_ok=True)
    file = new_id("file-")
    shelf.path(file).write_bytes(LINE)
    shelf.add_file(file, "", "batch")
    wanted = NewBatch(input_file_id=file, endpoint="/v1/embeddings", completion_window="24h")
    batch = _new(wanted, shelf) | changed
    shelf.add_batch(batch)
    return batch["id"]


def shelf_of(tmp_path, token):
    return Shelf(tmp_path / "files" / sha256(token.encode()).hexdigest()[:16], 1 << 30, LIMITS)


def looking(tmp_path, act, **settings):
    """Return the result of `act`, which gets a runner, a door and a shelf whose batches never end by themselves."""

    async def main():
        door, backend = door_of(DoorLimits(batch=LIMITS), data_dir=tmp_path, **settings)
        backend.seconds = 3600.0
        runner = BatchRunner(door)
        try:
            return await act(runner, Shelf(tmp_path / "files" / "all", 1 << 30, LIMITS))
        finally:
            tasks = [task for _, task in runner._runs.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(main())


@pytest.mark.parametrize("outcome", ["cancelled", "expired"])
def test_a_batch_that_waits_for_others_ends_all_the_same(tmp_path, outcome):
    async def act(runner, shelf):
        running = [opened(shelf), opened(shelf)]
        await runner._look()
        waiting = opened(shelf, **({"expires_at": 0} if outcome == "expired" else {}))
        if outcome == "cancelled":
            shelf.path(f"{waiting}.cancel").touch()
        await runner._look()
        await runner._runs[waiting][1]
        assert set(runner._runs) == {*running, waiting}
        return shelf.read(waiting, "", "batch_")

    found = looking(tmp_path, act)
    assert (found["status"], found["in_progress_at"]) == (outcome, None)


def test_tokens_take_turns(tmp_path):
    async def act(runner, _):
        one, two = (shelf_of(tmp_path, token) for token in ("one", "two"))
        first = [opened(one) for _ in range(3)]
        other = opened(two)
        await runner._look()
        assert set(runner._runs) == {first[0], other}

    looking(tmp_path, act, auth_mode="token", auth_tokens="one,two")


def test_batches_of_a_token_that_counts_no_more_do_not_run(tmp_path):
    allowed = tmp_path / "tokens"
    allowed.write_text("one two")

    async def act(runner, without_token):
        opened(without_token)
        ids = [opened(shelf_of(tmp_path, token)) for token in ("one", "two")]
        await runner._look()
        assert set(runner._runs) == set(ids)
        allowed.write_text("two")
        task = runner._runs[ids[0]][1]
        await runner._look()
        await asyncio.wait([task])
        await runner._look()
        assert set(runner._runs) == {ids[1]}
        assert shelf_of(tmp_path, "one").path(f"{ids[0]}.open").exists()

    looking(tmp_path, act, auth_mode="token", auth_tokens=f"@{allowed}")


def test_the_runner_goes_on_after_a_run_that_was_cancelled(tmp_path):
    async def act(runner, shelf):
        id = opened(shelf)
        await runner._look()
        _, task = runner._runs[id]
        task.cancel()
        await asyncio.wait([task])
        await runner._look()
        assert runner._runs[id][1] is not task

    looking(tmp_path, act)


# --- files of batches that have not ended


@pytest.mark.parametrize("kind", ["input_file_id", "output_id", "error_id"])
def test_a_file_of_a_batch_that_has_not_ended_stays(tmp_path, kind):
    shelf = Shelf(tmp_path, 1 << 30, LIMITS)
    batch = shelf.read(opened(shelf), "", "batch_")
    file = batch[kind]
    shelf.path(file).write_bytes(LINE)
    shelf.write(f"{file}.json", {**shelf.add_file(file, "", "batch"), "expires_at": 0})
    shelf.sweep()
    with pytest.raises(Failure):
        shelf.delete_file(file)
    assert shelf.path(file).exists()
    shelf.end_batch(batch)
    shelf.delete_file(file)
    assert not shelf.path(file).exists()


def test_only_the_owner_of_the_server_reads_its_files(tmp_path):
    shelf = Shelf(tmp_path / "files" / "a", 1 << 30, LIMITS)
    with shelf.create("file-a"):
        pass
    assert [path.stat().st_mode & 0o777 for path in (shelf.directory, shelf.path("file-a"))] == [0o700, 0o600]


def test_a_record_that_lost_its_content_stops_no_other_batch(tmp_path):
    async def act(runner, shelf):
        broken, sound = opened(shelf), opened(shelf)
        shelf.path(f"{broken}.open").write_bytes(b"")
        shelf.path(f"{new_id('file-')}.json").write_bytes(b"")
        await runner._look()
        assert set(runner._runs) == {sound}
        assert len(shelf.records("file-")) == 2

    looking(tmp_path, act)


def test_no_cancellation_leaves_before_what_is_being_written():
    begun, may_end, written = threading.Event(), threading.Event(), []

    def write():
        begun.set()
        may_end.wait(30)
        written.append(1)

    async def main():
        task = asyncio.create_task(to_its_end(write))
        await asyncio.to_thread(begun.wait)
        for _ in range(2):
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=0.01)
            assert not done
        may_end.set()
        await asyncio.wait([task])
        assert (task.cancelled(), written) == (True, [1])

    try:
        asyncio.run(main())
    finally:
        may_end.set()
