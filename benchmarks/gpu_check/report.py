"""Output of the results: tables on the terminal, a Markdown document, and one line of JSON."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from benchmarks.gpu_check.runner import Report
from benchmarks.gpu_check.scope import Plan

Cells = list[list[str]]


class Table(NamedTuple):
    """A table of the report; `columns`: key of a row → heading. Other keys of a row appear only in the JSON."""

    title: str
    columns: Mapping[str, str]


COMPARED = {"dtype": "format", "error": "error", "limit": "limit", "passed": ""}

TABLES: Mapping[str, Table] = {
    "machine": Table("Machine", {"what": "", "value": ""}),
    "kernels": Table(
        "Kernels that can run", {"kernel": "kernel", "float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}
    ),
    "fork": Table(
        "CUDA in a forked process, after the imports of a fork server",
        {
            "flash_attn": "flash-attn",
            "variable": "PYTORCH_NVML_BASED_CUDA_CHECK",
            "calls": "calls of is_available",
            "child": "the forked process",
            "passed": "",
        },
    ),
    "kernel_fidelity": Table(
        "Attention kernels compared with eager attention in float32, the worst case of each head size",
        {"kernel": "kernel", "head_size": "head size", "cases": "cases", "worst": "worst case", **COMPARED},
    ),
    "model_fidelity": Table(
        "Token states compared with transformers' eager attention in float32, the worst token",
        {"model": "model", "kernel": "computed by", **COMPARED},
    ),
    "graphs": Table("CUDA graphs while passes run", {"what": "", "detail": "", "passed": ""}),
    "speed": Table(
        "Forward passes in this process",
        {
            "model": "model",
            "dtype": "format",
            "subject": "computed by",
            "lanes": "lanes",
            "tokens_per_s": "tokens/s",
            "share_of_peak": "% of the matrix-product peak",
            "idle": "GPU idle, % (profiler)",
            "nvml_busy": "GPU busy, % (NVML)",
            "raised": "failed with",
        },
    ),
    "workers": Table(
        "Worker processes; memory in MB",
        {
            "model": "model",
            "start": "start",
            "load_s": "load, s",
            "calibration_s": "of which calibration",
            "sub_batch_cost": "sub-batch",
            "estimated": "estimate",
            "reported": "by the worker",
            "driver": "by the driver",
            "controller": "by the controller",
            "freed_ms": "free after kill -9, ms",
            "passed": "",
        },
    ),
    "lanes": Table(
        "Passes through a worker process",
        {
            "model": "model",
            "lanes": "lanes",
            "query_ms": "one query, ms",
            "tokens_per_s": "tokens/s",
            "cosine": "cosine",
            "passed": "",
        },
    ),
    "faults": Table(
        "Faults of a worker",
        {"fault": "fault", "told": "response", "then": "next response", "seconds": "until it, s", "passed": ""},
    ),
    "query": Table(
        "Latency of one query and of small batches, medians",
        {"model": "model", "tokens": "tokens", "subject": "computed by", "ms": "ms"},
    ),
    "server": Table("One client of the whole server", {"what": "", "value": "", "passed": ""}),
    "residency": Table("More models than memory", {"what": "", "value": "", "passed": ""}),
    "rivals": Table(
        "The server beside others, texts of 20 to 60 tokens, medians of rounds in which they take turns",
        {
            "model": "model",
            "load": "clients x texts",
            "subject": "computed by",
            "texts_per_s": "texts/s",
            "p50_ms": "p50, ms",
            "p99_ms": "p99, ms",
            "busy": "step computes, share of the time",
            "ours": "server ÷ it, texts/s",
            "passed": "",
        },
    ),
    "steps": Table(
        "Where a request's time goes beside that load: medians of the slower half of one more client's requests, in ms",
        {
            "model": "model",
            "load": "clients x texts",
            "subject": "computed by",
            "preprocess": "preprocess",
            "queue": "wait, model busy",
            "batch_wait": "wait, model idle",
            "inference": "inference",
            "postprocess": "postprocess",
            "total": "in all",
        },
    ),
    "notes": Table("Left out", {"note": ""}),
}


def show(report: Report) -> None:
    """Print all tables, with rich if it is installed, else as plain text."""
    for table, cells in tables_of(report):
        print()
        _show_table(table, cells)
    print(flush=True)


def document(report: Report, plan: Plan) -> str:
    """Return the report as one line of JSON."""
    checks = report.checks
    counts = {"made": len(checks), "passed": sum(row["passed"] for row in checks)}
    head = {"device": plan.device, "dry_run": plan.is_dry, "holds": report.holds, "checks": counts}
    head |= {"processes": report.method, "fork_failed": report.fork_failed}
    return json.dumps(
        head | {"failed": report.failed, "skipped": report.skipped, "cut_off": report.cut_off} | report.tables
    )


def markdown(report: Report, plan: Plan, command: str) -> str:
    """Return the report as a Markdown document."""
    checks, machine = report.checks, {row["what"]: row["value"] for row in report.tables.get("machine", [])}
    where = f"{machine.get('device', plan.device)}{', dry run' if plan.is_dry else ''}"
    verdict = "The check passed" if report.holds else "The check failed"
    passed = f"{sum(row['passed'] for row in checks)} of {len(checks)} checks passed"
    made = f"Generated on {datetime.now(UTC):%Y-%m-%d} by `{command}`. {verdict}: {passed}."
    lines = [f"# GPU check: {where}", "", made]
    if report.fork_failed:
        lines += ["", f"A forked process could not use the GPU: {report.fork_failed}"]
    for table, cells in tables_of(report):
        heading = list(table.columns.values())
        lines += ["", f"## {table.title}", "", _markdown_row(heading), "|---" * len(heading) + "|"]
        lines += map(_markdown_row, cells)
    return "\n".join(lines) + "\n"


def tables_of(report: Report) -> Iterator[tuple[Table, Cells]]:
    """Yield every table that has rows, then the parts that did not finish."""
    for name, table in TABLES.items():
        rows = report.tables.get(name, [])
        shown = {
            key: heading for key, heading in table.columns.items() if any(row.get(key) is not None for row in rows)
        }
        if rows:
            yield Table(table.title, shown), [[_cell(key, row.get(key)) for key in shown] for row in rows]
    endings = {"failed": report.failed, "skipped": report.skipped, "cut off": report.cut_off}
    cells = [[part, how, reason] for how, parts in endings.items() for part, reason in parts.items()]
    if cells:
        yield Table("Parts that did not finish", {"part": "part", "how": "", "reason": "reason"}), cells


def _cell(key: str, value: Any) -> str:
    """
    >>> [_cell("ms", 0.01234), _cell("ms", 12345.6), _cell("passed", False), _cell("idle", None)]
    ['0.0123', '12346', 'FAILED', '']
    """
    if value is None:
        return ""
    if key == "passed":
        return "ok" if value else "FAILED"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _show_table(table: Table, cells: Cells) -> None:
    headings = list(table.columns.values())
    try:
        from rich.console import Console
        from rich.table import Table as RichTable
    except ModuleNotFoundError:
        print(plain(table.title, headings, cells))
        return
    drawn = RichTable(title=table.title)
    for heading in headings:
        drawn.add_column(heading, overflow="fold")
    for row in cells:
        drawn.add_row(*(cell.replace("[", "\\[") for cell in row))
    Console(width=max(120, shutil.get_terminal_size().columns)).print(drawn)


def plain(title: str, headings: Sequence[str], cells: Cells) -> str:
    """
    >>> print(plain("Times", ["what", "ms"], [["a pass", "12"]]))
    Times
    what    ms
    a pass  12
    """
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (headings, *cells)]
    return "\n".join([title, *lines])
