"""Check this machine's NVIDIA GPU, without a network: correctness, faults, memory and speed.

Progress is printed during the run, then tables, and one JSON document as the last line. The exit status is 0 only if
every comparison was made and passed. Parts run in the order below, each in a separate process with its share of
--minutes; a part is skipped, with a reason, if a package that it needs is missing."""

import argparse
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from benchmarks.gpu_check.parts import ABOUT, KERNELS, chosen
from benchmarks.gpu_check.report import document, markdown, show
from benchmarks.gpu_check.runner import Clock, Report, run
from benchmarks.gpu_check.scope import Plan
from sie_triton.system.host.device import choose_devices, worker_variables
from sie_triton.system.processes.child import end_with_parent, start

EXAMPLES = """examples:
  scripts/gpu-check --output report.md        all parts, in nine minutes
  scripts/gpu-check --only kernels,models     are the kernels right?
  scripts/gpu-check --only faults/pass        a single part
  scripts/gpu-check --dry-run                 the same code on a CPU, at tiny sizes
  scripts/gpu-check --only kernels --wrong sdpa   check that a wrong kernel is detected"""


LOG, LOG_LINES = "workers.log", 60


def main() -> int:
    arguments = _arguments()
    device = "cpu" if arguments.dry_run else choose_devices(arguments.device)[0]
    if device == "cpu" and not arguments.dry_run:
        print("no usable NVIDIA GPU; --dry-run runs the same code on the CPU, at tiny sizes", file=sys.stderr)
        return 2
    if arguments.dry_run:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # several threads slow such small work down
    clock = Clock(arguments.minutes)
    # After SIGTERM, which the program `timeout` sends, the results so far are reported.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: clock.stopped.set())
    with fork_server(device) if any(part.uses_workers for part in arguments.only) else nullcontext(Path()) as directory:
        # Import once for all parts, which are forked; do not initialise CUDA.
        from sie_triton.engines.torch.process import import_all

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
    """Print the end of the workers' log, which has more details than their error messages."""
    log = directory / LOG
    if log.is_file():
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        print("\n".join(["the end of the workers' log:", *lines]), flush=True)


@contextmanager
def fork_server(device: str) -> Iterator[Path]:
    """Start the server's fork server, which imports while the first parts run; yield its directory."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "workers"
        modules = ("sie_triton.system.processes.fork_server", "sie_triton.pipeline.worker.__main__")
        command = [sys.executable, "-P", "-m", *modules]
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
    parser.add_argument("--minutes", type=float, default=9, help="time limit for all parts, in minutes (default: 9)")
    parser.add_argument("--device", default="auto", help="cuda:N (default: as the server chooses)")
    parser.add_argument("--dry-run", action="store_true", help="run the same code at tiny sizes on the CPU")
    parser.add_argument(
        "--only", type=_parts, default=chosen([]), metavar="NAME,…", help="run only these parts, such as kernels,speed"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write a Markdown report, updated after each part")
    parser.add_argument("--wrong", default="", choices=KERNELS, metavar="KERNEL", help="compute this kernel wrongly")
    return parser.parse_args(given)


def _parts(names: str) -> object:
    try:
        return chosen(names.split(","))
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


if __name__ == "__main__":
    sys.exit(main())
