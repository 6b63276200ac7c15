"""The only way to a terminal: plain text, in which control characters are shown instead of obeyed.

Names, errors, results and logs come from model files, clients and other machines. A terminal would obey escape
sequences in them, and Rich would take [INST] for its own markup.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

import click
from rich import console
from rich.highlighter import JSONHighlighter
from rich.segment import Segment
from rich.status import Status
from rich.text import Text

# What a terminal obeys, shows in another order or cannot show: controls but tab and line feed, separators of lines,
# directions, and halves of characters.
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str) -> str:
    """Return `text` with an escape, as in JSON, for each character that a terminal would obey.

    >>> shown("\\x1b[2J [INST]\\tü\\n")
    '\\\\u001b[2J [INST]\\tü\\n'
    """
    return OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text to standard output, or to standard error if `err`; with a line feed if `nl`."""
    click.echo(shown(str(text)), err=err, nl=nl)


class Console(console.Console):
    """Rich's console without markup, codes of emoji and colours of numbers, in strings too that are part of a table."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: console.RenderableType, options: console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control or not OBEYED.search(text) else Segment(shown(text), style)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(shown(text), **options)

    def status(self, status: console.RenderableType, **options: Any) -> Status:
        """Like Rich's, which reads markup in a string even in a console without markup."""
        return super().status(Text(status) if isinstance(status, str) else status, **options)

    def print_line(self, line: console.RenderableType, style: str = "") -> None:
        """Print a line; where it is too long for a terminal, the terminal wraps it."""
        self.print(line, style=style, soft_wrap=True)

    def print_data(self, data: Any) -> None:
        """Print data as JSON."""
        text = shown(json.dumps(data, indent=2, ensure_ascii=False))
        self.print_line(JSONHighlighter()(text))


def say(line: str, style: str = "") -> None:
    """Print a line to standard output."""
    Console().print_line(line, style)
