"""Hostile clients beside clients whose correct responses are known."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgpack
import numpy as np
import psutil
import pytest

from sie_triton import SIEClient
from sie_triton.errors import SIEError
from sie_triton.records.status import all_records
from sie_triton.system.processes.limits import ProcessLimits
from tests.attack.attacks import ATTACKS, Unanswered
from tests.attack.conftest import CLAP, CLIP, COLBERT, CROSS_ENCODER, GLINER, MINILM, MODELS, SPLADE, Served
from tests.attack.door_attacks import DOOR_ATTACKS, MSGPACK, asked
from tests.attack.probes import Probes, probed
from tests.support import pictures, sounds

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

VERBS = {CROSS_ENCODER: "score", GLINER: "extract"}
FIELDS = {CROSS_ENCODER: {"query": {"text": "why?"}}, GLINER: {"params": {"labels": ["plant"]}}}

# Canaries ask these, so they stay in memory. Another model may leave it, and free its tokenizer, when it is idle.
CANARIES = (MINILM, COLBERT, SPLADE, CROSS_ENCODER)

TEXTS = ["hello vine", "Paris is the capital of France.", "climbing " * 60]


def ask(client: SIEClient, model: str, timeout: float) -> np.ndarray:
    """Return a model's response to a canary, for which the correct value is known."""
    if model == CROSS_ENCODER:
        entries = client.score(model, "who?", TEXTS, timeout=timeout)["scores"]
        return np.array([entry["score"] for entry in sorted(entries, key=lambda entry: entry["item_id"])])
    results = client.encode(model, TEXTS, timeout=timeout)
    if model == SPLADE:
        return np.concatenate([result["sparse"]["values"] for result in results])
    return np.concatenate([np.ravel(result["dense" if model == MINILM else "multivector"]) for result in results])


@dataclass
class Seen:
    """Results of an attack. `answered`: monotonic times of the canaries' responses, by model."""

    answered: dict[str, list[float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    told: dict[str, int] = field(default_factory=dict)
    leaked: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    door: Probes = field(default_factory=Probes)

    def check(self) -> None:
        assert (self.wrong, self.failed, self.late, self.leaked, self.broken) == ([], [], [], [], [])
        assert self.door.failed == []
        assert self.door.num_answered
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
    stopped, seen = threading.Event(), Seen()
    with SIEClient(served.grpc) as client:
        expected = {model: ask(client, model, DEADLINE_S) for model in CANARIES}
    seen.answered = {model: [] for model in CANARIES}
    with probed([served.settings.door_port]) as seen.door, ThreadPoolExecutor(attackers + len(CANARIES)) as pool:
        tasks = [pool.submit(canary, served, model, expected[model], seen, stopped) for model in CANARIES]
        tasks += [pool.submit(attacker, served, seed, seen, stopped) for seed in range(attackers)]
        try:
            yield seen
        finally:
            stopped.set()
        for task in tasks:
            task.result()


def back_after(seen: Seen, since: float, deadline_s: float = BACK_S + 30) -> float:
    """Return the seconds until every model has answered a canary again."""
    while not all(times and times[-1] > since for times in seen.answered.values()):
        assert time.monotonic() - since < deadline_s, f"not back after {deadline_s} s"
        time.sleep(0.05)
    return max(next(at for at in times if at > since) for times in seen.answered.values()) - since


def fuzz(served: Served, seconds: float, kills: int) -> tuple[Seen, list[float]]:
    """Attack with `kills` deaths of tritonserver; return the results, and each recovery time in seconds."""
    back: list[float] = []
    lost: set[int] = set()
    interval = min(KILL_EVERY_S, seconds / (kills + 1))
    with attacked(served, attackers=4) as seen:
        for killing in (*[True] * kills, False):
            time.sleep(SETTLED_S)
            before = served.pids(CANARIES)
            time.sleep(interval - SETTLED_S)
            lost |= before - served.pids(CANARIES)
            if killing:
                killed = time.monotonic()
                served.tritonserver().kill()
                back.append(back_after(seen, killed))
    assert lost == set(), "processes ended that nobody killed"
    return seen, back


@pytest.mark.timeout(240)
def test_a_short_attack_and_a_tritonserver_crash_do_no_harm(served):
    """`-m slow` has the long form."""
    seen, back = fuzz(served, seconds=10, kills=1)
    seen.check()
    assert set(seen.told) <= {attack.__name__ for attack in (*ATTACKS, *DOOR_ATTACKS)}
    assert tracebacks(served) == []
    assert max(back) <= 3 * BACK_S  # on a machine that does other things too


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_minutes_of_attack_and_ten_deaths_of_tritonserver(served):
    seen, back = fuzz(served, seconds=600, kills=10)
    print(f"\nattacks {seen.told}; canaries { ({m: len(t) for m, t in seen.answered.items()}) }")
    print(f"back after {', '.join(f'{seconds:.1f}' for seconds in back)} s; deaf for {seen.door.longest_s:.2f} s")
    seen.check()
    assert set(seen.told) == {attack.__name__ for attack in (*ATTACKS, *DOOR_ATTACKS)}
    assert tracebacks(served) == []
    assert max(back) <= BACK_S
    assert seen.door.longest_s <= DEAF_S


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_after_ten_minutes_of_attack(served):
    """No process is replaced, and each has returned its memory a minute later."""
    use_every_model(served)
    before = memory_of(served)
    with attacked(served, attackers=4) as seen:
        time.sleep(600)
    print(f"\nattacks {seen.told}; the door was deaf for {seen.door.longest_s:.2f} s")
    grown = grown_after_a_minute(served, before)
    for pid, then in sorted(before.items(), key=lambda each: -each[1]):
        print(f"{named(served, pid):60} {then >> 20:5} → {memory_of(served).get(pid, 0) >> 20:5} MiB")
    print(f"shared memory of all stages: {shared_memory(served) >> 20} MiB")
    seen.check()
    assert grown == {}
    assert tracebacks(served) == []
    assert seen.door.longest_s <= DEAF_S
    logs = [path.stat().st_size for path in (served.settings.data_dir / "logs").iterdir()]
    assert max(logs) <= ProcessLimits.max_file_bytes


def tracebacks(served: Served) -> list[str]:
    """Logs that contain an unexpected error."""
    logs = [path for path in (served.settings.data_dir / "logs").iterdir() if b"Traceback" in path.read_bytes()]
    return [f"{path.name}: …{path.read_text(errors='replace').partition('Traceback')[2][:1500]}" for path in logs]


def use_every_model(served: Served) -> None:
    """Load each model and have it compute a full batch, through the door."""
    items = {CLIP: {"image": {"data": pictures.pictures()[0]}}, CLAP: {"audio": {"data": sounds.sounds()[0]}}}
    for model in MODELS:
        path = f"/v1/{VERBS.get(model, 'encode')}/{model}"
        body = {"items": [items.get(model, {"text": "how do vines climb? " * 30})] * 64, **FIELDS.get(model, {})}
        told = asked(served, path, msgpack.packb(body), Content_Type=MSGPACK)
        assert told.startswith("200 "), told


def memory_of(served: Served) -> dict[int, int]:
    """Resident memory of each process in bytes, without the shared memory of Triton's stages."""
    return {pid: own_memory(pid) for pid in served.pids()}


def own_memory(pid: int) -> int:
    """Anonymous and file pages of a process in bytes; 0 if there is none."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return (
            sum(int(line.split()[1]) for line in status.splitlines() if line.startswith(("RssAnon", "RssFile"))) * 1024
        )
    return 0


def shared_memory(served: Served) -> int:
    return sum(path.stat().st_blocks * 512 for path in Path("/dev/shm").glob(f"sie_{served.process.pid}_*"))


def named(served: Served, pid: int) -> str:
    """Name of the process `pid`: its model and stage where it has them, else its command."""
    for stage, models in all_records(served.settings.status_dir).items():
        for model, records in models.items():
            for record in records:
                if pid in (record["pid"], record["worker_pid"]):
                    return f"{stage} {model}{' worker' if pid == record['worker_pid'] else ''}"
    program, *arguments = psutil.Process(pid).cmdline()
    return " ".join([Path(program).name, *arguments])[:60]


def grown_after_a_minute(served: Served, before: dict[int, int]) -> dict[str, str]:
    """Return the processes that exceed 1.5 times their memory before for the whole minute."""
    deadline = time.monotonic() + 60
    while True:
        now = memory_of(served)
        grown = {pid: then for pid, then in before.items() if now.get(pid, 0) > 1.5 * then}
        if not grown or time.monotonic() > deadline:
            return {named(served, pid): f"{then >> 20} → {now[pid] >> 20} MiB" for pid, then in grown.items()}
        time.sleep(1)
