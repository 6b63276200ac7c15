"""docs/models.md: the model files of the package, grouped by family, output and length."""

from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from sie_triton.models.families import family

INTRODUCTION = """\
# Models

<!-- Generated from the model files of the package by `python -m tools.pages`. -->

{num} public models have a model file in the package; `sie-triton models show NAME` prints one, with its profiles. By
*family* and dimension; a number in bold is the length in tokens that the models after it read. The licence of the
weights is Apache-2.0 or MIT, unless another stands behind the name; `*`: see the hub. "not served": this version
refuses the model and says why.
"""

# Family, and outputs with dimensions.
Outputs = tuple[str, tuple[tuple[str, int], ...]]

PERMISSIVE = ("apache-2.0", "mit")


def shipped() -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the path and the contents of each shipped model file, sorted by model name."""
    directory = Path(str(resources.files("sie_triton.models.catalog")))
    paths = [*directory.glob("models/*.yaml"), *directory.glob("known/*.yaml")]
    found = [(path, yaml.safe_load(path.read_text(encoding="utf-8"))) for path in paths]
    yield from sorted(found, key=lambda each: each[1]["sie_id"].lower())


def page() -> str:
    models = [model for _, model in shipped()]
    tasks = sorted({tuple(model["tasks"]) for model in models}, key=lambda each: (len(each), each))
    sections = (
        f"\n## {', '.join(each)}\n\n{_section([m for m in models if tuple(m['tasks']) == each])}" for each in tasks
    )
    return INTRODUCTION.format(num=len(models)) + "".join(sections)


def _section(models: Iterable[Mapping[str, Any]]) -> str:
    """Return the models of the same tasks: a line for each family and dimension, sorted by maximum length."""
    groups: dict[Outputs, dict[int, list[str]]] = {}
    for model in models:
        by_length = groups.setdefault(outputs(model), {})
        by_length.setdefault(model.get("max_sequence_length", 0), []).append(described(model))
    heads = (
        (key, ", ".join([f"*{key[0]}*", *(f"{output} {dim}" for output, dim in key[1])])) for key in sorted(groups)
    )
    return "".join(f"- {head}; {_by_length(groups[key])}\n" for key, head in heads)


def _by_length(names: Mapping[int, list[str]]) -> str:
    """
    >>> _by_length({512: ["a", "b"], 0: ["c"]})
    'c; **512**: a, b'
    """
    return "; ".join(f"**{length}**: " * (length > 0) + ", ".join(names[length]) for length in sorted(names))


def outputs(model: Mapping[str, Any]) -> Outputs:
    """Return family, and outputs with dimensions.

    >>> outputs({"tasks": {"score": {}}, "profiles": {"default": {"adapter_path": "cross_encoder"}}})
    ('cross_encoder', ())
    """
    encode = model["tasks"].get("encode") or {}
    return model["profiles"]["default"]["adapter_path"], tuple((name, each["dim"]) for name, each in encode.items())


def described(model: Mapping[str, Any]) -> str:
    """Return the name, with the licence if it is not permissive, and with "not served" if the family refuses it.

    >>> profiles = {"default": {"adapter_path": "cross_encoder"}}
    >>> described({"sie_id": "a/b", "license": "mit", "profiles": profiles})
    'a/b'
    >>> described({"sie_id": "a/b", "profiles": profiles})
    'a/b*'
    """
    licence = model.get("license", "*")
    marks = [] if licence in (*PERMISSIVE, "*") else [licence]
    if model.get("hf_id") in family(model["profiles"]["default"]["adapter_path"]).not_served:
        marks.append("not served")
    return f"{model['sie_id']}{'*' * (licence == '*')}" + (f" ({', '.join(marks)})" if marks else "")
