"""The command `scripts/bench`."""

from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import click

# Modules of the benchmarks whose names differ.
IN_PROCESS = ("lengths", "architectures", "outputs")
SAME = (
    *("latency", "door", "extract", "images", "loras", "cold", "preprocess", "overhead", "precision", "large"),
    *("cluster", "simulated", "way", "copies"),
)
MODULES = {"server": "compare", **{what: what for what in SAME}, **dict.fromkeys(IN_PROCESS, "forward")}


@click.command()
@click.option(
    "--what",
    type=click.Choice(tuple(MODULES)),
    default="server",
    show_default=True,
    help="server: throughput under load; latency: one short text at a time, compared with ONNX Runtime in process; "
    "door: SIE's own HTTP compared with Triton's; "
    "lengths, architectures, outputs: in process, for texts of mixed lengths, every architecture, and sparse and "
    "late-interaction models; "
    "extract: entities, compared with gliner if it is installed; images: vectors of photos; "
    "loras: eight LoRA adapters, compared with PEFT; "
    "cold: a server with many models that have had no request; "
    "preprocess: texts/s and latency where tokenization is the limit, by SIE_PREPROCESSOR_WORKERS; "
    "overhead: CPU time of a request by process, compared with three steps that compute nothing; "
    "precision: MiniLM in float32, bfloat16 and int8; "
    "large: requests of 32 and 256 texts; "
    "cluster: what the queue adds to a request, and what a tenant's flood does to another one; "
    "simulated: a cluster of three workers, compared with its simulation; "
    "way: the functions that one text passes in the stages; "
    "copies: texts/s of a busy model by the number of GPUs, which are pretended",
)
@click.option("--rounds", default=5, show_default=True, help="interleaved rounds; medians are reported")
@click.option("--seconds", default=10.0, show_default=True, help="duration of one measurement, in seconds")
@click.option("--clients", default=64, show_default=True, help="number of concurrent clients")
@click.option("--models", default=100, show_default=True, help="number of models, for --what cold")
@click.option(
    "--before",
    type=click.Path(path_type=Path),
    help="for --what overhead: a checkout of an earlier commit with its own .venv, whose server takes turns with ours",
)
@click.option("--output", type=click.Path(path_type=Path), help="also write the report to this Markdown file")
def main(**options: Any) -> None:
    """Compare this package with sentence-transformers on this machine, in one run, and print a table.

    With --what server, the last line is one JSON document, and perf_analyzer is downloaded if it is missing.
    """
    run = import_module(f"benchmarks.{MODULES[options['what']]}").run
    run(**{name: options[name] for name in signature(run).parameters})


if __name__ == "__main__":
    main()
