"""`scripts/gpu-check`: progress while it runs, tables at the end, one line of JSON last; status 0 only if all holds."""

import argparse
import sys
from functools import partial

from sie_triton.bench.gpu_check import MISSING, fidelity, hardware, server, speed
from sie_triton.bench.gpu_check.report import document, show
from sie_triton.bench.gpu_check.runner import run
from sie_triton.bench.gpu_check.scope import Part, Plan
from sie_triton.device import choose_device
from sie_triton.engines.torch.imports import import_all

MODELS = ("BERT-base", "Qwen3-0.6B", "BERT-large")
DRY_MODELS = ("Qwen3-0.6B",)


def main() -> int:
    arguments = _arguments()
    device = "cpu" if arguments.dry_run else choose_device(arguments.device)
    if device == "cpu" and not arguments.dry_run:
        print("no NVIDIA GPU can be used here; --dry-run runs the same at tiny sizes on the CPU", file=sys.stderr)
        return 2
    for line in MISSING:
        print(line, flush=True)
    plan = Plan(device, arguments.dry_run, arguments.wrong)
    import_all()  # once for all parts, which are forked; CUDA stays untouched
    report = run([part for part in _parts(plan) if part.name.startswith(arguments.only)], plan, arguments.minutes)
    show(report)
    print(document(report, plan), flush=True)
    return 0 if report.holds else 1


def _parts(plan: Plan) -> list[Part]:
    models = DRY_MODELS if plan.is_dry else MODELS
    return [
        Part("machine", hardware.describe),
        *(Part(f"kernels, {name}", partial(fidelity.compare, name), is_needed=True) for name in fidelity.COMPARED),
        *(Part(f"speed, {name}", partial(speed.measure, name)) for name in models),
        Part("server", server.measure),
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__)
    parser.add_argument("--minutes", type=float, default=9, help="what has not ended by then is left out (default: 9)")
    parser.add_argument("--device", default="auto", help="cuda:N; default: the one that the server would take")
    parser.add_argument("--dry-run", action="store_true", help="the same code at tiny sizes on the CPU")
    parser.add_argument("--only", default="", metavar="PART", help="parts whose name begins so: kernels, speed, …")
    parser.add_argument("--wrong", default="", metavar="KERNEL", help="compute this kernel wrongly, to see it caught")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
