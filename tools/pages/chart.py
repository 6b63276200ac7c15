"""The generated files of the Helm chart: values.yaml, values.schema.json, and the users of NATS."""

import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml

from sie_triton.cluster.permissions import nats_users
from tools.pages.chart_values import Chart, Values

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "sie-triton"

# Width of the comments in values.yaml.
WIDTH = 110

# Keywords of a schema that values.yaml says, and those that hold schemas by name.
SAID = ("title", "description", "default")
BY_NAME = ("properties", "$defs")


def values_yaml() -> str:
    head = "# Values of the chart, which refuses others. Made from tools/pages/chart_values.py.\n"
    return head + "\n".join(_yaml(Chart(), 0))


def _yaml(values: Values, depth: int) -> Iterator[str]:
    pad = "  " * depth
    own = type(values).__annotations__
    for name, field in sorted(type(values).model_fields.items(), key=lambda each: each[0] not in own):
        value, key = getattr(values, name), field.alias
        yield from (f"{pad}# {line}" for line in wrap(field.description or "", WIDTH - len(pad)))
        if isinstance(value, Values):
            yield f"{pad}{key}:"
            yield from _yaml(value, depth + 1)
        elif isinstance(value, dict) and value and all(isinstance(each, Values) for each in value.values()):
            yield f"{pad}{key}:"
            for each, inner in value.items():
                yield f"{pad}  {each}:"
                yield from _yaml(inner, depth + 2)
        else:
            text = yaml.safe_dump({key: value}, sort_keys=False, width=1000)
            yield "\n".join(pad + line for line in text.splitlines())
    if depth <= 1:
        yield ""


def schema() -> str:
    made = Chart.model_json_schema(by_alias=True)
    made["properties"]["global"] = {"type": "object"}  # Helm's own
    checked = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_checks(made)}
    return json.dumps(checked, indent=2) + "\n"


def _checks(schema: Any) -> Any:
    """Return what the schema checks, without what values.yaml says."""
    if not isinstance(schema, dict):
        return [_checks(each) for each in schema] if isinstance(schema, list) else schema
    return {
        key: {name: _checks(each) for name, each in value.items()} if key in BY_NAME else _checks(value)
        for key, value in schema.items()
        if key not in SAID
    }


def files() -> dict[Path, str]:
    """Return the generated files of the chart."""
    return {
        CHART / "values.yaml": values_yaml(),
        CHART / "values.schema.json": schema(),
        CHART / "files" / "nats-users.conf": nats_users(),
    }
