"""Examples of README and docs/, run from their own text against one server of small models under the names they use."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import yaml
from sentence_transformers import SentenceTransformer

from sie_triton import SIEClient
from sie_triton.cli.evaluation.targets import read_targets
from sie_triton.client.failures import END_OF_FRAMING
from sie_triton.contract import VERBS
from sie_triton.contract.error_prefix import without_prefix
from sie_triton.contract.names import triton_name
from sie_triton.contract.spec import Runtime
from sie_triton.errors import InputError
from sie_triton.models.catalog.config import ModelConfig
from sie_triton.pipeline.render.build import selected
from sie_triton.server.serve import example
from sie_triton.settings import Settings, read_settings
from tests.conftest import MINILM, fresh_settings
from tests.server.examples_not_run import NOT_RUN
from tests.server.test_serve import port_flags, started
from tests.support.classifiers import save_classifier
from tests.support.gliner2s import save_gliner2
from tests.support.gliners import save_gliner
from tests.support.glirels import save_glirel
from tests.support.loras import save_lora
from tests.support.models import save_bge_m3, save_causal, save_cross_encoder, save_pylate, save_splade
from tests.support.towers import save_clip

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Its examples are checked by tests/process/package/test_documents.py.
PAGES.remove(ROOT / "docs" / "model-files.md")
# By tests/server/test_integrations.py, in environments with those packages.
PAGES.remove(ROOT / "docs" / "integrations.md")
HEADER = "-H 'Content-Type: application/json'"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page and the line it begins on."""

    line: int
    language: str
    text: str
    page: str = ""

    @property
    def name(self) -> str:
        return f"{self.page}-{self.language}-{self.line}"


def blocks_of(text: str, page: str = "") -> list[Block]:
    fences = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(text[: m.start()].count("\n") + 1, m[1], m[2], page) for m in fences]


BLOCKS = [block for page in PAGES for block in blocks_of(page.read_text(), page.stem)]
YAML = [block for block in BLOCKS if block.language == "yaml" and "sie_id:" in block.text]
EVAL = [block for block in BLOCKS if block.page == "eval"]
# tests/process/deploy/test_chart.py renders it.
CHART_VALUES = [block for block in BLOCKS if block.language == "yaml" and block.page == "kubernetes"]
SETTINGS_FILES = [block for block in BLOCKS if block.language == "yaml" and block not in [*YAML, *EVAL, *CHART_VALUES]]
PYTHON = [block for block in BLOCKS if block.language == "python"]
CURL = [block for block in BLOCKS if block.language == "bash" and block.text.startswith("curl")]
AT_THE_DOOR = [block for block in CURL if "localhost:8080" in block.text]

# Models of the page extract, without a file there, by family.
EXTRACTORS = {
    "my/gliner2": "gliner2",
    "my/glirel": "glirel",
    "my/nli": "nli_classification",
    "my/sentiment": "sequence_classification",
}

# Commands that call a running server.
VERB_COMMANDS = tuple(f"sie-triton {verb} " for verb in VERBS)

# Another package than this one's extras install.
NOT_INSTALLED = {"sie_sdk": "needs Python 3.12; tests/server/test_door.py asks as it does"}


def lines_not_run(blocks: list[Block]) -> list[str]:
    return [command for command in commands(blocks) if not command.startswith(VERB_COMMANDS)]


def commands(blocks: list[Block]) -> list[str]:
    lines = [
        line for block in blocks if block.language == "bash" and block not in CURL for line in block.text.split("\n")
    ]
    return [command for line in lines if (command := line.partition(" #")[0].strip())]


def stand_in(model: dict, directory: Path, dims: dict[str, int]) -> dict:
    """Return the model file over small weights: only the place and the sizes of the weights change."""
    content = {key: value for key, value in model.items() if key not in ("hf_id", "weights_path")}
    content["weights_path"] = str(directory)
    if "loras" in content:
        content["loras"] = dict.fromkeys(content["loras"], str(directory.parent / "lora"))
    for output, size in (content["tasks"].get("encode") or {}).items():
        size["dim"] = dims[output]
    if "max_sequence_length" in model:
        content["max_sequence_length"] = min(model["max_sequence_length"], 512)
    return content


@pytest.fixture(scope="module")
def small_models(tmp_path_factory, minilm_directory) -> dict[str, tuple[Path, dict[str, int]]]:
    """Directories and dims for the names of the pages' model files."""
    root = tmp_path_factory.mktemp("examples")
    save_gliner(root / "gliner", minilm_directory)
    save_gliner2(root / "gliner2", minilm_directory)
    save_glirel(root / "glirel", minilm_directory)
    save_clip(root / "clip", minilm_directory)
    dense = root / "dense" / "model"
    shutil.copytree(minilm_directory, dense)
    save_lora(root / "dense" / "lora", SentenceTransformer(str(dense), device="cpu")[0].model, spread=0.05)
    return {
        "my/dense": (minilm_directory, {"dense": 384}),
        "my/tenants": (dense, {"dense": 384}),
        "my/splade": (save_splade(root / "splade", minilm_directory), {"sparse": 30522}),
        "my/colbert": (save_pylate(root / "colbert", minilm_directory), {"multivector": 32}),
        "my/cross-encoder": (save_cross_encoder(root / "cross-encoder", minilm_directory), {}),
        "Qwen/Qwen3-Reranker-0.6B": (save_causal(root / "reranker", minilm_directory), {}),
        "my/clip": (root / "clip", {"dense": 32}),
        "my/quantized": (minilm_directory, {"dense": 384}),
        "my/gliner": (root / "gliner" / "model", {}),
        "my/gliner2": (root / "gliner2" / "model", {}),
        "my/glirel": (root / "glirel" / "model", {}),
        "my/nli": (
            save_classifier(root / "nli", minilm_directory, labels=("contradiction", "neutral", "entailment")),
            {},
        ),
        "my/sentiment": (save_classifier(root / "sentiment", minilm_directory, labels=("negative", "positive")), {}),
        "BAAI/bge-m3": (
            save_bge_m3(root / "bge-m3", minilm_directory, 32),
            {"dense": 64, "sparse": 30522, "multivector": 32},
        ),
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory, small_models) -> Iterator[Settings]:
    """`sie-triton serve --models-dir` with every model file of the pages, and the demo model."""
    root = tmp_path_factory.mktemp("examples-server")
    settings = fresh_settings(root, models_dir=root / "my-models")
    settings.models_dir.mkdir()
    models = [model for block in YAML if (model := yaml.safe_load(block.text)).get("sie_id") in small_models]
    for name, family in EXTRACTORS.items():
        models.append({"sie_id": name, "tasks": {"extract": {}}, "profiles": {"default": {"adapter_path": family}}})
    for model in models:
        path = settings.models_dir / f"{triton_name(model['sie_id'])}.yaml"
        path.write_text(yaml.safe_dump(stand_in(model, *small_models[model["sie_id"]])))
    ports = [getattr(settings, f"{name}_port") for name in ("http", "grpc", "metrics", "controller", "door")]
    names = [*(model["sie_id"] for model in models), MINILM]
    # A size that is given needs no calibration.
    flags = [f"--models-dir={settings.models_dir}", f"--data-dir={settings.data_dir}"]
    flags += ["--max-sub-batch-cost=512", f"--door-tei-model={MINILM}"]
    with started(*names, *flags, *port_flags(ports)):
        yield settings


def here(text: str, settings: Settings) -> str:
    """`text` with the ports of this server."""
    ports = {8000: settings.http_port, 8001: settings.grpc_port, 8080: settings.door_port}
    for given, port in ports.items():
        text = text.replace(f"localhost:{given}", f"127.0.0.1:{port}")
    return text


def got(command: str) -> dict:
    """Return the response to a curl command."""
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=120)
    return json.loads(answer.stdout)


def ask(command: str) -> list[str]:
    """Return the names of the non-empty outputs of Triton's response."""
    return [output["name"] for output in got(command)["outputs"] if output["data"]]


def test_every_block_is_run_or_listed():
    assert {block.language for block in BLOCKS} == {"bash", "mermaid", "python", "text", "yaml"}
    assert set(lines_not_run(BLOCKS)) == set(NOT_RUN)


def test_blocks_of_text_are_errors_of_stages():
    """Those of the page eval are what `sie-triton eval` prints."""
    blocks = [block for block in BLOCKS if block.language == "text" and block not in EVAL]
    lines = [line for block in blocks for line in block.text.splitlines()]
    assert lines
    assert all(without_prefix(line.partition(END_OF_FRAMING)[2]) for line in lines)


def test_a_documented_command_that_is_not_run_is_reported():
    (block,) = blocks_of("text\n```bash\nscripts/new --flag  # why\n```\n")
    assert block.line == 2
    assert lines_not_run([block]) == ["scripts/new --flag"]


# Key of the results of each route, where it is not "items".
RESULTS = {"/rerank": "results", "/v1/embeddings": "data"}


@pytest.mark.parametrize("block", AT_THE_DOOR, ids=lambda block: block.name)
def test_curl_at_the_door(served, block):
    """The command ranks its documents, or gives a result of its item or text, or the vector alone as TEI does."""
    assert HEADER in block.text
    answer = got(here(block.text, served))
    if isinstance(answer, list):
        assert [len(vector) for vector in answer] == [384]
        return
    key = next((key for route, key in RESULTS.items() if route in block.text), "items")
    assert key in answer, answer
    (result,) = answer[key]
    assert {"index", "dense", "entities"} & set(result)


@pytest.mark.parametrize("block", [each for each in CURL if each not in AT_THE_DOOR], ids=lambda block: block.name)
def test_curl(served, block):
    assert HEADER in block.text
    asked = re.findall(r'"outputs": \[\{"name": "(\w+)"', block.text)
    assert ask(here(block.text, served)) == asked != []


@pytest.mark.parametrize(
    ("model", "output"), [(MINILM, "dense"), ("my/cross-encoder", "scores"), ("my/gliner", "extraction")]
)
def test_the_command_that_serve_prints_works(served, model, output):
    config = next(each for each in selected(served, [model]).models if each.sie_id == model)
    command = example(config.resolve(served.runtime), f"http://127.0.0.1:{served.http_port}")
    assert HEADER in command
    assert output in ask(command)


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.name)
def test_python(served, block, capsys):
    """The example prints what its comments in brackets, or after a type, say."""
    for module, why in NOT_INSTALLED.items():
        if f"from {module} " in block.text and find_spec(module) is None:
            pytest.skip(f"{module} {why}")
    exec(compile(here(block.text, served), f"{block.page}:{block.line}", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    said = re.findall(r"^ *print\(.*\)  # ((?:\w+ )?\([\d, ]+\))$", block.text, re.MULTILINE)
    assert set(said) <= set(printed)


def test_adapters_of_a_running_server(served, small_models):
    """The page's three commands work, and so do requests before, between and after them."""

    def run(*arguments: str) -> str:
        flags = [f"--controller-port={served.controller_port}"]
        flags += [] if arguments[0] == "ls" else [f"--data-dir={served.data_dir}"]
        command = [sys.executable, "-m", "sie_triton.cli", "lora", *arguments, *flags]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    directory = small_models["my/tenants"][0].parent / "lora"
    with SIEClient(f"127.0.0.1:{served.grpc_port}") as client:
        base = client.encode("my/tenants", "Hello")["dense"]
        with pytest.raises(InputError, match="my/tenants has no adapter 'banking'; give one of legal, medical; "):
            client.encode("my/tenants", "Hello", lora="banking")
        run("add", "my/tenants", "banking", str(directory))
        by_adapter = client.encode("my/tenants", "Hello", lora="banking")["dense"]
        assert base @ by_adapter < 0.99
        states = {each["name"]: each["state"] for each in json.loads(run("ls", "my/tenants", "--json"))["loras"]}
        assert states["banking"] == "resident"
        assert client.encode("my/tenants", "Hello", profile="clinic")["dense"] @ by_adapter > 0.9999
        run("rm", "my/tenants", "banking")
        with pytest.raises(InputError, match="my/tenants has no adapter 'banking'"):
            client.encode("my/tenants", "Hello", lora="banking")


@pytest.mark.parametrize("command", [each for each in commands(BLOCKS) if each.startswith(VERB_COMMANDS)])
def test_commands_of_the_verbs(served, tmp_path, command):
    """The command ends without an error; what it writes is the file that it names, with a line or row per line."""
    (tmp_path / "texts.txt").write_text("Ships sail.\nRoses climb.\n")
    for name in ("texts", "pairs"):
        (tmp_path / f"{name}.jsonl").write_text('{"query": "What climbs?", "text": "Roses climb."}\n' * 2)
    given = {*tmp_path.iterdir()}
    words = [sys.executable, "-m", "sie_triton.cli", *shlex.split(command)[1:], f"--grpc-port={served.grpc_port}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = {*tmp_path.iterdir()} - given
    assert bool(done.stdout) == (not written)
    for path in written:
        assert len(np.load(path) if path.suffix == ".npy" else path.read_text().splitlines()) == 2


@pytest.mark.parametrize("block", YAML, ids=lambda block: block.name)
def test_model_file(served, block):
    """The file loads as printed, and its model does over small weights what the page says."""
    model = ModelConfig.model_validate(yaml.safe_load(block.text))
    assert model.resolve(Runtime()).model == model.sie_id
    with SIEClient(f"127.0.0.1:{served.grpc_port}") as client:
        if model.tasks.encode:
            assert set(model.dims) <= set(client.encode(model.sie_id, "Hello"))
        if model.tasks.score:
            assert len(client.score(model.sie_id, "who?", ["I, you.", "Nobody."])["scores"]) == 2


@pytest.mark.parametrize("block", SETTINGS_FILES, ids=lambda block: block.name)
def test_settings_file(tmp_path, monkeypatch, block):
    """The file holds existing settings with allowed values."""
    path = tmp_path / "sie.yaml"
    path.write_text(block.text)
    monkeypatch.setenv("SIE_CONFIG", str(path))
    given, settings = yaml.safe_load(block.text), read_settings()
    assert {name: str(getattr(settings, name)) for name in given} == {name: str(given[name]) for name in given}


def test_targets_file(tmp_path):
    (block,) = (each for each in EVAL if each.language == "yaml")
    path = tmp_path / "eval.yaml"
    path.write_text(block.text)
    assert read_targets(path, "BAAI/bge-m3") == yaml.safe_load(block.text)["BAAI/bge-m3"]
