"""Model files made by recognition, and messages if a model file and the model's own files disagree."""

import itertools
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from sie_triton.contract import Part
from sie_triton.contract.spec import Profile, Runtime
from sie_triton.errors import CatalogError
from sie_triton.models.catalog import load_file, recognise
from sie_triton.models.catalog.recognise import config_of, explain, to_yaml
from sie_triton.models.families import Recognised, load_processor
from sie_triton.models.inputs.prompt import prompt_of
from tests.conftest import model_file
from tests.support.layouts import ASKING, PROMPTS, STANFORD, bare, changed, dense
from tests.support.loading import load_adapter
from tests.support.models import save_stanford

DENSE = {"encode": {"dense": {"dim": 64}}}


def test_conflicts_between_model_file_and_checkpoint_are_logged(tmp_path, minilm_directory, caplog):
    """The log says once: pooling follows the checkpoint, and parameters of requests follow the model file."""
    directory = dense(pooling="cls")(tmp_path / "saved", minilm_directory)
    said = {"pooling": "mean", "normalize": False, "query_template": "Q: {text}", "doc_template": "text: {text}"}
    lines = logged(tmp_path, directory, caplog, said, max_sequence_length=1024)
    assert lines == [
        "profile default: normalize is False, but the model's own modules end in Normalize",
        "pooling: the model file says mean, but the checkpoint says cls and takes precedence",
        "texts are truncated to 512 tokens, as the model's own files say, not to 1024",
        "profile default: a query is read as 'Q: …', as the model file says, "
        "not as 'search for: …', the prompt in the model's own files",
    ]


@pytest.mark.parametrize("said", [{}, {"pooling": "cls", "normalize": True, **ASKING, "doc_template": "text: {text}"}])
def test_no_warning_is_logged_where_file_and_checkpoint_agree(tmp_path, minilm_directory, caplog, said):
    directory = dense(pooling="cls")(tmp_path / "saved", minilm_directory)
    assert logged(tmp_path, directory, caplog, said) == []


def test_no_conflict_is_logged_for_a_bare_directory(tmp_path, minilm_directory, caplog):
    directory = bare()(tmp_path / "saved", minilm_directory)
    said = {"pooling": "cls", "normalize": True, "query_template": "Q: {text}", "doc_template": "T: {text}"}
    assert logged(tmp_path, directory, caplog, said) == []


def test_stanford_metadata_alone_identifies_a_checkpoint(tmp_path, minilm_directory):
    """Some name another architecture beside it."""
    directory = save_stanford(tmp_path, minilm_directory, STANFORD)
    renamed_class = changed(lambda *_: directory, "config.json", architectures=["BertModel"])
    config, reason = explain(renamed_class(tmp_path, minilm_directory), "my/m", {"weights_path": str(directory)})
    assert (config.family, config.dims, config.verbs) == ("multivector", {"multivector": 32}, ("encode", "score"))
    assert reason.startswith("artifact.metadata: Transformer, Dense (32)")


def logged(root: Path, directory: Path, caplog: Any, runtime: dict[str, Any], **keys: Any) -> list[str]:
    """Load the weights and the tokenizer of a model file once each; return the warnings."""
    content = yaml.safe_load(model_file("my/m", directory, "sentence_transformer", DENSE, runtime=runtime))
    path = root / "model.yaml"
    path.write_text(yaml.safe_dump({**content, **keys}))
    spec = load_file(path).resolve(Runtime("cpu"))
    with caplog.at_level(logging.WARNING):
        load_adapter(spec, directory)
        load_processor(spec, directory)
    return [record.getMessage() for record in caplog.records if record.name.startswith("sie_triton")]


def test_a_recognised_prompt_equals_the_checkpoints_own(tiny_directory):
    """This holds for every role and instruction of a request."""
    found = Recognised("", 512, {"dense": 64}, query_prompt=PROMPTS["query"])
    config = config_of("my/m", {"weights_path": str(tiny_directory)}, "sentence_transformer", found)
    (profile,) = config.resolve(Runtime()).profiles
    for is_query, instruction in itertools.product((None, True, False), (None, "", "find: ")):
        alone, recognised = (
            prompt_of(PROMPTS, "usual: ", Part("text", [], each, is_query, instruction))
            for each in (Profile(), profile)
        )
        assert alone == recognised


@pytest.mark.parametrize("odd", ["a: {b}\n\t# 'c' \" \x07 naïve 日本 - ", "\x85", "\u2028 --- \ufeff", "{text}"])
def test_a_generated_model_file_escapes_any_text(tmp_path, tiny_directory, odd):
    """Prompts and reasons are foreign text: lines, braces, quotes, and characters that YAML must escape."""
    found = Recognised(f"modules.json: {odd}", 512, {"dense": 64}, query_prompt=odd)
    config = config_of("my/m", {"weights_path": str(tiny_directory)}, "sentence_transformer", found)
    text = to_yaml(config, found.reason)
    path = tmp_path / "model.yaml"
    path.write_text(text)
    assert load_file(path) == config.record_source(path)
    runtime = config.profile("default").adapter_options.runtime
    assert (runtime.query_template, runtime.default_instruction) == ("{instruction}{text}", odd)
    assert text == to_yaml(config, found.reason)
    comments, _, rest = text.partition("sie_id: my/m\n")
    assert all(line.startswith("# ") for line in comments.split("\n")[:-1])
    assert rest.startswith("weights_path: ")


def test_only_the_named_family_recognises_a_directory(tmp_path, minilm_directory, tiny_directory):
    with pytest.raises(CatalogError, match="the family splade does not recognise this model"):
        recognise(tiny_directory, "my/m", {"weights_path": str(tiny_directory)}, "splade")
    directory = changed(bare(), "config.json", architectures=None)(tmp_path / "saved", minilm_directory)
    assert recognise(directory, "my/m", {"hf_id": "my/m"}, "sentence_transformer").dims == {"dense": 64}


def test_recognition_on_the_hub_needs_no_weights(tmp_path, minilm_directory):
    """Only small files are fetched to know what a model is."""
    directory = dense()(tmp_path / "saved", minilm_directory)
    (directory / "model.safetensors").unlink()
    assert recognise(directory, "my/m", {"hf_id": "my/m"}).dims == {"dense": 64}
    with pytest.raises(CatalogError, match=r"has no model\.safetensors"):
        recognise(directory, "my/m", {"weights_path": str(directory)})
