"""Clients that send whatever they like, beside clients that know what they must get."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
import psutil
import pytest

from sie_triton import SIEClient
from sie_triton.bench.ports import ports_of_a_server
from sie_triton.errors import SIEError
from sie_triton.processes.log import MAX_FILE_BYTES
from tests.attack.attacks import ATTACKS, Unanswered
from tests.attack.conftest import COLBERT, CROSS_ENCODER, MINILM, SPLADE, Served, serving
from tests.attack.crowds import crowd
from tests.attack.door_attacks import DOOR_ATTACKS, asked

# A canary's request: answered within this time, through any restart.
DEADLINE_S = 60.0
GRACE_S = 2.0

# tritonserver is killed this often; every model must answer again within BACK_S.
KILL_EVERY_S = 55.0
BACK_S = 15.0

# After a restart the controller may replace what it has seen dead.
SETTLED_S = 3.0

# The door answers a probe within this time, whatever others send.
DEAF_S = 1.0

# What nobody outside may see.
INSIDE = ("Traceback", 'File "', "/sie_triton/", "site-packages")

TEXTS = ["hello vine", "Paris is the capital of France.", "climbing " * 60]


def ask(client: SIEClient, model: str, timeout: float) -> np.ndarray:
    """What a canary knows the answer to."""
    if model == CROSS_ENCODER:
        entries = client.score(model, "who?", TEXTS, timeout=timeout)["scores"]
        return np.array([entry["score"] for entry in sorted(entries, key=lambda entry: entry["item_id"])])
    results = client.encode(model, TEXTS, timeout=timeout)
    if model == SPLADE:
        return np.concatenate([result["sparse"]["values"] for result in results])
    return np.concatenate([np.ravel(result["dense" if model == MINILM else "multivector"]) for result in results])


@dataclass
class Seen:
    """What came of it. `answered`: monotonic times of the canaries' answers, by model."""

    answered: dict[str, list[float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    told: dict[str, int] = field(default_factory=dict)
    leaked: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    deaf_s: float = 0.0  # longest time in which the door did not answer a probe

    def check(self) -> None:
        assert (self.wrong, self.failed, self.late, self.leaked, self.broken) == ([], [], [], [], [])
        assert all(self.answered.values())


def canary(served: Served, model: str, expected: np.ndarray, seen: Seen, stopped: threading.Event) -> None:
    with SIEClient(served.grpc) as client:
        while not stopped.wait(0.2):
            started = time.monotonic()
            try:
                right = np.allclose(ask(client, model, DEADLINE_S), expected, atol=1e-3)
            except SIEError as exc:
                seen.failed.append(f"{model}: {type(exc).__name__}: {exc}")
            else:
                seen.answered[model].append(time.monotonic())
                if not right:
                    seen.wrong.append(model)
            if time.monotonic() - started > DEADLINE_S + GRACE_S:
                seen.late.append(time.monotonic() - started)


def door_canary(served: Served, seen: Seen, stopped: threading.Event) -> None:
    """Probe the door endlessly, each time on a new connection."""
    while not stopped.wait(0.05):
        started = time.monotonic()
        try:
            told = asked(served, "/healthz", b"", method="GET")
        except Unanswered as exc:
            told = str(exc)
        seen.deaf_s = max(seen.deaf_s, time.monotonic() - started)
        if told != "200 ok":
            seen.failed.append(f"the door: {told}")


def attacker(served: Served, seed: int, seen: Seen, stopped: threading.Event) -> None:
    rng = random.Random(seed)
    while not stopped.is_set():
        attack = rng.choice(rng.choice([ATTACKS, DOOR_ATTACKS]))
        try:
            told = attack(rng, served)
        except Unanswered as exc:
            seen.broken.append(f"{attack.__name__} was not answered: {exc}"[:500])
        except Exception as exc:
            seen.broken.append(f"{attack.__name__} broke: {exc!r}"[:500])
        else:
            seen.told[attack.__name__] = seen.told.get(attack.__name__, 0) + 1
            seen.leaked += [told[:500] for inside in INSIDE if inside in told]


@contextmanager
def attacked(served: Served, attackers: int) -> Iterator[Seen]:
    """Attackers at work, and a canary beside them for each model."""
    models, stopped, seen = (MINILM, COLBERT, SPLADE, CROSS_ENCODER), threading.Event(), Seen()
    with SIEClient(served.grpc) as client:
        expected = {model: ask(client, model, DEADLINE_S) for model in models}
    seen.answered = {model: [] for model in models}
    with ThreadPoolExecutor(attackers + len(models) + 1) as pool:
        tasks = [pool.submit(canary, served, model, expected[model], seen, stopped) for model in models]
        tasks.append(pool.submit(door_canary, served, seen, stopped))
        tasks += [pool.submit(attacker, served, seed, seen, stopped) for seed in range(attackers)]
        try:
            yield seen
        finally:
            stopped.set()
        for task in tasks:
            task.result()


def back_after(seen: Seen, since: float, deadline_s: float = BACK_S + 30) -> float:
    """Seconds until every model has answered a canary again."""
    while not all(times and times[-1] > since for times in seen.answered.values()):
        assert time.monotonic() - since < deadline_s, f"not back after {deadline_s} s"
        time.sleep(0.05)
    return max(next(at for at in times if at > since) for times in seen.answered.values()) - since


def fuzz(served: Served, seconds: float, kills: int) -> tuple[Seen, list[float]]:
    """Attack for that long, tritonserver killed so often in between; seconds until each model answered again."""
    back: list[float] = []
    lost: set[int] = set()
    interval = min(KILL_EVERY_S, seconds / (kills + 1))
    with attacked(served, attackers=4) as seen:
        for killing in (*[True] * kills, False):
            time.sleep(SETTLED_S)
            before = served.pids()
            time.sleep(interval - SETTLED_S)
            lost |= before - served.pids()
            if killing:
                killed = time.monotonic()
                served.tritonserver().kill()
                back.append(back_after(seen, killed))
    assert lost == set(), "processes ended that nobody killed"
    return seen, back


@pytest.mark.timeout(240)
def test_a_short_attack_and_one_death_of_tritonserver(served):
    """`-m slow` has the long form."""
    seen, back = fuzz(served, seconds=16, kills=1)
    seen.check()
    assert set(seen.told) <= {attack.__name__ for attack in (*ATTACKS, *DOOR_ATTACKS)}
    assert tracebacks(served) == []
    assert max(back) <= 3 * BACK_S  # on a machine that does other things too


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_minutes_of_attack_and_ten_deaths_of_tritonserver(served):
    seen, back = fuzz(served, seconds=600, kills=10)
    print(f"\nattacks {seen.told}; canaries { ({m: len(t) for m, t in seen.answered.items()}) }")
    print(f"back after {', '.join(f'{seconds:.1f}' for seconds in back)} s; the door was deaf for {seen.deaf_s:.2f} s")
    seen.check()
    assert set(seen.told) == {attack.__name__ for attack in (*ATTACKS, *DOOR_ATTACKS)}
    assert tracebacks(served) == []
    assert max(back) <= BACK_S
    assert seen.deaf_s <= DEAF_S


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_after_ten_minutes_of_attack(served):
    """No process is replaced, and each has returned its memory."""
    with attacked(served, attackers=0) as seen:  # everything is loaded
        time.sleep(5.0)
    before = memory_of(served)
    with attacked(served, attackers=4) as seen:
        time.sleep(600)
    seen.check()
    deadline = time.monotonic() + 60
    while (grown := grown_since(before, served)) and time.monotonic() < deadline:
        time.sleep(1)
    print(f"\nattacks {seen.told}; deaf {seen.deaf_s:.2f} s; before {before}; now {memory_of(served)}")
    assert grown == {}
    assert tracebacks(served) == []
    logs = [path.stat().st_size for path in (served.settings.data_dir / "logs").iterdir()]
    assert max(logs) <= MAX_FILE_BYTES


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_thousands_of_connections_with_1024_descriptors(tmp_path, served):
    """Door and controller answer beside 2,000 idle connections and 2,000 that send a byte a second, to each."""
    given = {"data_dir": tmp_path / "data", **ports_of_a_server()}
    settings = served.settings.model_copy(update=given)
    with serving(settings, max_descriptors=1024) as few, crowd([settings.door_port, settings.controller_port]) as num:
        longest, ports = 0.0, {"door": settings.door_port, "controller": settings.controller_port}
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for name, port in ports.items():
                started = time.monotonic()
                assert asked(few, "/healthz", b"", method="GET", port=port).startswith("200"), name
                longest = max(longest, time.monotonic() - started)
            time.sleep(0.2)
        with SIEClient(few.grpc) as client:  # a cold model gets room
            ask(client, COLBERT, DEADLINE_S)
        print(f"\n{num} connections were made; the slowest answer of door and controller took {longest:.2f} s")
        assert longest <= DEAF_S
        assert all(path.stat().st_size <= MAX_FILE_BYTES for path in (settings.data_dir / "logs").iterdir())


def tracebacks(served: Served) -> list[str]:
    """Logs that contain an unexpected error."""
    logs = [path for path in (served.settings.data_dir / "logs").iterdir() if b"Traceback" in path.read_bytes()]
    return [f"{path.name}: …{path.read_text(errors='replace').partition('Traceback')[2][:1500]}" for path in logs]


def memory_of(served: Served) -> dict[int, int]:
    """Memory of each process in bytes; shared pages count proportionally."""
    found = {}
    for pid in served.pids():
        with suppress(psutil.Error):
            found[pid] = psutil.Process(pid).memory_full_info().pss
    return found


def grown_since(before: dict[int, int], served: Served) -> dict[str, str]:
    now = memory_of(served)
    return {
        " ".join(psutil.Process(pid).cmdline()[-3:]): f"{then >> 20} → {now[pid] >> 20} MiB"
        for pid, then in before.items()
        if now.get(pid, 0) > 1.5 * then
    }
