"""`sie-triton extract`: ask a running server what is in texts."""

import sys
from collections.abc import Iterator
from typing import Any

import click

from sie_triton.cli.options import settings_options
from sie_triton.settings import read_settings


@click.command()
@click.argument("model")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--labels", default="", metavar="LABEL,LABEL...", help="what to look for, divided by commas")
@click.option("--threshold", type=click.FloatRange(0, 1), help="least score of what is told; default: the model's")
@click.option("--json", "as_json", is_flag=True, help="print a JSON object a text, each on a line")
@click.option("--url", metavar="URL", help="server, as http://host:port or grpc://host:port; default: the next two")
@settings_options(["host", "grpc_port"])
def extract(
    model: str,
    texts: tuple[str, ...],
    labels: str,
    threshold: float | None,
    as_json: bool,
    url: str | None,
    **flags: Any,
) -> None:
    """Ask a running server what MODEL finds in each TEXT, or in each line of standard input.

    \b
    sie-triton extract org/gliner 'Ada Lovelace lived in London.' --labels person,place
    sie-triton extract org/gliner --labels person --threshold 0.7 --json < texts.txt

    In a terminal what was found stands in colour in its text. Elsewhere it is one line each, divided by tabs: the
    number of the text, "entity", label, score, where it starts and ends (characters, from 0), and the words; or
    "relation", its name, score, head and tail; or "classification", label and score; or "data" and JSON.

    Labels are needed by models that have none of their own; they may be phrases: --labels 'place of birth,date'.
    """
    from sie_triton.cli import findings
    from sie_triton.client import SIEClient

    settings = read_settings(**flags)
    asked = list(texts) or list(_lines())
    names = [name for each in labels.split(",") if (name := each.strip())]
    with SIEClient(url or f"grpc://{settings.host}:{settings.grpc_port}") as client:
        results = client.extract(model, asked, names, threshold=threshold)
    findings.show(asked, results, as_json=as_json)


def _lines() -> Iterator[str]:
    """Of standard input, but for blank ones."""
    stream = sys.stdin.buffer
    if stream.isatty():
        raise click.UsageError("give a TEXT, or send texts, one a line, to standard input")
    for number, line in enumerate(stream, 1):
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as exc:
            raise click.UsageError(f"line {number} of standard input is not UTF-8 ({exc.reason})") from exc
        if text:
            yield text
