"""Check this machine's NVIDIA GPU, without a network: correctness, faults, memory and speed.

Progress is printed as it comes, tables at the end, and one JSON document as the last line. The exit status is 0 only if
every comparison was made and holds. Parts run in the order below, each in a process of its own with its share of
--minutes; a part that lacks a package is skipped by name."""

import argparse
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from sie_triton.bench.gpu_check.parts import ABOUT, KERNELS, chosen
from sie_triton.bench.gpu_check.report import document, markdown, show
from sie_triton.bench.gpu_check.runner import Clock, Report, run
from sie_triton.bench.gpu_check.scope import Plan
from sie_triton.device import choose_device, worker_variables
from sie_triton.processes.child import end_with_parent, start

EXAMPLES = """examples:
  scripts/gpu-check --output report.md        all parts, in nine minutes
  scripts/gpu-check --only kernels,models     are the kernels right?
  scripts/gpu-check --only faults/pass        one part alone
  scripts/gpu-check --dry-run                 the same code on a CPU, at tiny sizes
  scripts/gpu-check --only kernels --wrong sdpa   a wrong kernel is caught"""


LOG, LOG_LINES = "workers.log", 60


def main() -> int:
    arguments = _arguments()
    device = "cpu" if arguments.dry_run else choose_device(arguments.device)
    if device == "cpu" and not arguments.dry_run:
        print("no NVIDIA GPU can be used here; --dry-run runs the same code on the CPU, at tiny sizes", file=sys.stderr)
        return 2
    if arguments.dry_run:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # so little work is slower by several threads
    clock = Clock(arguments.minutes)
    # The program `timeout` sends SIGTERM; results so far are reported.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: clock.stopped.set())
    with fork_server(device) if any(part.uses_workers for part in arguments.only) else nullcontext(Path()) as directory:
        # Imported once for all parts, which are forked; CUDA stays untouched.
        from sie_triton.engines.torch.imports import import_all

        import_all()
        plan = Plan(device, arguments.dry_run, arguments.wrong, directory)

        def keep(report: Report) -> None:
            if arguments.output:
                arguments.output.write_text(markdown(report, plan, shlex.join(["scripts/gpu-check", *sys.argv[1:]])))

        report = run(arguments.only, plan, clock, keep)
        keep(report)
        if not report.holds:
            show_log(directory)
    show(report)
    print(document(report, plan), flush=True)
    return 0 if report.holds else 1


def show_log(directory: Path) -> None:
    """Print the end of the workers' log, which says more than they tell their callers."""
    log = directory / LOG
    if log.is_file():
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        print("\n".join(["the end of the workers' log:", *lines]), flush=True)


@contextmanager
def fork_server(device: str) -> Iterator[Path]:
    """Start the server's fork server, which imports beside the first parts; yield its directory."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "workers"
        command = [sys.executable, "-P", "-m", "sie_triton.processes.nursery", "sie_triton.worker.__main__"]
        variables = {**os.environ, **worker_variables(device)}
        child = start([*command, str(directory)], environment=variables, log=directory / LOG, before=end_with_parent)
        try:
            yield directory
        finally:
            child.end()


def _arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parts = "\n".join(f"  {name:<9} {about}" for name, about in ABOUT.items())
    parser = argparse.ArgumentParser(
        prog="gpu-check",
        description=__doc__,
        epilog=f"parts:\n{parts}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=9, help="time for all parts together (default: 9)")
    parser.add_argument("--device", default="auto", help="cuda:N (default: the one that the server would take)")
    parser.add_argument("--dry-run", action="store_true", help="run the same code at tiny sizes on the CPU")
    parser.add_argument(
        "--only", type=_parts, default=chosen([]), metavar="NAME,…", help="run these parts alone, as kernels,speed"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write a Markdown report, anew after each part")
    parser.add_argument("--wrong", default="", choices=KERNELS, metavar="KERNEL", help="compute it wrongly, on purpose")
    return parser.parse_args(given)


def _parts(names: str) -> object:
    try:
        return chosen(names.split(","))
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


if __name__ == "__main__":
    sys.exit(main())
