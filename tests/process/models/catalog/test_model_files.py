"""Unsupported keys of model files are never ignored silently."""

import logging
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sie_triton.cli import cli
from sie_triton.contract.spec import Runtime
from sie_triton.errors import CatalogError, LoadError, SettingsError
from sie_triton.models.catalog import load_file, recognise, select
from sie_triton.models.families.cross_encoder import PairTokenizer
from sie_triton.models.families.multivector import MultiVectorTokenizer
from sie_triton.models.families.multivector.stanford_colbert import read_multi_vector
from sie_triton.models.inputs.tokenizer import TextTokenizer
from sie_triton.pipeline.render.build import write_repository
from sie_triton.settings import read_settings
from tests.conftest import MINILM, model_file, tiny_model_file
from tests.support.models import save_pylate, save_splade

DENSE = {"encode": {"dense": {"dim": 64}}}


def dense_file(directory: Path, text: str) -> Path:
    path = directory / "model.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"loadtime": {"config_kwargs": {"rope_scaling": 2}}}, "loadtime.config_kwargs.rope_scaling: cannot be"),
        ({"loadtime": {"config_kwargs": True}}, "loadtime.config_kwargs: must be a mapping; its keys may be unpad_inp"),
        ({"loadtime": {"config_kwargs": {"a": 1, 2: 3}}}, "loadtime.config_kwargs.2: cannot be served; allowed are "),
        ({"loadtime": {"yes_token": "yes"}}, "loadtime.yes_token: is not an option of the family"),
        ({"loadtime": {"muvera_config": {}}}, "loadtime.muvera_config: is not an option of the family"),
    ],
)
def test_unsupported_loadtime_options_are_refused(tmp_path, changes, complaint):
    path = dense_file(tmp_path, model_file("my/m", tmp_path, "sentence_transformer", DENSE, **changes))
    with pytest.raises(CatalogError, match=f"^{path}: .*{complaint}"):
        load_file(path).resolve(Runtime())


@pytest.mark.parametrize("inputs", ["image: true", "audio: true", "video: true", "document: true"])
def test_unsupported_inputs_are_refused(tmp_path, inputs):
    text = model_file("my/m", tmp_path, "sentence_transformer", DENSE)
    path = dense_file(tmp_path, text.replace("inputs:\n  text: true\n", f"inputs: {{{inputs}}}\n"))
    with pytest.raises(CatalogError, match=f"{path}: inputs.{inputs} cannot be served; .* reads only text"):
        load_file(path).resolve(Runtime())


@pytest.mark.parametrize(
    ("family", "tasks", "inputs", "reads"),
    [
        ("docling", {"extract": {}}, "{document: true, text: false, image: false}", ["document", "image"]),
        ("sentence_transformer", DENSE, "{text: false}", ["text"]),
    ],
)
def test_an_input_that_the_family_reads_is_read_although_the_file_denies_it(tmp_path, family, tasks, inputs, reads):
    text = model_file("my/m", tmp_path, family, tasks).replace("inputs:\n  text: true\n", f"inputs: {inputs}\n")
    model = load_file(dense_file(tmp_path, text))
    assert sorted(model.resolve(Runtime()).inputs) == reads
    denied = "image" if family == "docling" else "text"
    assert f"inputs.{denied}: false has no effect; the family {family} reads it" in model.warnings()[0]


def test_colbert_query_padding_is_limited_by_the_maximum_length(tmp_path, minilm_directory, caplog):
    directory = save_pylate(tmp_path, minilm_directory)
    with caplog.at_level(logging.WARNING):
        tokenizer = MultiVectorTokenizer.of(read_multi_vector(directory), 16)
    assert "queries are filled up to 16 tokens, not to 32" in caplog.text
    for texts in (["who?"], ["who " * 100, "?"]):
        assert tokenizer.encode(texts, is_query=True)["input_ids"].lengths.tolist() == [16] * len(texts)
    longer = MultiVectorTokenizer.of(read_multi_vector(directory), 64)
    assert longer.encode(["who?"], is_query=True)["input_ids"].lengths.tolist() == [32]


@pytest.mark.parametrize(("kind", "around"), [(TextTokenizer, 2), (PairTokenizer, 3)])
def test_a_length_without_room_for_a_text_is_refused(tiny_directory, kind, around):
    with pytest.raises(LoadError, match=f"{around} tokens leave no room for a text besides the {around} special"):
        kind.load(tiny_directory, around)
    pair = ("a " * 99, "b " * 99)
    tokens = kind.load(tiny_directory, around + 1).encode([pair if kind is PairTokenizer else pair[0]])
    np.testing.assert_array_equal(tokens["input_ids"].lengths, around + 1)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"sie_id: \xff\xfe", r"not valid UTF-8 \(byte 0xff at 8\)"),
        (b"a: b: c", r"not valid YAML: line 1, column 5: mapping values are not allowed here\n    a: b: c\n"),
        (b"a: 2026-13-45", "not valid YAML: month must be"),
        (b"[" * 5000, "nested too deeply"),
        (b"a: " + b"9" * 5000, "not valid YAML: Exceeds the limit"),
        (b"\x00", "not valid YAML: unacceptable character"),
        (b"!!python/object/apply:os.system [ls]", r"not valid YAML: line 1, column 1: could not determine a"),
        (b"", "is empty; a model file needs the keys sie_id, hf_id, tasks, profiles"),
        (b"# nothing yet", "is empty; a model file needs the keys"),
        (b"5", "contains only 5; a model file needs the keys"),
    ],
)
def test_an_invalid_model_file_is_reported_in_short(tmp_path, content, complaint):
    path = tmp_path / "model.yaml"
    path.write_bytes(content)
    with pytest.raises(CatalogError, match=f"^{path}: .*{complaint}") as caught:
        load_file(path)
    first, *place = str(caught.value).splitlines()
    assert (len(first) < 500, len(place) in (0, 2)) == (True, True)


def test_errors_shorten_the_given_value(tmp_path):
    """YAML aliases can expand a value of a few lines to billions."""
    levels = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
    with pytest.raises(CatalogError) as caught:
        load_file(dense_file(tmp_path, f"a0: &a0 x\n{levels}sie_id: *a29\n"))
    assert all(len(line) < 3000 for line in str(caught.value).splitlines())


@pytest.mark.parametrize("name", [".", "..", ".hidden", "-rf", "org/.", "org/-x", "./x", "a b", "naïve", "a/b/c", ""])
def test_an_invalid_sie_id_is_refused(tmp_path, name):
    text = tiny_model_file("NAME", tmp_path).replace("NAME", f'"{name}"')
    with pytest.raises(CatalogError, match=r"sie_id: .*must be name or org/name"):
        load_file(dense_file(tmp_path, text))


def test_a_missing_or_empty_models_dir_is_refused(tmp_path):
    with pytest.raises(CatalogError, match=r"models_dir: .*/nowhere: cannot be read \(No such file"):
        select([], tmp_path / "nowhere", allow_hub=False)
    with pytest.raises(CatalogError, match=r"models_dir: .* contains no model file"):
        select([], tmp_path, allow_hub=False)
    assert [model.sie_id for model in select([MINILM], tmp_path, allow_hub=False).models] == [MINILM]


def test_both_suffixes_are_read_and_what_is_listed_is_served(tmp_path):
    (tmp_path / "one.yaml").write_text(tiny_model_file("my/one", tmp_path))
    (tmp_path / "two.yml").write_text(tiny_model_file("my/two", tmp_path))
    served = [model.sie_id for model in select([], tmp_path, allow_hub=False).models]
    assert served == ["my/one", "my/two"]
    listed = CliRunner().invoke(cli, ["models", "ls", "--models-dir", str(tmp_path)], catch_exceptions=False).output
    assert [line.split()[0] for line in listed.splitlines()] == served


def test_one_sie_id_in_two_files_is_served_from_the_first(tmp_path):
    for name in ("one.yaml", "two.yml"):
        (tmp_path / name).write_text(tiny_model_file("my/m", tmp_path))
    found = select([], tmp_path, allow_hub=False)
    assert [model.source for model in found.models] == [str(tmp_path / "one.yaml")]
    (problem,) = found.problems.values()
    assert re.search(
        r"one\.yaml and .*two\.yml: both would be served as my__m; give one of them another sie_id", problem
    )


def test_two_models_of_one_name_in_triton_are_never_served_together(tmp_path, minilm_directory):
    for name in ("org/x", "org__x", "Org/X"):
        (tmp_path / f"{name.replace('/', '-')}.yaml").write_text(tiny_model_file(name, tmp_path))
    found = select([], tmp_path, allow_hub=False)
    assert [model.sie_id for model in found.models] == ["Org/X"]
    first, second = found.problems.values()
    assert re.search(r"Org-X\.yaml and .*org-x\.yaml: both would share a directory on a case-insensitive disk", first)
    assert "['Org__X', 'org__x']" in second
    assert len(select(["org/x"], tmp_path, allow_hub=False).models) == 1
    with pytest.raises(CatalogError, match=r"org-x\.yaml and .*org__x\.yaml: both would be served as org__x"):
        select(["org/x", "org__x"], tmp_path, allow_hub=False)
    splade, colbert = save_splade(tmp_path / "s", minilm_directory), save_pylate(tmp_path / "c", minilm_directory)
    with pytest.raises(CatalogError, match=r"s/model and .*c/model: both would be served as model"):
        select([str(splade), str(colbert)], None, allow_hub=False)
    again = [str(splade), f"{splade}/", str(splade)]
    assert [model.sie_id for model in select(again, None, allow_hub=False).models] == ["model"]


def test_a_model_to_preload_must_be_served(tmp_path):
    settings = read_settings(preload_models="my/m")
    with pytest.raises(SettingsError, match=f"preload_models: not served: my/m; served are {MINILM}"):
        write_repository(tmp_path, settings, [], hook=False)


def test_a_directory_whose_name_is_no_model_id_is_refused(tmp_path, tiny_directory):
    for name in ("my model", ".hidden", "ü"):
        (tmp_path / name).symlink_to(tiny_directory)
        with pytest.raises(CatalogError, match=r"sie_id: .*must be name or org/name"):
            recognise(tmp_path / name, name, {"weights_path": str(tmp_path / name)})
