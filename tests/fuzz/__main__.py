"""Fuzz everything that reads bytes or structures from outside, in process, each target in a child of its own."""

import json
import pickle
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from benchmarks.tables import markdown_table, print_table
from tests.fuzz.finding import Finding
from tests.fuzz.hunt import Hunt
from tests.fuzz.runner import ROOT, HarnessError, Outcome, fuzzed
from tests.fuzz.target import target_named
from tests.fuzz.targets import TARGETS

# Where cases are kept that found something.
KEPT = ROOT / "build" / "fuzz"

HEAD = ("target", "cases", "seconds", "cases/s", "found")


@click.command()
@click.option("--cases", default=1000, show_default=True, help="cases of each target")
@click.option("--seed", default=0, show_default=True, help="chooses the cases; each seed has others")
@click.option("--target", "names", multiple=True, type=click.Choice([*TARGETS]), help="only this one; may be repeated")
@click.option("--jobs", default=1, show_default=True, help="targets at a time, each in a process")
@click.option("--hang", default=20.0, show_default=True, help="seconds after which a case counts as a hang")
@click.option("--repeat", type=click.Path(exists=True, path_type=Path), help="run this case alone, of one --target")
@click.option("--output", type=click.Path(path_type=Path), help="also write the report to this Markdown file")
def main(
    cases: int, seed: int, names: tuple[str, ...], jobs: int, hang: float, repeat: Path | None, output: Path | None
) -> None:
    """Give readers valid inputs with a few things changed: requests, files, models, messages, records.

    A finding is an input for which a reader crashes, hangs, takes too much memory, raises anything but the errors that
    blame the input, logs an exception, or answers a client's mistake with a status from 500 on. Hypothesis makes the
    input as small as it can. Exit status 1 if anything is found. The last line is one JSON document.

    \b
    scripts/fuzz                                             a few minutes
    scripts/fuzz --cases 25000 --jobs 2 --output FILE        all night
    scripts/fuzz --target images --target pdf --seed 7
    scripts/fuzz --target images --repeat build/fuzz/images-0
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that children end, too
    if repeat is not None:
        again(names, repeat)
        return
    outcomes = all_fuzzed(names or tuple(TARGETS), cases, seed, jobs, hang)
    rows = [row_of(each) for each in outcomes]
    print_table("Fuzzing", HEAD, rows)
    details = [text for each in outcomes for text in described(each, seed)]
    click.echo("\n".join(details))
    command = f"scripts/fuzz --cases {cases} --seed {seed}{''.join(f' --target {name}' for name in names)}"
    if output is not None:
        output.write_text(f"# Fuzzing\n\nPrinted by `{command}`.\n\n{markdown_table(HEAD, rows)}" + "\n".join(details))
    click.echo(json.dumps(report(outcomes)))
    if details:
        raise SystemExit(1)


def all_fuzzed(names: Sequence[str], cases: int, seed: int, jobs: int, hang_s: float) -> list[Outcome]:
    """Fuzz several targets, some at a time; return their outcomes in order."""
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    with scratch() as root, Progress(*columns, console=Console(stderr=True)) as progress:
        tasks = {name: progress.add_task(name, total=cases) for name in names}

        def run(name: str) -> Outcome:
            seen = lambda number: progress.update(tasks[name], completed=number)  # noqa: E731
            try:
                found = fuzzed(name, TARGETS[name], root / name, cases, seed, hang_s, seen)
            except HarnessError as exc:  # the others go on
                found = Outcome(name, 0, 0.0, [Finding("outside of its cases", str(exc), pickle.dumps(None))])
            progress.update(tasks[name], completed=cases, description=f"{name}: {len(found.findings)} found")
            return found

        with ThreadPoolExecutor(jobs) as threads:
            return list(threads.map(run, names))


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a directory that is removed at the end; in memory, if there is such a file system."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="sie-fuzz-", dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


def row_of(outcome: Outcome) -> list[str]:
    speed = outcome.num_cases / max(outcome.seconds, 1e-9)
    numbers = (f"{outcome.num_cases:,}", f"{outcome.seconds:.0f}", f"{speed:.0f}", str(len(outcome.findings)))
    return [outcome.name, *numbers]


def described(outcome: Outcome, seed: int) -> Iterator[str]:
    """Keep the inputs of findings, and yield a paragraph for each."""
    for number, finding in enumerate(outcome.findings):
        KEPT.mkdir(parents=True, exist_ok=True)
        path = KEPT / f"{outcome.name}-{number}"
        path.write_bytes(finding.case)
        yield (
            f"\n## {outcome.name}: {finding.place}\n\nseed {seed}; again: "
            f"scripts/fuzz --target {outcome.name} --repeat {path}\n\n    {finding.shown}\n\n"
            + "".join(f"    {line}\n" for line in finding.text.splitlines())
        )


def report(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "cases": sum(each.num_cases for each in outcomes),
        "seconds": round(sum(each.seconds for each in outcomes), 1),
        "found": sum(len(each.findings) for each in outcomes),
        "targets": {
            each.name: {
                "cases": each.num_cases,
                "seconds": round(each.seconds, 1),
                "found": [finding.place for finding in each.findings],
            }
            for each in outcomes
        },
    }


def again(names: Sequence[str], path: Path) -> None:
    """Run one case in this process; exit status 1 with the traceback if it still finds something."""
    if len(names) != 1:
        raise click.UsageError("--repeat needs one --target")
    case = pickle.loads(path.read_bytes())
    root = Path(tempfile.mkdtemp(prefix="sie-fuzz-"))
    try:
        (root / "one").mkdir()
        with target_named(TARGETS[names[0]])(root / "one") as target:
            hunt = Hunt(target, set())
            with hunt.listening():
                hunt.check(case)
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
    finally:
        shutil.rmtree(root)
    click.echo("nothing is found any more")


if __name__ == "__main__":
    main()
