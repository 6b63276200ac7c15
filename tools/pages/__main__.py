"""Write the generated pages of docs/ and files of the chart, or check them: `python -m tools.pages [--check]`."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.pages import chart, client, models, parameters, settings

ROOT = Path(__file__).parents[2]

PAGES: Mapping[str, Callable[[], str]] = {
    "client.md": client.page,
    "models.md": models.page,
    "parameters.md": parameters.page,
    "settings.md": settings.page,
}


def main(arguments: list[str]) -> int:
    """Return the exit status: 1 if a page is out of date and `--check` forbids writing it."""
    pages = {ROOT / "docs" / name: page() for name, page in PAGES.items()} | chart.files()
    outdated = [path for path, text in pages.items() if not path.is_file() or path.read_text() != text]
    if "--check" in arguments:
        for path in outdated:
            sys.stderr.write(f"{path.relative_to(ROOT)} is out of date; run: python -m tools.pages\n")
        return int(bool(outdated))
    for path in outdated:
        path.write_text(pages[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
