"""Models that a remote server computes: accepted model files, and results equal to our engine's."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.texts import texts
from sie_triton.contract.spec import Endpoint as Where
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.engines import open_engine
from sie_triton.engines.measurements import Measurements
from sie_triton.errors import CatalogError, LoadError
from sie_triton.models.catalog import load_file
from sie_triton.models.catalog.config import ModelConfig
from sie_triton.models.families import Adapter, load_adapter, load_processor
from sie_triton.models.families.llm_reranker import RerankerOptions
from sie_triton.models.weights import loadable
from sie_triton.pipeline.worker.__main__ import load_error
from tests.conftest import model_file
from tests.process.package.test_layers import imported
from tests.support.loading import load_adapter as computed_here
from tests.support.loading import token_batch
from tests.support.models import save_bert, save_causal, without_weights
from tests.support.openai_endpoint import Endpoint, last_states, next_tokens
from tests.support.stages import spec

URL = "http://host:30000"
TEXTS = ["", "x", "naïve 😀", *texts(9, seed=3)]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory, minilm_directory: Path) -> Path:
    return save_bert(tmp_path_factory.mktemp("decoder"), minilm_directory, "qwen3", pooling="lasttoken")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory, minilm_directory: Path) -> Path:
    return save_causal(tmp_path_factory.mktemp("judge"), minilm_directory)


@contextmanager
def computed_there(here: ModelSpec, directory: Path, endpoint: Endpoint) -> Iterator[Adapter]:
    where = replace(here, engine="remote", endpoint=Where(endpoint.url, "there"))
    engine = open_engine(where, "cpu", Measurements())
    try:
        yield load_adapter(where, directory, engine)
    finally:
        engine.close()


def batch_of(made: dict[str, Any]) -> Any:
    ids, lengths = made["input_ids"]
    return token_batch(ids, lengths)


def test_vectors_are_those_of_our_own_engine(decoder, tmp_path):
    here = spec(dims={"dense": 64}, max_sequence_length=512)
    batch = batch_of(load_processor(here, decoder).encode(TEXTS))
    ours = computed_here(here, decoder).forward(batch)["dense"]
    ours /= np.linalg.norm(ours, axis=1, keepdims=True)
    directory = without_weights(decoder, tmp_path / "small")
    with Endpoint(last_states(decoder)) as endpoint, computed_there(here, directory, endpoint) as adapter:
        theirs = adapter.forward(batch)["dense"]
        assert (adapter.weights_bytes, dict(adapter.limits)) == (0, {"input_ids": 30521})
    assert theirs.dtype == np.float32
    assert (theirs * ours).sum(1).min() > 0.99999


@pytest.mark.parametrize("path", ["/v1/score", "/generative_scoring"])
@pytest.mark.parametrize("mode", ["logit_diff", "log_softmax"])
def test_scores_are_those_of_our_own_engine(judge, tmp_path, path, mode):
    options = asdict(RerankerOptions("yes", "no", "qwen3", mode))
    here = spec(family="llm_reranker", dims={}, tasks=("score",), max_sequence_length=512, options=options)
    processor = load_processor(here, judge)
    question = processor.question("how do vines climb?", None)
    batch = batch_of(processor.encode([question.around(text) for text in TEXTS]))
    ours = computed_here(here, judge).forward(batch)["scores"]
    directory = without_weights(judge, tmp_path / "small")
    with (
        Endpoint(likely=next_tokens(judge), scores=path) as endpoint,
        computed_there(here, directory, endpoint) as adapter,
    ):
        theirs = adapter.forward(batch)["scores"]
    assert np.ptp(ours) > 5e-3
    np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)


def test_a_dim_mismatch_is_refused_at_load(decoder):
    with Endpoint(last_states(decoder)) as endpoint:
        here = spec(dims={"dense": 65}, max_sequence_length=512)
        with (
            pytest.raises(LoadError, match=r"dense\.dim: the model file says 65, but the weights give 64"),
            computed_there(here, decoder, endpoint),
        ):
            pass
        assert len(endpoint.asked) == 1


@pytest.mark.parametrize(
    ("trouble", "reason"), [("429", "network"), ("400", "failed"), ("401", "gated"), ("404", "not found")]
)
def test_an_endpoint_error_during_load_gives_the_reason(decoder, trouble, reason):
    with Endpoint(last_states(decoder)) as endpoint:
        endpoint.trouble = trouble
        with pytest.raises(Exception, match=f"answers {trouble}") as found:  # noqa: SIM117
            with computed_there(spec(dims={"dense": 64}), decoder, endpoint):
                pass
    told = load_error(found.value)
    assert (told.reason, trouble in str(told)) == (reason, True)


def test_a_remote_model_needs_no_local_weights(decoder, tmp_path):
    directory = without_weights(decoder, tmp_path / "small")
    (directory / "pytorch_model.bin").write_bytes(b"pickled")
    there = spec(weights=str(directory), endpoint=Where(URL, "m"))
    assert loadable(there, (), cache=tmp_path) == directory
    with pytest.raises(LoadError, match="pickles"):
        loadable(replace(there, endpoint=None), (), cache=tmp_path)


def config(directory: Path, default: dict[str, Any], family: str = "sentence_transformer", **top: Any) -> ModelConfig:
    tasks = {"score": {}} if family.startswith(("llm", "cross")) else {"encode": {"dense": {"dim": 64}}}
    content = yaml.safe_load(model_file("test/far", directory, family, tasks))
    content["profiles"]["default"].update(default)
    for profile, given in top.pop("profiles", {}).items():
        content["profiles"][profile] = given
    path = directory.parent / "far.yaml"
    path.write_text(yaml.safe_dump({**content, **top}))
    return load_file(path)


@pytest.mark.parametrize("url", [URL, f"{URL}/", f"{URL}/v1", f"{URL}/v1/"])
def test_a_url_is_all_that_a_model_file_needs(tmp_path, url):
    spec = config(tmp_path / "m", {"endpoint": url, "max_batch_tokens": 9000}).resolve(Runtime("cpu"))
    assert (spec.engine, spec.endpoint) == ("remote", Where(URL, "test/far", ""))
    assert ModelSpec.from_json(spec.to_json()) == spec
    assert spec.admission_cost == 9000


def test_an_endpoint_may_have_a_model_name_and_a_key(tmp_path):
    given = {"url": "https://[::1]:8443/qwen/v1", "model": "embedder", "api_key_env": "THE_KEY"}
    spec = config(tmp_path / "m", {"endpoint": given, "engine": "remote"}).resolve(Runtime())
    assert spec.endpoint == Where("https://[::1]:8443/qwen", "embedder", "THE_KEY")
    hub = config(tmp_path / "m", {"endpoint": URL}, hf_id="org/name", weights_path=None)
    assert hub.resolve(Runtime()).endpoint == Where(URL, "org/name")


def test_a_profile_with_an_endpoint_is_a_separate_model(tmp_path):
    profiles = {"far": {"extends": "default", "endpoint": URL}, "near": {"extends": "far", "engine": "torch"}}
    here = config(tmp_path / "m", {"engine": "torch"}, profiles=profiles)
    assert here.resolve(Runtime()).endpoint is None
    (far,) = here.variants()
    assert far.sie_id == "test/far.far"
    assert (far.resolve(Runtime()).engine, far.resolve(Runtime()).endpoint) == ("remote", Where(URL, "test/far.far"))


def test_profiles_with_different_endpoints_are_models_of_their_own(tmp_path):
    profiles = {"same": {"endpoint": f"{URL}/v1"}, "other": {"endpoint": "http://other:1"}}
    there = config(
        tmp_path / "m",
        {"endpoint": URL},
        profiles={each: {"extends": "default", **given} for each, given in profiles.items()},
    )
    assert there.apart == {"other": ("endpoint",)}


@pytest.mark.parametrize(
    ("default", "said"),
    [
        ({"endpoint": "host:30000"}, r"endpoint\.url: .*must be an http or https URL, like http://host:30000"),
        ({"endpoint": "ftp://host"}, r"endpoint\.url: .*must be an http or https URL"),
        ({"endpoint": "http://"}, r"endpoint\.url: .*must be an http or https URL"),
        ({"endpoint": "http://host:port"}, r"endpoint\.url: .*is not a URL"),
        ({"endpoint": "http://me:secret@host"}, r"endpoint\.url: .*must not contain a user or a password"),
        ({"endpoint": "http://host/?key=1"}, r"endpoint\.url: .*must not contain a query or a fragment"),
        ({"endpoint": "http://host\r\nX: y"}, r"endpoint\.url: .*must not contain spaces or control characters"),
        ({"endpoint": {"model": "m"}}, r"endpoint\.url: is missing"),
        (
            {"endpoint": {"url": URL, "api_key": "k"}},
            r"endpoint\.api_key: unknown key; allowed keys are url, model, api_",
        ),
        ({"endpoint": {"url": URL, "api_key_env": "sk-1"}}, r"endpoint\.api_key_env: must match pattern"),
        ({"endpoint": {"url": URL, "api_key_env": "SIE_ADMIN_TOKEN"}}, "api_key_env: .*must not begin with SIE_"),
        ({"endpoint": URL, "engine": "torch"}, "engine: with an endpoint, must be remote or left out .given 'torch'"),
        ({"engine": "remote"}, r"profiles\.default\.endpoint: is missing; the engine remote needs the URL of a server"),
    ],
)
def test_an_invalid_endpoint_is_refused_with_its_key(tmp_path, default, said):
    with pytest.raises(CatalogError, match=rf"far\.yaml: .*{said}"):
        config(tmp_path / "m", default).resolve(Runtime())


@pytest.mark.parametrize(
    ("key", "value"), [("loras", {"a": "org/a"}), ("environment", "other"), ("allow_pickle", "tensors")]
)
def test_options_for_local_weights_are_refused_with_an_endpoint(tmp_path, key, value):
    with pytest.raises(CatalogError, match=f"{key}: cannot be used with an endpoint, which holds the weights"):
        config(tmp_path / "m", {"endpoint": URL}, **{key: value}).resolve(Runtime())


def test_options_that_the_endpoint_decides_are_warned_of(tmp_path):
    given = {"compute_precision": "float32", "adapter_options": {"loadtime": {"pooling": "cls"}}}
    lines = config(tmp_path / "m", {**given, "endpoint": URL}).warnings()
    keys = ("adapter_options.loadtime.pooling", "compute_precision")
    assert [line.partition("profiles.default.")[2] for line in lines] == [
        f"{key}: has no effect with the engine remote" for key in keys
    ]
    assert config(tmp_path / "m", given).warnings() == []


def test_a_family_without_a_remote_engine_refuses_an_endpoint(tmp_path):
    said = "profiles.default.endpoint: 'remote' cannot be served; the family cross_encoder can use torch"
    with pytest.raises(CatalogError, match=said):
        config(tmp_path / "m", {"endpoint": URL}, "cross_encoder").resolve(Runtime())


def test_remote_families_do_not_import_torch():
    modules = [f"sie_triton.models.families.{name}.remote" for name in ("sentence_transformer", "llm_reranker")]
    code = f"import sie_triton.pipeline.worker.__main__, sie_triton.engines.remote.engine, {', '.join(modules)}"
    assert imported(code, "torch", "transformers") == []
