"""What the documents cite is there, and the model file's keys are all described."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sie_triton.catalog.config import ModelConfig
from sie_triton.spec import Runtime

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/model-files.md"]
# ARCHITECTURE names modules as the package sees them.
PLACES = [ROOT, ROOT / "sie_triton"]
FOLDERS = {path.name for place in PLACES for path in place.iterdir() if path.is_dir()} - {".venv"}
MODEL_FILES = ROOT / "docs" / "model-files.md"
SOURCES = (".py", ".c", ".h")


def paths_of(text: str) -> list[str]:
    """The paths of this repository in a document: links, and words of code that look like one."""
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    code = re.findall(r"`([^`\n]+)`", text) + re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    words = [word.partition("::")[0].strip("'\"()[]{},;:") for part in code for word in part.split()]
    return links + [word for word in words if is_path(word)]


def is_path(word: str) -> bool:
    named = re.fullmatch(r"[\w.*/-]+", word) is not None and not word.startswith("/")
    return named and (word.endswith(SOURCES) or ("/" in word and word.split("/")[0] in FOLDERS))


def exists(path: str) -> bool:
    """A file without a folder may be anywhere below ours."""
    pattern = path.rstrip("/") if "/" in path else f"**/{path}"
    return any(next(place.glob(pattern), None) for place in (*PLACES, *(ROOT / name for name in ("tests", "docs"))))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_that_is_cited_exists(document):
    paths = paths_of((ROOT / document).read_text())
    assert paths
    assert [path for path in paths if not exists(path)] == []


def test_a_path_that_is_gone_is_noticed():
    text = "[a](docs/gone.md), `tests/unit/test_gone.py`, `scripts/gone --flag` and `/models/x`, `org/name`, `gone.c`"
    paths = paths_of(text)
    assert paths == ["docs/gone.md", "tests/unit/test_gone.py", "scripts/gone", "gone.c"]
    assert not any(exists(path) for path in paths)


def keys_of(schema: dict[str, Any], definitions: dict[str, Any], prefix: str = "") -> dict[str, tuple[str, str]]:
    """Every key of a model file, dotted, with its type and default."""
    rows = {}
    for name, declared in schema.get("properties", {}).items():
        (option,) = (each for each in declared.get("anyOf", [declared]) if each.get("type") != "null")
        key, option = prefix + name, {**declared, **option}
        if isinstance(values := option.get("additionalProperties"), dict) and "$ref" in values:
            key, option = f"{key}.NAME", values
        nested = definitions[option["$ref"].rpartition("/")[2]] if "$ref" in option else {}
        if nested.get("properties"):
            rows |= keys_of(nested, definitions, f"{key}.")
        else:
            rows[key] = type_of(option), default_of(name, declared, schema)
    return rows


def type_of(option: dict[str, Any]) -> str:
    if "enum" in option:
        return " ".join(f"`{each}`" for each in option["enum"])
    if option.get("type") == "array":
        return f"list of {type_of(option['items'])}"
    if option.get("type") == "integer":
        least = option.get("minimum", option.get("exclusiveMinimum", -1) + 1)
        most = f" to {option['maximum']:,}" if "maximum" in option else ""
        return f"integer from {least}{most}" if {"minimum", "exclusiveMinimum"} & set(option) else "integer"
    return {"boolean": "true, false", "string": "text", "object": "names to texts"}.get(option.get("type", ""), "`{}`")


def default_of(name: str, declared: dict[str, Any], schema: dict[str, Any]) -> str:
    if name in schema.get("required", []):
        return "required"
    default = declared.get("default")
    if default in (None, [], {}, ""):
        return ""
    return str(default).lower() if isinstance(default, bool) else f"{default}"


def described(text: str) -> dict[str, tuple[str, str]]:
    """The rows of all tables: several keys may share one."""
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|(?: (.*?))? \| .+ \|$", text, re.MULTILINE)
    return {key: (kind, default) for keys, kind, default in rows for key in re.findall(r"`([^`]+)`", keys)}


def test_every_key_of_a_model_file_is_described():
    schema = ModelConfig.model_json_schema()
    found, declared = described(MODEL_FILES.read_text()), keys_of(schema, schema["$defs"])
    missing = [f"| `{key}` | {kind} | {default} |" for key, (kind, default) in declared.items() - found.items()]
    assert not missing, "rows for docs/model-files.md:\n" + "\n".join(sorted(missing))
    assert sorted(found.keys() - declared.keys()) == []


def test_the_example_of_a_model_file():
    (example,) = re.findall(r"```yaml\n(.*?)```", MODEL_FILES.read_text(), re.DOTALL)
    assert ModelConfig.model_validate(yaml.safe_load(example)).resolve(Runtime()).dims == {"dense": 384}
