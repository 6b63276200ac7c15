"""`sie-triton extract`: find entities, relations, classes and objects in texts and images on a running server."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sie_triton.cli.options import settings_of_running, settings_options

if TYPE_CHECKING:
    from sie_triton.client import ExtractResult

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("model")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--labels", default="", metavar="LABEL,LABEL...", help="labels to find, separated by commas")
@click.option(
    "--image", "images", type=FILE, multiple=True, help="image to search; may be repeated and combined with texts"
)
@click.option("--pages", metavar="PAGES", help="pages of images that are PDFs, such as 1-3,8 or 5-; default: all")
@click.option("--lora", metavar="NAME", help="LoRA adapter of the model to apply")
@click.option("--draw", type=click.Path(path_type=Path), help="save the image to this file with a box for each object")
@click.option("--threshold", type=click.FloatRange(0, 1), help="minimum score of a finding; default: the model's")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object per item, each on its own line")
@click.option(
    "--url", metavar="URL", help="server, such as http://host:port or grpc://host:port; default: --host and --grpc-port"
)
@settings_options(["host", "grpc_port"])
def extract(
    model: str,
    texts: tuple[str, ...],
    labels: str,
    images: tuple[Path, ...],
    pages: str | None,
    lora: str | None,
    draw: Path | None,
    threshold: float | None,
    as_json: bool,
    url: str | None,
    **flags: Any,
) -> None:
    """Find entities, relations, classes or objects with MODEL in each TEXT and image, or each line of standard input.

    \b
    sie-triton extract org/gliner 'Ada Lovelace lived in London.' --labels person,place
    sie-triton extract org/gliner --labels person --threshold 0.7 --json < texts.txt
    sie-triton extract org/owlv2 --image street.jpg --labels car,'traffic light' --draw found.png

    In a terminal, findings are highlighted in their text or shown as tables. Otherwise each finding is a line of fields
    separated by tabs: the number of the text or image, for a PDF with a colon and the page; "entity", label, score,
    start, end (characters, from 0) and words; or "relation", name, score, head and tail; or "classification", label and
    score; or "object", label, score and box (left, top, right, bottom, in pixels); or "line", label, score, words read
    in an image, and their box if known; or "data" and JSON.

    Models without labels of their own require --labels. Labels may be phrases: --labels 'place of birth,date'.
    """
    from sie_triton.cli import findings
    from sie_triton.client import SIEClient

    if draw and len(images) != 1:
        raise click.UsageError(f"--draw: needs one --image, not {len(images)}")
    asked = list(texts) or ([] if images else list(_lines()))
    items: list[Any] = [*asked, *({"image": path} for path in images)]
    with SIEClient(url or _url(**flags)) as client:
        results = client.extract(model, items, _names(labels), threshold=threshold, pages=pages, lora=lora)
    findings.show([*asked, *map(str, images)], results, as_json=as_json)
    if draw:
        _draw(images[0], results[-1], draw)


def _url(**flags: Any) -> str:
    settings = settings_of_running(**flags)
    return f"grpc://{settings.inner_host}:{settings.grpc_port}"


def _names(labels: str) -> list[str]:
    return [name for each in labels.split(",") if (name := each.strip())]


def _draw(image: Path, result: "ExtractResult", path: Path) -> None:
    from sie_triton.cli import drawing

    if "pages" in result:
        raise click.UsageError(f"--draw: {image} is a PDF; give an image")
    drawing.save(image, result["objects"], path)


def _lines() -> Iterator[str]:
    """Yield the lines of standard input that are not blank."""
    stream = sys.stdin.buffer
    if stream.isatty():
        raise click.UsageError("give a TEXT or an --image, or pipe texts to standard input, one per line")
    for number, line in enumerate(stream, 1):
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as exc:
            raise click.UsageError(f"line {number} of standard input is not UTF-8 ({exc.reason})") from exc
        if text:
            yield text
