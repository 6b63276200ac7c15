"""docs/models.md: the model files of the package as one table."""

from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from sie_triton.models.families import family

INTRODUCTION = """\
# Models

<!-- Generated from the model files of the package by `python -m tools.pages`. -->

{num} public models have a model file in the package, under the name that stands here. "not served": this version
refuses the model and says why. An empty cell is left to the hub and to the checkpoint. The licence is that of the
weights.

| model | tasks | dims | tokens | licence | family |
|---|---|---|---|---|---|
"""


def shipped() -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the path and the contents of each shipped model file, sorted by model name."""
    directory = Path(str(resources.files("sie_triton.models.catalog")))
    paths = [*directory.glob("models/*.yaml"), *directory.glob("known/*.yaml")]
    found = [(path, yaml.safe_load(path.read_text(encoding="utf-8"))) for path in paths]
    yield from sorted(found, key=lambda each: each[1]["sie_id"].lower())


def page() -> str:
    rows = [row(model) for _, model in shipped()]
    return INTRODUCTION.format(num=len(rows)) + "".join(f"{each}\n" for each in rows)


def row(model: Mapping[str, Any]) -> str:
    """Return the table row of one model file.

    >>> row({"sie_id": "a/b", "tasks": {"score": {}}, "profiles": {"default": {"adapter_path": "cross_encoder"}}})
    '| a/b | score | | | | cross_encoder |'
    """
    outputs = model["tasks"].get("encode") or {}
    name = model["profiles"]["default"]["adapter_path"]
    cells = (
        model["sie_id"],
        ", ".join(model["tasks"]),
        ", ".join(f"{name} {output['dim']}" for name, output in outputs.items()),
        str(model.get("max_sequence_length", "")),
        model.get("license", ""),
        f"{name}, not served" if model.get("hf_id") in family(name).not_served else name,
    )
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"
