"""Copies of busy models: where one goes, that it leaves first, and rounds with two devices of 1,000 bytes."""

from time import monotonic_ns

import pytest

from sie_triton.controller.choice import Device, Resident, place, place_copy, victims
from sie_triton.records.grants import EVICTED, answer_path, grant_of
from sie_triton.records.status import LOADING, RESIDENT, CopyRecord
from sie_triton.system.processes.pids import ProcessId
from tests.pure.controller.test_placement import gpus, in_memory, loading, verdict  # noqa: F401
from tests.support.controller import round_of

NOW = 100


def copy_of(size, used, busy=True, name="copy"):
    return Resident(name, size, used, NOW, busy, is_copy=True)


def model(size, used, busy=False, since=0, name="model"):
    return Resident(name, size, used, since, busy)


# --- the choice


@pytest.mark.parametrize(
    ("wanted", "devices", "expected"),
    [
        (3, [], None),
        (3, [Device("0", 2, 9)], None),
        # nothing leaves for it, and it does not wait for what leaves
        (3, [Device("0", 2, 9, [model(5, 1)])], None),
        (3, [Device("0", 2, 9, [copy_of(5, 1, busy=False)], coming=9)], None),
        (3, [Device("0", -1, 9), Device("1", 3, 9)], "1"),
        # of several with room: the fewest busy models, then the most room, then the first
        (3, [Device("0", 9, 9, num_busy=1), Device("1", 3, 9)], "1"),
        (3, [Device("0", 3, 9), Device("1", 4, 9)], "1"),
        (3, [Device("0", 3, 9), Device("1", 3, 9)], "0"),
    ],
)
def test_the_device_of_a_copy(wanted, devices, expected):
    found = place_copy(devices, wanted)
    assert (found and found.name) == expected


@pytest.mark.parametrize(
    ("residents", "to_free", "expected"),
    [
        # a copy goes before an idle model that was used longer ago, however busy and new it is
        ([model(5, 1), copy_of(5, 99)], 5, ["copy"]),
        ([model(5, 1), copy_of(5, 99)], 6, ["copy", "model"]),
        ([copy_of(5, 9, name="b"), copy_of(5, 8, name="a")], 5, ["a"]),
        ([model(5, 1, busy=True), copy_of(5, 99, busy=False)], 5, ["copy"]),
        # a model that was just loaded stays; a copy does not
        ([model(5, 1, since=99), copy_of(5, 99)], 10, ["copy"]),
        ([copy_of(0, 1), model(5, 1)], 5, ["model"]),
    ],
)
def test_a_copy_leaves_first(residents, to_free, expected):
    assert victims(residents, to_free, now_ns=NOW, min_residency_ns=50) == expected


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        # a busy copy costs less than an idle model, and nothing more than free room
        ([[model(5, 1)], [copy_of(5, 99)]], "1"),
        ([[copy_of(5, 99), model(4, 99, busy=True)], [model(5, 1)]], "0"),
    ],
)
def test_a_load_goes_where_a_copy_leaves(devices, expected):
    full = [Device(str(number), 0, 9, residents) for number, residents in enumerate(devices)]
    assert place(full, 5, now_ns=NOW, min_residency_ns=0).name == expected
    with_room = [*full, Device("free", 5, 9)]
    assert place(with_room, 5, now_ns=NOW, min_residency_ns=0).name == "free"


# --- whole rounds


def copy(controller, writer, number, **fields):
    """Record of a copy of a stage's worker; one that has asked has done so now."""
    made = CopyRecord(writer, number)
    for field, value in {"wanted_since_ns": monotonic_ns(), **fields}.items():
        made.record[field] = value
    if "worker_pid" in fields:
        made.has_worker(ProcessId.of(fields["worker_pid"]))
    return made


def answer_to(controller, pid, number=1):
    path = answer_path(controller._directory, pid, number)
    return path.read_text() if path.exists() else None


@pytest.fixture
def busy(controller, gpus, pids):  # noqa: F811
    """A model of 300 bytes on the first device, with requests."""
    gpus["cuda:0"] = 300
    return in_memory(controller, "a", pids[0], 300, 0, num_open=9, last_used_ns=5)


def test_a_copy_is_granted_where_the_model_is_not(controller, gpus, busy, pids):  # noqa: F811
    """Its grant counts before the stage has seen it, and while it loads."""
    wish = copy(controller, busy, 1, wanted_bytes=300)
    round_of(controller)
    assert answer_to(controller, pids[0]) == grant_of("cuda:1")
    other = in_memory(controller, "b", pids[1], 300, 0, num_open=9)
    too_large = copy(controller, other, 1, wanted_bytes=551)
    round_of(controller)
    wish.record["granted_bytes"], wish.record["wanted_bytes"], wish.record["device"] = 300, 0, 1
    answer_path(controller._directory, pids[0], 1).unlink()
    round_of(controller)
    assert answer_to(controller, pids[1]) is None
    too_large.record["wanted_bytes"] = 550
    copy(controller, busy, 2, wanted_bytes=10)
    round_of(controller)
    assert answer_to(controller, pids[1]) == grant_of("cuda:1")
    assert answer_to(controller, pids[0], 2) is None  # each device has it


@pytest.mark.parametrize(("used", "granted"), [(550, True), (551, False)])
def test_nothing_leaves_for_a_copy(controller, control, gpus, busy, pids, used, granted):  # noqa: F811
    gpus["cuda:1"] = used
    in_memory(controller, "idle", pids[1], used, 1, last_used_ns=1)
    copy(controller, busy, 1, wanted_bytes=300)
    round_of(controller)
    assert (answer_to(controller, pids[0]) is not None) == granted
    assert control.swapped == []


def test_a_load_comes_before_a_copy_that_has_asked_earlier(controller, control, gpus, busy, pids):  # noqa: F811
    gpus.update({"cuda:0": 800, "cuda:1": 500})
    in_memory(controller, "idle", pids[1], 500, 0, last_used_ns=1)
    copy(controller, busy, 1, wanted_bytes=300)
    loading(controller, "b", pids[2], 500)
    control.may_end.clear()
    controller.tick()
    assert answer_to(controller, pids[0]) is None
    control.may_end.set()


@pytest.mark.parametrize("reason", ["pressure", "a load"])
def test_the_copy_leaves_and_no_model_does(controller, control, gpus, busy, pids, reason):  # noqa: F811
    """It was just used, and the model beside it long ago; both are counted on their device."""
    gpus["cuda:0"] = 800
    gpus["cuda:1"] = 900 if reason == "pressure" else 600
    in_memory(controller, "old", pids[1], 300, 1, last_used_ns=1)
    fields = {"state": RESIDENT, "device": 1, "device_bytes": 300, "worker_pid": pids[3]}
    copy(controller, busy, 1, **fields, busy_since_ns=7, last_used_ns=8)
    if reason == "a load":
        loading(controller, "b", pids[2], 500)
    for _ in range(2):
        round_of(controller)
    assert answer_to(controller, pids[0]) == EVICTED
    assert control.swapped == []
    assert controller.models["a"].num_bytes == 600
    if reason == "pressure":
        gpus["cuda:1"] = 1200  # more than the copy, which still leaves, will free
        round_of(controller)
        assert control.swapped == [("old-inference", False)]
    assert [*map(controller.device_of, controller.models["a"].copies)] == ["cuda:1"]


def test_a_copy_that_loads_leaves_for_a_load_too(controller, control, gpus, busy, pids):  # noqa: F811
    gpus["cuda:0"] = 800
    copy(controller, busy, 1, state=LOADING, granted_bytes=500, device=1)
    loading(controller, "b", pids[1], 700)
    round_of(controller)
    assert answer_to(controller, pids[0]) == EVICTED
    assert (control.swapped, verdict(controller, pids[1])) == ([], None)


def test_a_model_that_loads_again_avoids_the_device_of_its_copy(controller, gpus, busy, pids):  # noqa: F811
    """The other device has more room, and no more busy models."""
    gpus["cuda:0"] = 700
    in_memory(controller, "b", pids[1], 300, 0, num_open=1)
    copy(controller, busy, 1, state=LOADING, granted_bytes=100, device=1)
    busy.record["state"], busy.record["wanted_bytes"] = LOADING, 100
    round_of(controller)
    assert verdict(controller, pids[0]) == grant_of("cuda:0")


def test_a_process_that_only_finishes_its_requests_gets_no_copy(controller, gpus, busy, pids):  # noqa: F811
    copy(controller, busy, 1, wanted_bytes=100)
    in_memory(controller, "a", pids[1], 300, 0, generation=1)
    round_of(controller)
    assert answer_to(controller, pids[0]) is None


@pytest.fixture
def ended(monkeypatch):
    """Pids of the processes that were sent a signal, which does not reach them."""
    pids = set()
    monkeypatch.setattr(ProcessId, "send", lambda process, signal: pids.add(process.pid))
    return pids


def test_copies_of_an_evicted_model_end_with_its_worker(controller, gpus, busy, pids, ended):  # noqa: F811
    copy(controller, busy, 1, state=RESIDENT, device=1, device_bytes=300, worker_pid=pids[3])
    busy.record["num_open"] = 0
    in_memory(controller, "a", pids[1], 300, 0, generation=1)
    controller.tick()
    assert ended == set()
    controller.tick()
    assert ended == {pids[0], pids[3]}


def test_a_dead_stage_leaves_no_copy(controller, gpus, busy, pids, ended):  # noqa: F811
    """The stage has ended by a fault, with its worker; a new one has taken its place."""
    made = copy(controller, busy, 1, state=RESIDENT, device=1, device_bytes=300, worker_pid=pids[3])
    made.record["started"] = busy.record["started"] = 1
    in_memory(controller, "a", pids[1], 300, 0, generation=1)
    round_of(controller)
    assert pids[3] in ended
    assert [*controller._directory.glob("a-inference.*.status")] == [
        controller._directory / f"a-inference.{pids[1]}.status"
    ]
