"""Clients that send whatever they like, beside clients that know what they must get."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from sie_triton import SIEClient
from sie_triton.errors import SIEError
from tests.attack.attacks import ATTACKS, Unanswered
from tests.attack.conftest import COLBERT, CROSS_ENCODER, MINILM, SPLADE, Served

# A canary's request: answered within this time, through any restart.
DEADLINE_S = 60.0
GRACE_S = 2.0

# tritonserver is killed this often; every model must answer again within BACK_S.
KILL_EVERY_S = 55.0
BACK_S = 15.0

# After a restart the controller may replace what it has seen dead.
SETTLED_S = 3.0

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


def attacker(served: Served, seed: int, seen: Seen, stopped: threading.Event) -> None:
    rng = random.Random(seed)
    while not stopped.is_set():
        attack = rng.choice(ATTACKS)
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
    with ThreadPoolExecutor(attackers + len(models)) as pool:
        tasks = [pool.submit(canary, served, model, expected[model], seen, stopped) for model in models]
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
    assert set(seen.told) == {attack.__name__ for attack in ATTACKS}
    assert max(back) <= 3 * BACK_S  # on a machine that does other things too


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_minutes_of_attack_and_ten_deaths_of_tritonserver(served):
    seen, back = fuzz(served, seconds=600, kills=10)
    print(f"\nattacks {seen.told}; canaries { ({m: len(t) for m, t in seen.answered.items()}) }")
    print(f"back after {', '.join(f'{seconds:.1f}' for seconds in back)} s")
    seen.check()
    assert max(back) <= BACK_S
