"""Reports of simulations: a table for people, JSON, Markdown, and pictures."""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from math import isfinite
from pathlib import Path

from rich.table import Table

from benchmarks.simulation.run import Plan, Result
from sie_triton.errors import InputError

# Two lines on a terminal, so that all columns fit.
COLUMNS = (
    *("workers", "load", "rules", "p50 s", "p99 s", "req/s", "busy", "loads\n/1,000", "refused", "late"),
    *("cost\n/1M", "first\nanswer"),
)

# Names of the files of a report.
JSON, MARKDOWN = "simulation.json", "simulation.md"

# Pictures: name of the file, field of the result, and label of its axis.
PICTURES = (
    ("p99", "p99_s", "p99, seconds"),
    ("loads", "loads_per_request", "loads per request"),
    ("cost", "cost_per_million_texts", "cost per million texts"),
)

STYLES = {"ours": "-", "reference": "--"}


def rows_of(results: Sequence[Result]) -> list[list[str]]:
    return [
        [
            f"{each.num_workers:,}",
            f"{each.load:g}",
            each.rules,
            _number(each.p50_s, ".2f"),
            _number(each.p99_s, ".2f"),
            f"{each.requests_per_s:,.0f}",
            f"{each.utilisation:.0%}",
            f"{1000 * each.loads_per_request:.1f}",
            _share(each.num_refused, each.num_requests),
            _share(each.num_late, each.num_requests),
            _number(each.cost_per_million_texts, ",.2f"),
            _number(each.first_answer_s, ".1f"),
        ]
        for each in results
    ]


def table_of(title: str, results: Sequence[Result]) -> Table:
    table = Table(title=title, box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "rules" else "right")
    for row in rows_of(results):
        table.add_row(*row)
    return table


def markdown(plan: Plan, results: Sequence[Result]) -> str:
    head = (
        f"Scenario {plan.scenario}, {plan.num_models} models by Zipf's law, {plan.seconds:g} s, seed {plan.seed}, "
        f"{plan.parameters.texts_of_request} texts a request; a worker has a capacity of "
        f"{plan.parameters.capacity:.2f} requests/s. *load*: offered share of the capacity. *late*: without an answer "
        f"within {plan.parameters.deadline_s:g} s. *loads /1,000*: per 1,000 requests. *cost /1M*: of a million texts, "
        f"at {plan.parameters.price_per_hour:g} for an hour of a machine. *first answer*: in seconds."
    )
    columns = [column.replace("\n", " ") for column in COLUMNS]
    lines = [f"| {' | '.join(row)} |\n" for row in (columns, ["---"] * len(columns), *rows_of(results))]
    return f"# Simulation\n\n{head}\n\n{''.join(lines)}"


def document(plan: Plan, results: Sequence[Result]) -> str:
    """Return all parameters and results as JSON; figures that are not finite are null."""
    found = [
        {
            name: value if not isinstance(value, float) or isfinite(value) else None
            for name, value in asdict(each).items()
        }
        for each in results
    ]
    of_plan = {each.name: getattr(plan, each.name) for each in fields(plan) if each.name != "parameters"}
    return json.dumps({**of_plan, "parameters": asdict(plan.parameters), "results": found}, indent=1)


def write(directory: Path, plan: Plan, results: Sequence[Result]) -> None:
    """Write JSON, Markdown and pictures; InputError if the directory cannot be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / JSON).write_text(document(plan, results) + "\n")
        (directory / MARKDOWN).write_text(markdown(plan, results))
        for name, field, label in PICTURES:
            draw(directory / f"{name}.png", results, field, label)
    except OSError as exc:
        raise InputError(f"--output {directory}: cannot be written ({exc})") from exc


def draw(path: Path, results: Sequence[Result], field: str, label: str) -> None:
    """Draw a field against the offered load, with a line for each number of workers and set of rules that has one."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    lines: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for each in results:
        if isfinite(value := getattr(each, field)):
            lines.setdefault((each.num_workers, each.rules), []).append((each.load, value))
    numbers = sorted({num_workers for num_workers, _ in lines})
    for (num_workers, rules), points in lines.items():
        color, title = f"C{numbers.index(num_workers)}", f"{rules}, {num_workers:,} workers"
        axes.plot(*zip(*sorted(points), strict=True), STYLES[rules], marker="o", color=color, label=title)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    axes.set_xlabel("offered load, share of the capacity")
    axes.set_ylabel(label)
    axes.grid(visible=True, which="both", alpha=0.3)
    if lines:
        axes.legend()
    figure.savefig(path, dpi=110)


def _number(value: float, form: str) -> str:
    return format(value, form) if isfinite(value) else "none"


def _share(number: int, of: int) -> str:
    return f"{number / of:.1%}" if of and number else "0"
