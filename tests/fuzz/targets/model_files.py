"""Model files: YAML → configuration → specification → Triton's configuration."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.errors import CatalogError
from sie_triton.models.catalog.config import ModelConfig
from sie_triton.models.catalog.load import read_model
from sie_triton.models.catalog.select import with_variants
from sie_triton.pipeline.render.pbtxt import ensembles
from sie_triton.settings.yaml_reader import MAX_CHARACTERS
from tests.fuzz.damage import damaged
from tests.fuzz.target import Target
from tests.fuzz.trees import PLAIN, Deep, changed, to_json
from tests.support.reference_files import SERVED, sie_id

SOURCE = Path("org__model.yaml")

# Keys of files of our own, beside those of SIE's.
OURS: dict[str, Any] = {
    "sie_id": "org/model",
    "weights_path": "./model",
    "license": "mit",
    "allow_pickle": "tensors",
    "environment": "mine",
    "loras": {"banking": "org/banking@v1", "own": "./own"},
    "inputs": {"text": True, "image": False},
    "tasks": {"encode": {"dense": {"dim": 64, "scales": True}, "multivector": {"dim": 32}}, "score": {}},
    "max_sequence_length": 512,
    "batch_cost": "attention",
    "profiles": {
        "default": {
            "adapter_path": "bge_m3",
            "max_batch_tokens": 4096,
            "compute_precision": "float16",
            "adapter_options": {"loadtime": {"pooling": "cls"}, "runtime": {"muvera": {"num_repetitions": 3}}},
        },
        "far": {"extends": "default", "endpoint": {"url": "http://host:1/v1", "model": "m", "api_key_env": "KEY"}},
        "graph": {"extends": "default", "engine": "onnx", "onnx_file": "onnx/model.onnx"},
        "asking": {"extends": "default", "adapter_options": {"runtime": {"query_template": "{instruction} {text}"}}},
    },
}

# Names of modules that a model file could have imported.
NAMES = (
    "unittest.__main__:x",
    "../x:Y",
    "antigravity:X",
    "sys:exit",
    "this:x",
    "a:b:c",
    ":",
    "sie_triton.cli.__main__:x",
)

# Text that only YAML has: anchors, merges, tags, dates, octal numbers, documents, comments.
YAML = (
    b"a: &a [1, *a]\n",
    b"a: &a {b: 1}\n<<: *a\n",
    b"? [a]\n: b\n",
    b"!!python/object/apply:os.system ['touch sprung']\n",
    b"!!set {a, b}\n---\n!!binary aGk=\n",
    b"sie_id: 2001-01-01 00:00:00\nhf_id: 0o17\nlicense: 1:30\n",
    b"%YAML 1.2\n---\na: |+\n  b\n\n...\n",
    b"a: &b " + b"[" * 60 + b"]" * 60 + b"\n",
    b"\xef\xbb\xbfa: \x85b\n",
    b"? ? ? a\n",
    b'a: "\\ud800"\n',
    b"a: !!timestamp 9999-99-99\n",
    b"a: !!int 0x" + b"f" * 5000 + b"\n",
    b"a: !!float 1e99999\n",
)


@contextmanager
def model_files(directory: Path) -> Iterator[Target]:
    """Yield the target of damaged texts."""
    texts = [yaml.safe_dump(each).encode() for each in documents()]
    yield Target(
        damaged([*texts, *YAML, *[text + more for text, more in zip(texts, YAML, strict=False)]]),
        resolved,
        (CatalogError,),
    )


@contextmanager
def model_configs(directory: Path) -> Iterator[Target]:
    """Yield the target of changed documents: most are parsed already, because the parser takes most of the time."""
    plain = [each for each in (*PLAIN, *NAMES) if each != "\ud800"]  # which the parser refuses
    trees = changed(documents(), (*PLAIN, *NAMES, Deep(60)), is_plain=True)
    yield Target(st.one_of(changed(documents(), plain, is_plain=True), trees.map(to_json)), resolved, (CatalogError,))
    assert not {"unittest.__main__", "antigravity"} & sys.modules.keys()


def documents() -> list[dict[str, Any]]:
    """Return the content of valid model files, each twice: short ones are read faster."""
    shorter = [{**OURS, "profiles": {"default": OURS["profiles"]["default"]}}]
    return [OURS, *shorter, *({"sie_id": sie_id(name), "hf_id": "org/hub", **each} for name, each in SERVED.items())]


def resolved(content: Any) -> None:
    """Read a model file, and make of it what the server reads."""
    try:
        model = read_model(content, SOURCE) if isinstance(content, bytes) else config_of(content)
        for each in with_variants([model]):
            check_model(each)
    except CatalogError as exc:
        check_text(str(exc))
        raise


def config_of(content: Any) -> ModelConfig:
    """Return the configuration of parsed content, as `read_model` does after it has parsed a text."""
    from unittest.mock import patch

    with patch("sie_triton.models.catalog.load.read_yaml", lambda text: content):
        return read_model(b"", SOURCE)


def check_model(model: ModelConfig) -> None:
    lines = [*model.warnings(), *model.notes()]
    spec = model.resolve(Runtime())
    check_text("\n".join(lines))
    assert ModelSpec.from_json(spec.to_json()).to_json() == spec.to_json()
    for each in ensembles(spec, "org__model", "org__model"):
        each.SerializeToString()


def check_text(text: str) -> None:
    """Assert that a text for the owner of a model file can be printed, and is not much longer than the file."""
    assert len(text.encode()) < 10 * MAX_CHARACTERS
    assert "Traceback" not in text
