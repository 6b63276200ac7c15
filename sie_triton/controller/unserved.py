"""Models that clients cannot reach because something is wrong with their files: a sentence for clients, by name.

A client sees no directory of the server.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from sie_triton.controller.names import sie_name
from sie_triton.serving import file_of, is_model_file

MAX_BYTES = 200_000
MAX_REASON = 300

SIE_ID = re.compile(r"""^\s*["']?sie_id["']?\s*:\s*["']?([\w./-]+)""", re.MULTILINE)

# The directories of an absolute path, but not those of a URL or a relative path.
DIRECTORIES = re.compile(r"""(?<![\w:/.~-])~?(?:/[^/\s:,;'"()]+)*/(?=[^/\s])""")


def unserved(problems: Mapping[str, str]) -> dict[str, str]:
    """Name of a model → why it is not served; `problems` are those of Changes, by source."""
    return {name_of(source): for_clients(source, problem) for source, problem in problems.items()}


def name_of(source: str) -> str:
    """The name of the model that a wrong file was meant to serve, as far as the file shows it; else by its file name.

    >>> name_of("/nowhere/my__model.yaml"), name_of("my__model"), name_of("/nowhere/m.yaml: profiles.fast")
    ('my/model', 'my/model', 'm.fast')
    """
    if not is_model_file(source):
        return sie_name(source)
    path, _, profile = source.partition(": profiles.")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = SIE_ID.search(file.read(MAX_BYTES))
    except OSError:
        found = None
    name = found[1] if found else sie_name(Path(path).stem)
    return f"{name}.{profile}" if profile else name


def for_clients(source: str, problem: str) -> str:
    """The first line, without directories of the server.

    >>> for_clients("/a/b.yaml", "/a/b.yaml: dim: must be 64, as in /srv/my-model (given 65)")
    'b.yaml: dim: must be 64, as in my-model (given 65)'
    """
    line = problem.partition("\n")[0].replace(f"{Path(file_of(source)).parent}/", "")
    return DIRECTORIES.sub("", line)[:MAX_REASON]
