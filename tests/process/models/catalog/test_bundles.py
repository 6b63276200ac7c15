"""Bundles: files of ours and of SIE's, their models, and what is refused."""

import re

import pytest
import yaml

from sie_triton.errors import CatalogError
from sie_triton.models.catalog.bundles import models_of_bundle
from sie_triton.models.catalog.load import known_models
from sie_triton.pipeline.render.models_mirror import bundled
from sie_triton.pipeline.render.refresh import start
from sie_triton.settings import read_settings
from tests.conftest import tiny_model_file

KNOWN = known_models()[0]
ADAPTER = "sie_server.adapters.sentence_transformer:SentenceTransformerDenseAdapter"


@pytest.fixture
def models_dir(tmp_path, tiny_directory):
    """Return a directory of two models, one with the name of SIE's adapter, and of bundles."""
    directory = tmp_path / "models"
    (directory / "bundles").mkdir(parents=True)
    for name in ("ours", "sies"):
        text = tiny_model_file(f"test/{name}", tiny_directory)
        adapter = yaml.safe_load(text)["profiles"]["default"]["adapter_path"]
        (directory / f"{name}.yaml").write_text(text if name == "ours" else text.replace(adapter, ADAPTER, 1))
    return directory


def write(models_dir, bundle, /, **content):
    (models_dir / "bundles" / f"{bundle}.yaml").write_text(yaml.safe_dump(content))


def served(models_dir, **settings):
    """Return the names of the models that a server with these settings serves from its start."""
    given = read_settings(models_dir=models_dir, data_dir=models_dir.parent / "data", device="cpu", **settings)
    return {model.sie_id for model in start(bundled(given), ()).models}


def test_a_bundle_names_the_models_that_are_served(models_dir):
    write(models_dir, "search", name="search", models=["test/ours"])
    assert served(models_dir) == {"test/ours", "test/sies"}
    assert served(models_dir, bundle="search") == {"test/ours"}


def test_a_bundle_may_name_known_models_of_the_package(models_dir):
    write(models_dir, "search", models=[KNOWN])
    assert models_of_bundle("search", models_dir) == (KNOWN,)
    for path in models_dir.glob("*.yaml"):
        path.unlink()
    assert served(models_dir, bundle="search") == {KNOWN}


def test_a_bundle_of_sie_has_the_models_of_its_adapters(models_dir):
    adapters = ["sie_server.adapters.sentence_transformer.adapter", "sie_server.adapters.clip"]
    rest = {"priority": 10, "default": True, "engine": "a", "platform": "cuda13", "deps": {"transformers": ">=5"}}
    write(models_dir, "sie", name="sie", adapters=adapters, **rest)
    assert served(models_dir, bundle="sie") == {"test/sies"}


def test_the_default_bundle_may_have_a_file(models_dir):
    write(models_dir, "default", models=["test/ours"])
    assert served(models_dir) == {"test/ours"}


def test_the_model_filter_chooses_among_the_models_of_a_bundle(models_dir):
    write(models_dir, "both", models=["test/ours", "test/sies"])
    assert served(models_dir, bundle="both", model_filter="*/ours") == {"test/ours"}
    with pytest.raises(CatalogError, match=r"model_filter: other/\*: matches no model of the bundle both"):
        served(models_dir, bundle="both", model_filter="other/*")


def test_models_outside_a_bundle_are_not_known(models_dir):
    write(models_dir, "search", models=["test/ours"])
    chosen = bundled(read_settings(models_dir=models_dir, bundle="search"))
    assert chosen.name_patterns == ("test/ours",)


def test_an_unknown_bundle_is_refused_with_the_known_ones(models_dir):
    write(models_dir, "search", models=["test/ours"])
    said = "SIE_BUNDLE=serach: no such bundle; bundles in models_dir has default, search"
    with pytest.raises(CatalogError, match=re.escape(said)):
        served(models_dir, bundle="serach")
    with pytest.raises(CatalogError, match=r"no such bundle; bundles in models_dir has default$"):
        models_of_bundle("search", None)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"models": ["test/absent"]}, "models: test/absent: no model file of the package or of models_dir has this"),
        ({"adapters": ["sie_server.adapters.clip"]}, "has no models, and no model file of models_dir has one"),
        ({"model": ["test/ours"]}, "model: unknown key; allowed keys are models, adapters"),
        ({"models": "test/ours"}, "models: must be "),
    ],
)
def test_an_invalid_bundle_is_refused_by_its_file_and_key(models_dir, content, said):
    write(models_dir, "search", **content)
    with pytest.raises(CatalogError, match=rf"bundles/search\.yaml: {said}"):
        models_of_bundle("search", models_dir)
