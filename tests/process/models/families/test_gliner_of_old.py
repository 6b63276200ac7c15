"""GLiNER checkpoints of versions before 0.2.8, which keep the encoder's files in another repository."""

import json
import shutil

import pytest
from gliner import GLiNER

from sie_triton.errors import LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.families import family
from sie_triton.models.weights.locate import loadable
from tests.support.extraction import Extractor
from tests.support.gliners import LABELS, TEXTS, assert_same, save_gliner
from tests.support.models import CONFIGS
from tests.support.stages import spec

NEWER = ("encoder_config", "class_token_index", "vocab_size", "model_type")


@pytest.fixture(scope="module")
def saved(tmp_path_factory, minilm_directory):
    """Directories of the model and of its encoder's repository."""
    root = tmp_path_factory.mktemp("gliner-of-old")
    base = root / "tokenizer"
    save_gliner(root, minilm_directory, "deberta", hidden_size=48, model_name=str(base))
    CONFIGS["deberta"].save_pretrained(base)
    old = root / "old"
    old.mkdir()
    config = json.loads((root / "model/gliner_config.json").read_text())
    (old / "gliner_config.json").write_text(json.dumps({key: config[key] for key in config if key not in NEWER}))
    shutil.copy(root / "model/model.safetensors", old)
    return old, base


def test_entities_are_those_of_the_library(saved, tmp_path):
    old, base = saved
    library = GLiNER.from_pretrained(str(old), local_files_only=True)
    shutil.copytree(old, tmp_path / "model")
    shutil.copytree(base, tmp_path / "model/encoder")
    assert family_in(tmp_path / "model")[0] == "gliner"
    ours = Extractor("gliner", tmp_path / "model")
    options = {"threshold": 0.4, "flat_ner": False}
    expected = library.inference(TEXTS[:6], list(LABELS), **options)
    for found, theirs in zip(ours(TEXTS[:6], LABELS, **options), expected, strict=True):
        assert_same(found, theirs)
    assert sum(map(len, expected)) > 10
    # With random weights, scores hardly depend on the marker's ID, so compare the IDs.
    tokens = [ours.processor._files.marker, ours.processor._files.separator]
    theirs = library.data_processor.transformer_tokenizer.convert_tokens_to_ids(tokens)
    assert [ours.processor._words.tokenizer.token_to_id(token) for token in tokens] == theirs


def test_files_of_the_encoder_are_requested_from_its_repository(saved, tmp_path):
    old, base = saved
    assert family("gliner").other_repositories(old) == {"encoder": str(base)}
    assert family("gliner").other_repositories(old.parent / "model") == {}
    with pytest.raises(LoadError, match=r"the files of its encoder are missing; those of .* are fetched if a model"):
        family_in(old)
    asked = spec(weights=str(old), family="gliner")
    kind = family("gliner")
    with pytest.raises(LoadError, match=r"its further files are in the repository .* and cannot be fetched"):
        loadable(asked, kind.files, cache=tmp_path, other_repositories=kind.other_repositories)
