"""The device that a model is loaded on: the choice alone, at random, and in rounds with two devices of 1,000 bytes."""

from dataclasses import replace
from itertools import pairwise
from time import monotonic_ns

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_triton.controller.choice import Device, Resident, place, victims
from sie_triton.controller.memory import DeviceMemory
from sie_triton.records.grants import answer_path, grant_of
from sie_triton.records.status import LOADING, RESIDENT
from tests.support.controller import round_of, stage

NOW = 100


def resident(name, size, used, since=0, busy=False):
    return Resident(name, size, used, since, busy)


def chosen(wanted, *devices, min_residency_ns=0):
    named = [replace(device, name=str(number)) for number, device in enumerate(devices)]
    return place(named, wanted, now_ns=NOW, min_residency_ns=min_residency_ns).name


def device(free, *residents, most=10, **more):
    return Device("", free, most, residents, **more)


@pytest.mark.parametrize(
    ("wanted", "devices", "expected"),
    [
        # one with room
        (3, [device(2), device(3)], "1"),
        (3, [device(2, resident("old", 9, 1)), device(3, num_busy=9)], "1"),
        # of several with room: the fewest busy models, then the most room, then the first
        (3, [device(9, num_busy=2), device(3, num_busy=1)], "1"),
        (3, [device(4), device(5)], "1"),
        (3, [device(5), device(5)], "0"),
        # room that evictions in progress make, unless an earlier load waits for it
        (3, [device(0, resident("old", 3, 1)), device(0, resident("new", 3, 2), coming=3)], "1"),
        (3, [device(0, resident("old", 3, 1)), device(0, resident("new", 3, 2), coming=-3)], "0"),
        (3, [device(3), device(0, coming=9)], "0"),
        # the victims that were used longest ago, idle before busy, however many they are
        (3, [device(0, resident("new", 3, 2)), device(0, resident("old", 3, 1))], "1"),
        (3, [device(0, resident("old", 3, 1, busy=True)), device(0, resident("new", 3, 2))], "1"),
        (4, [device(0, resident("new", 4, 9)), device(0, resident("a", 2, 1), resident("b", 2, 8))], "1"),
        (4, [device(0, resident("a", 2, 1), resident("b", 2, 9)), device(0, resident("new", 4, 8))], "1"),
        # the fewest missing bytes, if no victims are enough
        (5, [device(1, resident("old", 2, 1)), device(0, resident("new", 4, 2))], "1"),
        # one that could hold it, however little is missing elsewhere
        (8, [device(4, resident("old", 3, 1), most=7), device(0, resident("new", 3, 2), most=9)], "1"),
        (8, [device(6, most=6), device(7, most=7)], "1"),
    ],
)
def test_the_device_of_a_load(wanted, devices, expected):
    assert chosen(wanted, *devices) == expected


def test_a_device_whose_models_are_too_new_is_no_place():
    devices = device(0, resident("old", 3, 1, since=98)), device(0, resident("new", 3, 2, since=0))
    assert chosen(3, *devices, min_residency_ns=50) == "1"
    assert chosen(3, replace(devices[0], is_critical=True), devices[1], min_residency_ns=50) == "0"


# --- a server of devices, simulated


MIN_RESIDENCY = 5


class Server:
    """Devices that load one model after another, as the controller's rounds do."""

    def __init__(self, sizes):
        self.sizes = sizes
        self.places = [{} for _ in sizes]  # by name: resident

    def devices(self):
        for number, (size, models) in enumerate(zip(self.sizes, self.places, strict=True)):
            used = sum(each.num_bytes for each in models.values())
            yield Device(str(number), size - used, size, [*models.values()])

    def use(self, name, size, now):
        """Return the names of the victims; None if the model cannot be loaded now."""
        for models in self.places:
            if name in models:
                models[name] = replace(models[name], last_used_ns=now)
                return []
        devices = [*self.devices()]
        best = place(devices, size, now_ns=now, min_residency_ns=MIN_RESIDENCY)
        leaving = victims(best.residents, size - best.free, now_ns=now, min_residency_ns=MIN_RESIDENCY)
        models = self.places[int(best.name)]
        if best.free + sum(models[each].num_bytes for each in leaving) < size:
            return None
        for each in leaving:
            assert now - models.pop(each).resident_since_ns >= MIN_RESIDENCY
        models[name] = Resident(name, size, now, now)
        return leaving


SIZES = st.lists(st.integers(1, 9), min_size=2, max_size=8)
CALLS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4)), max_size=60)


@given(st.lists(st.integers(4, 20), min_size=1, max_size=4), SIZES, CALLS)
def test_no_device_is_granted_more_than_it_has(sizes, models, calls):
    """Nothing is evicted while there is room elsewhere, nor is a model that was just loaded; a load fails only if no
    device can make room.
    """
    server, now = Server(sizes), 0
    for number, pause in calls:
        now += pause
        name, size = str(number % len(models)), models[number % len(models)]
        before = [*server.devices()]
        leaving = server.use(name, size, now)
        assert all(each.free >= 0 for each in server.devices())
        if leaving:
            assert all(each.free < size for each in before)
        if leaving is None:
            movable = [
                each.free + sum(r.num_bytes for r in each.residents if now - r.resident_since_ns >= MIN_RESIDENCY)
                for each in before
            ]
            assert max(movable) < size


@given(st.lists(st.integers(1, 4), max_size=60))
def test_two_models_never_evict_each_other_in_turns(pauses):
    """Where each has a device, nothing is evicted; on one device, each stays for its minimum residency."""
    for sizes in ([5, 5], [5]):
        server, now, times = Server(sizes), 0, []
        for turn, pause in enumerate(pauses):
            now += pause
            times += [now] if server.use("ab"[turn % 2], 5, now) else []
        assert not times or len(sizes) == 1
        assert all(later - earlier >= MIN_RESIDENCY for earlier, later in pairwise(times))


# --- whole rounds


@pytest.fixture
def gpus(controller, tmp_path):
    """The controller of two GPUs of 1,000 bytes, of which 850 may be used; gives their used bytes, to be set.

    A negative number is that of a GPU that is lost.
    """
    used = {"cuda:0": 0, "cuda:1": 0}

    class Gpu:
        def __init__(self, device):
            self.device = device

        def measure(self, *_):
            return DeviceMemory(abs(used[self.device]), 1000, "test", is_lost=used[self.device] < 0)

    controller._meters = {device: Gpu(device) for device in used}
    return used


def loading(controller, name, pid, wanted, waited_s=0, **fields):
    since = monotonic_ns() - waited_s * 10**9
    return stage(controller, name, pid, state=LOADING, wanted_bytes=wanted, wanted_since_ns=since, **fields)


def in_memory(controller, name, pid, size, number, **fields):
    fields = {"worker_pid": pid, "device_bytes": size, "device": number, **fields}
    return stage(controller, name, pid, state=RESIDENT, **fields)


def verdict(controller, pid):
    path = answer_path(controller._directory, pid)
    return path.read_text() if path.exists() else None


def test_loads_are_spread_over_the_devices_and_each_grant_counts_on_its_own(controller, gpus, pids):
    """850 bytes may be used of each; a grant counts before the stage has seen it, and while it loads."""
    for name, pid, seconds in zip("abcd", pids, (4, 3, 2, 1), strict=True):
        loading(controller, name, pid, 600 if name in "ab" else 250, seconds)
    for _ in range(2):
        round_of(controller)
    on = [verdict(controller, pid) for pid in pids]
    assert on == [grant_of(each) for each in ("cuda:0", "cuda:1", "cuda:0", "cuda:1")]


def test_a_granted_load_reserves_memory_on_its_device_only(controller, gpus, pids):
    stage(controller, "a", pids[0], state=LOADING, granted_bytes=600, device=1)
    loading(controller, "b", pids[1], 300, waited_s=2)
    loading(controller, "c", pids[2], 600, waited_s=1)
    round_of(controller)
    assert verdict(controller, pids[1]) == grant_of("cuda:0")
    assert verdict(controller, pids[2]) is None


def test_an_eviction_on_one_device_leaves_the_models_of_the_other(controller, control, gpus, pids):
    gpus.update({"cuda:0": 800, "cuda:1": 800})
    in_memory(controller, "old", pids[0], 800, 1, last_used_ns=1)
    in_memory(controller, "new", pids[1], 800, 0, last_used_ns=2)
    loading(controller, "c", pids[2], 400)
    round_of(controller)
    assert control.swapped == [("old-inference", False)]
    assert verdict(controller, pids[2]) is None
    gpus["cuda:1"] = 0
    round_of(controller)
    assert verdict(controller, pids[2]) == grant_of("cuda:1")


def test_room_is_made_on_two_devices_at_once(controller, control, gpus, pids):
    """A second load does not wait for the room that the first one gets, nor take it."""
    gpus.update({"cuda:0": 800, "cuda:1": 800})
    in_memory(controller, "a", pids[0], 800, 0, last_used_ns=1)
    in_memory(controller, "b", pids[1], 800, 1, last_used_ns=2)
    loading(controller, "c", pids[2], 700, waited_s=2)
    loading(controller, "d", pids[3], 700, waited_s=1)
    control.may_end.clear()
    for _ in range(2):
        controller.tick()
    assert controller.swaps.counts == {("a", "evict: room for another"): 1, ("b", "evict: room for another"): 1}
    control.may_end.set()


def test_a_load_that_waits_too_long_closes_its_own_device_only(controller, control, gpus, pids):
    gpus.update({"cuda:0": 700, "cuda:1": 850})
    in_memory(controller, "a", pids[0], 700, 0, last_used_ns=1)
    in_memory(controller, "b", pids[1], 850, 1, last_used_ns=2)
    loading(controller, "large", pids[2], 800, waited_s=20)
    loading(controller, "small", pids[3], 100, waited_s=1)
    control.may_end.clear()
    controller.tick()
    assert controller.swaps.counts == {("a", "evict: room for another"): 1}
    assert verdict(controller, pids[3]) is None  # it would fit beside a; b does not leave for it
    gpus["cuda:1"] = 650
    controller.tick()
    assert verdict(controller, pids[3]) == grant_of("cuda:1")
    control.may_end.set()


def test_pressure_on_one_device_evicts_there(controller, control, gpus, pids):
    gpus["cuda:1"] = 900
    in_memory(controller, "old", pids[0], 400, 0, last_used_ns=1)
    in_memory(controller, "new", pids[1], 400, 1, last_used_ns=2)
    round_of(controller)
    assert controller.swaps.counts == {("new", "evict: pressure"): 1}


def test_a_draining_worker_counts_on_the_device_that_it_is_on(controller, control, gpus, pids):
    """Its memory is about to be free there, where the model itself has moved to the other device."""
    gpus.update({"cuda:0": 800, "cuda:1": 800})
    draining = in_memory(controller, "a", pids[0], 400, 0, num_open=1)
    draining.record["last_used_ns"] = 1
    in_memory(controller, "a", pids[1], 400, 1, generation=1, last_used_ns=5)
    in_memory(controller, "b", pids[2], 400, 0, last_used_ns=2)
    loading(controller, "c", pids[3], 450)
    round_of(controller)
    assert control.swapped == []
    gpus["cuda:0"] = 400
    round_of(controller)
    assert verdict(controller, pids[3]) == grant_of("cuda:0")


def test_a_lost_device_is_no_place_and_nothing_leaves_it(controller, control, gpus, pids):
    """One load would fit there; the other waits until it is back, because no device is left."""
    gpus.update({"cuda:0": 700, "cuda:1": -900})
    in_memory(controller, "a", pids[0], 900, 1, last_used_ns=1)
    in_memory(controller, "b", pids[1], 700, 0, last_used_ns=2)
    loading(controller, "c", pids[2], 100, waited_s=2)
    round_of(controller)
    assert verdict(controller, pids[2]) == grant_of("cuda:0")
    assert control.swapped == []
    gpus["cuda:0"] = -700
    loading(controller, "d", pids[3], 100, waited_s=1000)
    round_of(controller)
    assert verdict(controller, pids[3]) is None
    gpus["cuda:0"] = 600
    round_of(controller)
    assert verdict(controller, pids[3]) == grant_of("cuda:0")
    assert control.swapped == []


def test_a_model_that_no_device_could_hold_is_refused(controller, gpus, pids):
    loading(controller, "huge", pids[0], 1700)
    round_of(controller)
    assert verdict(controller, pids[0]).startswith("too large\n")


def test_the_controller_names_the_device_of_a_model_in_memory(controller, gpus, pids):
    in_memory(controller, "a", pids[0], 400, 1)
    stage(controller, "cold", pids[1])
    round_of(controller)
    assert {name: controller.device_of(model.record) for name, model in controller.models.items()} == {
        "a": "cuda:1",
        "cold": None,
    }
