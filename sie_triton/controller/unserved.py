"""Sentences for clients about models that are not served because their files are wrong, by model name.

They name no directory of the server.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from sie_triton.contract.names import sie_name
from sie_triton.records.serving_file import file_of, is_model_file

SIE_ID = re.compile(r"""^\s*["']?sie_id["']?\s*:\s*["']?([\w./-]+)""", re.MULTILINE)

# Directories of an absolute path, not of a URL or a relative path.
DIRECTORIES = re.compile(r"""(?<![\w:/.~-])~?(?:/[^/\s:,;'"()]+)*/(?=[^/\s])""")


def unserved(problems: Mapping[str, str]) -> dict[str, str]:
    """Map each model's name to the reason why it is not served; `problems` are those of Changes, by source."""
    return {name_of(source): for_clients(source, problem) for source, problem in problems.items()}


def name_of(source: str) -> str:
    """Name of the model that a wrong file describes; if the file does not give it, derived from the file's name.

    >>> name_of("/nowhere/my__model.yaml"), name_of("my__model"), name_of("/nowhere/m.yaml: profiles.fast")
    ('my/model', 'my/model', 'm.fast')
    """
    if not is_model_file(source):
        return sie_name(source)
    path, _, profile = source.partition(": profiles.")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = SIE_ID.search(file.read(200_000))
    except OSError:
        found = None
    name = found[1] if found else sie_name(Path(path).stem)
    return f"{name}.{profile}" if profile else name


def for_clients(source: str, problem: str) -> str:
    """First line of a problem, without directories of the server.

    >>> for_clients("/a/b.yaml", "/a/b.yaml: dim: must be 64, as in /srv/my-model (given 65)")
    'b.yaml: dim: must be 64, as in my-model (given 65)'
    """
    line = problem.partition("\n")[0].replace(f"{Path(file_of(source)).parent}/", "")
    return DIRECTORIES.sub("", line)[:300]
