"""The tables at the end, and the one document after them."""

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from sie_triton.bench.gpu_check.runner import Report
from sie_triton.bench.gpu_check.scope import Plan

# Of each table: title, columns, and how an entry becomes rows.
MB = 1e6


def show(report: Report) -> None:
    """A table for each section that has entries."""
    console = Console(width=160)
    for section, (title, columns, rows) in TABLES.items():
        entries = report.sections.get(section, [])
        table = Table(title=title)
        for column in columns:
            table.add_column(column, overflow="fold")
        for entry in entries:
            for row in rows(entry):
                table.add_row(*row)
        if entries:
            console.print(table)
    for part, error in report.failed.items():
        console.print(f"{part}: {error}", style="red", markup=False)
    for part in report.skipped:
        console.print(f"{part}: skipped", style="yellow", markup=False)


def document(report: Report, plan: Plan) -> str:
    """One line of JSON."""
    comparisons = report.comparisons
    counts = {"made": len(comparisons), "passed": sum(entry["passed"] for entry in comparisons)}
    head = {"device": plan.device, "dry_run": plan.is_dry, "holds": report.holds, "comparisons_count": counts}
    head |= {"processes": report.method, "fork_failed": report.fork_failed}
    return json.dumps(head | {"failed": report.failed, "skipped": report.skipped} | report.sections)


def _comparison(entry: dict[str, Any]) -> list[list[str]]:
    measured = [f"{entry['error']:.1e}", f"{entry['cosine']:.6f}"] if entry["error"] is not None else ["", ""]
    kernel = f"{entry['kernel']} (wrong on purpose)" if entry["is_control"] else entry["kernel"]
    verdict = "ok" if entry["passed"] else "FAILED"
    return [[entry["architecture"], entry["dtype"], kernel, measured[0], f"{entry['limit']:.1e}", measured[1], verdict]]


def _speed(entry: dict[str, Any]) -> list[list[str]]:
    rates, shares = entry["tokens_per_s"], entry["share_of_peak"]
    return [
        [
            entry["model"],
            entry["lengths"],
            entry["precision"],
            subject,
            f"{rate:.0f}",
            f"{100 * shares[subject]:.1f} %",
            f"{rates['packed'] / rate:.2f} x",
        ]
        for subject, rate in rates.items()
    ]


def _latency(entry: dict[str, Any]) -> list[list[str]]:
    times = {subject: ms for subject, ms in entry.items() if subject not in ("model", "tokens")}
    return [[entry["model"], str(entry["tokens"]), subject, f"{ms:.2f}"] for subject, ms in times.items()]


def _memory(entry: dict[str, Any]) -> list[list[str]]:
    ours = {"weights (ours)": entry["weights_bytes"], "device (ours)": entry["device_bytes"]}
    rows = [[entry["model"], name, "", f"{size / MB:.0f}"] for name, size in ours.items()]
    before, after = entry["before"], entry["after"]
    return rows + [
        [entry["model"], name, f"{before.get(name, 0) / MB:.0f}", f"{after[name] / MB:.0f}"] for name in after
    ]


def _server(entry: dict[str, Any]) -> list[list[str]]:
    return [[name, str(value)] for name, value in entry.items()]


TABLES: dict[str, tuple[str, list[str], Any]] = {
    "comparisons": (
        "Token states beside the library's eager attention in float32, the worst token",
        ["architecture", "format", "computed by", "off by", "limit", "cosine", ""],
        _comparison,
    ),
    "speed": (
        "Forward passes in process, medians",
        ["model", "items", "format", "", "tokens/s", "of the matrix-product peak", "packed beside it"],
        _speed,
    ),
    "latency": ("One query alone, medians", ["model", "tokens", "", "ms"], _latency),
    "memory": ("Memory before and after loading, MB", ["model", "whose account", "before", "after"], _memory),
    "server": ("The whole server", ["", ""], _server),
}
