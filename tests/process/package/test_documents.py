"""The keys of a model file are all described, and documents quote what the source says."""

import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from sie_triton.contract.spec import Runtime
from sie_triton.models.catalog.config import ModelConfig
from sie_triton.models.catalog.options import MuveraOptions
from sie_triton.models.families import FAMILIES, family
from tools.pages.models import shipped

ROOT = Path(__file__).parents[3]
MODEL_FILES = ROOT / "docs" / "model-files.md"


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
    if "const" in option:
        return f"`{str(option['const']).lower()}`"
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
    """The lines of all lists: several keys may share one, and the head names what they stand below."""
    found, above = {}, [""]
    for keys, kind in re.findall(r"^(?:- )?(Keys.*?|`.*?`) \((.*?)\):(?: .+)?$", text, re.MULTILINE):
        names = re.findall(r"`([^`]+)`", keys)
        if keys.startswith("Keys"):
            above = [f"{name}." for name in names] or [""]
        else:
            kind, _, default = kind.partition("; ")
            found |= {f"{place}{name}": (kind, default) for place in above for name in names}
    return found


def options_of(name: str) -> dict[str, tuple[str, str]]:
    """Options of a family, from its own schema."""
    schema = TypeAdapter(family(name).options).json_schema()
    prefix = "profiles.NAME.adapter_options.loadtime."
    rows = keys_of(schema, schema.get("$defs", {}), prefix)
    if rows.pop(f"{prefix}muvera_config", None):
        muvera = MuveraOptions.model_json_schema()
        rows |= keys_of(muvera, {}, f"{prefix}muvera_config.")
    return rows


def test_every_key_of_a_model_file_is_described():
    schema = ModelConfig.model_json_schema()
    found, declared = described(MODEL_FILES.read_text()), keys_of(schema, schema["$defs"])
    for name in FAMILIES:
        declared |= options_of(name)
    missing = [f"- `{key}` ({kind}; {default}): " for key, (kind, default) in declared.items() - found.items()]
    assert not missing, "lines for docs/model-files.md:\n" + "\n".join(sorted(missing))
    assert sorted(found.keys() - declared.keys()) == []


def test_the_examples_of_model_files():
    examples = re.findall(r"```yaml\n(.*?)```", MODEL_FILES.read_text(), re.DOTALL)
    near, far, chat = (ModelConfig.model_validate(yaml.safe_load(example)).resolve(Runtime()) for example in examples)
    assert (near.dims, near.engine) == ({"dense": 384}, "torch")
    assert (far.dims, far.engine) == ({"dense": 4096}, "remote")
    assert (chat.is_forwarded, chat.endpoint.api_key_env) == (True, "VLLM_KEY")


def messages_of(page: str) -> list[str]:
    """The quoted messages in a page's lists, before the first colon outside of them."""
    heads = re.findall(r"^- ((?:`[^`]+`|[^`:\n])+): ", page, re.MULTILINE)
    return [quoted for head in heads for quoted in re.findall(r"`([^`]+ [^`]*)`", head)]


def test_pages_count_the_model_files_of_the_package():
    counted = r"([0-9]+) (?:have a model file in the package|public models|known models)"
    for page in ("README.md", "docs/serving-models.md", "docs/features.md"):
        assert re.findall(counted, (ROOT / page).read_text()) == [str(len([*shipped()]))], page


def test_messages_of_troubleshooting_are_in_the_source():
    """A message that changes must change there too. `…` stands for what a message inserts."""
    files = [*(ROOT / "sie_triton").rglob("*.py"), *(ROOT / "scripts").glob("[!_]*")]
    source = "\n".join(path.read_text() for path in files if path.is_file())
    # Literals of neighbouring lines are one.
    source = re.sub(r'"\n\s*f?"', "", source)
    # InputError.at puts a colon between the place and the problem.
    source = re.sub(r'(\.at\(\s*[^()]+?),\s*f?"', r"\1: ", source)
    messages = messages_of((ROOT / "docs" / "troubleshooting.md").read_text())
    assert len(messages) > 10
    fragments = [(message, part.strip()) for message in messages for part in message.split("…") if part.strip(" …;.")]
    assert [message for message, part in fragments if part not in source] == []
