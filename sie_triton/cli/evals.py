"""`sie-triton eval`: quality and speed of a model on a dataset, compared with other sources and expected values."""

import sys
from pathlib import Path
from typing import Any

import click

from sie_triton.cli.options import ADDRESS, address_of, address_options, read_model_settings, running_options
from sie_triton.system.printing import echo

POSITIVE = click.IntRange(1, 100_000)


@click.command()
@click.argument("model")
@click.option("-t", "--task", required=True, metavar="DIRECTORY|mteb/NAME", help="dataset, or a retrieval task of mteb")
@click.option(
    "--type",
    "kind",
    type=click.Choice(["quality", "perf"]),
    default="quality",
    show_default=True,
    help="what to measure",
)
@click.option("-s", "--sources", default="sie", show_default=True, metavar="SOURCE,SOURCE...", help="see above")
@click.option(
    "--by",
    type=click.Choice(["dense", "sparse", "multivector", "score"]),
    default="dense",
    show_default=True,
    help="what ranks the documents: the cosine of dense vectors, the product of sparse ones, MaxSim of multivectors, "
    "or a reranker's score of each query with each document",
)
@click.option("--targets", type=click.Path(path_type=Path), help="file of targets; default: eval.yaml in DIRECTORY")
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    help="tolerated shortfall, as a fraction of the target",
)
@click.option("--rounds", type=POSITIVE, default=5, show_default=True, help="perf: rounds; medians are reported")
@click.option("--clients", type=POSITIVE, default=8, show_default=True, help="perf: concurrent calls for throughput")
@click.option("--batch", type=POSITIVE, default=16, show_default=True, help="perf: texts in each of these calls")
@click.option("--texts", type=POSITIVE, default=256, show_default=True, help="perf: queries and documents a round")
@click.option("--singles", type=POSITIVE, default=50, show_default=True, help="perf: texts a round for latency")
@click.option("--json", "as_json", is_flag=True, help="also print one JSON document, as the last line")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="also draw a picture, such as eval.png")
@address_options
@running_options(["models_dir"])
def evaluate(
    model: str,
    task: str,
    kind: str,
    sources: str,
    by: str,
    targets: Path | None,
    tolerance: float,
    as_json: bool,
    plot: Path | None,
    rounds: int,
    clients: int,
    batch: int,
    texts: int,
    singles: int,
    **flags: Any,
) -> None:
    """Measure the quality or the speed of MODEL on a dataset, from each of the --sources.

    \b
    sie                    the running server
    st, st=DIRECTORY       sentence-transformers in this process, from the server's directory of the model or another
    NAME=http://host:port  a server of SIE's HTTP API, such as a reference server
    NAME=grpc://host:port  another server of this package
    targets                expected values, with which the first source is compared

    \b
    sie-triton eval BAAI/bge-m3 -t mteb/NFCorpus --type perf -s sie,targets --targets eval.yaml
    sie-triton eval BAAI/bge-m3 -t ./my-dataset -s sie,st --plot eval.png

    A dataset is a directory with corpus.jsonl, queries.jsonl and qrels/test.tsv. Quality is computed by the library
    mteb. The exit status is 1 if the first source misses a target by more than --tolerance.
    """
    from sie_triton.cli.evaluation.run import Evaluation
    from sie_triton.cli.evaluation.run import evaluate as run
    from sie_triton.cli.evaluation.speed import Workload
    from sie_triton.system.printing import Console

    server = address_of(**{name: flags.pop(name) for name in ADDRESS})
    load = Workload(rounds, clients, batch, texts, singles) if kind == "perf" else None
    specs = [name for each in sources.split(",") if (name := each.strip())]
    of = read_model_settings(**flags).models_dir
    report = run(Evaluation(model, task, specs, by, server, of, targets, tolerance, load, plot is not None))
    Console().print(report.title, report.table(), sep="\n")
    if plot is not None:
        report.draw(plot)
    for miss in report.misses:
        echo(f"missed target: {miss}", err=True)
    if as_json:
        echo(report.to_json())
    sys.exit(1 if report.misses else 0)
