"""The command `scripts/simulate`: the rules of a cluster, with machines that exist in the simulation only."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

from benchmarks.simulation.parameters import read_parameters
from benchmarks.simulation.report import table_of, write
from benchmarks.simulation.run import Plan
from sie_triton.errors import InputError, ServerError, SIEError
from sie_triton.settings import words
from sie_triton.system.printing import Console

NO_MATPLOTLIB = "--output draws pictures, which needs matplotlib: .venv/bin/pip install matplotlib"


@click.command()
@click.option("--workers", default="10,100,1000", show_default=True, metavar="N,N...", help="numbers of machines")
@click.option(
    "--models", default=200, show_default=True, help="number of models; Zipf's law says how often each is used"
)
@click.option("--seconds", type=float, default=300, show_default=True, help="simulated time of each simulation")
@click.option(
    "--load",
    "loads",
    default="0.3,0.6,0.9",
    show_default=True,
    metavar="SHARE,SHARE...",
    help="mean rates of requests, as shares of the machines' capacity",
)
@click.option(
    "--scenario",
    type=click.Choice(["steady", "bursts", "day", "spot", "from-zero"]),
    default="steady",
    show_default=True,
    help="see above",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="the same seed gives the same result"
)
@click.option("--rules", default="ours,reference", show_default=True, metavar="NAME,NAME", help="see above")
@click.option("--parameters", type=click.Path(path_type=Path), help='JSON file of parameters, such as {"load_s": 4}')
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="directory of JSON, Markdown and PNG")
def simulate(
    workers: str, loads: str, rules: str, parameters: Path | None, output: Path | None, models: int, **given: Any
) -> None:
    """Simulate a cluster of up to 10,000 machines, and print latency, utilisation, loads, refusals and cost.

    \b
    scripts/simulate                                         three sizes, three loads, both sets of rules
    scripts/simulate --workers 20 --load 0.5 --scenario spot --rules ours
    scripts/simulate --scenario from-zero --workers 10 --load 0.2 --seconds 1800
    scripts/simulate --parameters mine.json --output results

    --rules ours runs the policies that gateways, sidecars and the controller run. --rules reference runs those of SIE's
    own server: one line for all models, and no affinity.

    \b
    steady     Poisson arrivals at an even rate; of this and the next two, the first half is not counted
    bursts     three times the mean rate for 10 s of each minute
    spot       machines end without notice, and others are started
    day        --seconds are one day: the rate swings, and the number of machines follows the scaling rules
    from-zero  no machine at the start; the scaling rules start the first and the others

    The default parameters are measurements of all-MiniLM-L6-v2 on two CPU cores, requests of 32 texts. --output writes
    them to simulation.json; a file of other values for some of them is read by --parameters.
    """
    if output is not None and find_spec("matplotlib") is None:
        raise ServerError(NO_MATPLOTLIB)
    plan = Plan(
        read_parameters(parameters),
        workers=_integers("workers", workers),
        loads=_numbers("load", loads),
        rules=words(rules),
        num_models=models,
        **given,
    )
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=plan.num_simulations)
        results = [*plan.results(lambda num_done: progress.update(task, completed=num_done))]
    Console().print(table_of(f"Scenario {plan.scenario}, {models} models", results))
    if output is not None:
        write(output, plan, results)


def _integers(name: str, text: str) -> list[int]:
    numbers = _numbers(name, text)
    if not all(number.is_integer() for number in numbers):
        raise InputError.at(name, f"must be integers separated by commas; got {text!r}")
    return [int(number) for number in numbers]


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(each) for each in words(text)]
    except ValueError as exc:
        raise InputError.at(name, f"must be numbers separated by commas; got {text!r}") from exc


if __name__ == "__main__":
    try:
        simulate()
    except SIEError as exc:
        sys.exit(f"error: {exc}")
