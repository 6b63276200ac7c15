"""Two-tower models saved by sentence-transformers give the same vectors as the library."""

import json
import shutil

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import CLIPModel, Dense, Normalize, Pooling, Transformer

from sie_triton.errors import LoadError
from sie_triton.models.catalog.recognise import family_in
from tests.support.copies import update
from tests.support.items import Served
from tests.support.models import save_encoder
from tests.support.pictures import picture, saved
from tests.support.towers import save_clip, save_siglip

TEXTS = ["a photo of a cat", "two dogs"]
IMAGES = [picture(97, 61), picture(40, 90, seed=1)]
PADDED = {"text": {"padding": "max_length", "max_length": 64, "truncation": True}}


@pytest.fixture(scope="module")
def towers(tmp_path_factory, minilm_directory):
    home = tmp_path_factory.mktemp("towers")
    save_clip(home / "clip", minilm_directory)
    save_siglip(home / "siglip", minilm_directory)
    return home


def library_of(modules, directory):
    """Save the modules and load them again."""
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(directory))
    return SentenceTransformer(str(directory), device="cpu")


def before_6(towers, directory):
    """Move the module to a folder of its own, as versions before 6 saved it."""
    home = directory / "0_CLIPModel"
    shutil.copytree(towers / "clip", home)
    entry = {"idx": 0, "name": "0", "path": home.name, "type": "sentence_transformers.models.CLIPModel"}
    (directory / "modules.json").write_text(json.dumps([entry]))
    return SentenceTransformer(str(directory), device="cpu")


SAVED = {
    "CLIP": ("clip", 32, lambda towers, path: library_of([Transformer(str(towers / "clip"))], path)),
    "CLIP by its old class, normalized": (
        "clip",
        32,
        lambda towers, path: library_of([CLIPModel(str(towers / "clip")), Normalize()], path),
    ),
    "CLIP before 6": ("clip", 32, before_6),
    "SigLIP": (
        "siglip",
        48,
        lambda towers, path: library_of([Transformer(str(towers / "siglip"), processing_kwargs=PADDED)], path),
    ),
}


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("name", SAVED)
def test_vectors_are_the_librarys(name, towers, tmp_path):
    family, dim, build = SAVED[name]
    library = build(towers, tmp_path / "saved")
    assert family_in(tmp_path / "saved")[0] == family
    served = Served(family, tmp_path / "saved", dims={"dense": dim})
    found = served.encode(TEXTS)["dense"]
    assert np.allclose(found, unit(library.encode(TEXTS)), atol=1e-5)
    assert (found @ found.T)[0, 1] < 0.999
    found = served.encode([{"image": saved(image)} for image in IMAGES])["dense"]
    assert np.allclose(found, unit(library.encode(IMAGES)), atol=1e-5)


def test_the_part_of_the_whole_processor_holds(towers, tmp_path):
    """sentence-transformers lets transformers choose the file."""
    other = {"size": {"shortest_edge": 72}, "crop_size": 64, "resample": 2, "image_mean": 0.5, "image_std": 0.3}
    former = Served("clip", towers / "clip", dims={"dense": 32}).encode([{"image": saved(IMAGES[0])}])["dense"]
    before_6(towers, tmp_path)
    (tmp_path / "0_CLIPModel" / "processor_config.json").write_text(json.dumps({"image_processor": other}))
    library = SentenceTransformer(str(tmp_path), device="cpu")
    found = Served("clip", tmp_path, dims={"dense": 32}).encode([{"image": saved(IMAGES[0])}])["dense"]
    assert np.allclose(found, unit(library.encode(IMAGES[:1])), atol=1e-5)
    assert not np.allclose(found, former, atol=1e-3)


@pytest.mark.parametrize("arguments", ["processor_kwargs", "tokenizer_args"])
def test_settings_of_images_outside_the_processors_files_are_refused(towers, tmp_path, arguments):
    """The library passes these arguments on to the image processor, too."""
    library_of([Transformer(str(towers / "clip"))], tmp_path)
    update(tmp_path / "sentence_bert_config.json", **{arguments: {"do_center_crop": False}})
    with pytest.raises(LoadError, match="do_center_crop"):
        family_in(tmp_path)


def test_texts_are_truncated_where_the_library_truncates_them(towers, tmp_path):
    model = SentenceTransformer(modules=[Transformer(str(towers / "clip"))], device="cpu")
    model.max_seq_length = 9
    model.save_pretrained(str(tmp_path))
    update(tmp_path / "tokenizer.json", truncation=None)  # of MiniLM's tokenizer; CLIP's has none
    update(tmp_path / "tokenizer_config.json", max_length=None)
    long = ["one two three four five six seven eight nine ten eleven"]
    assert family_in(tmp_path)[1].max_sequence_length == 9
    found = Served("clip", tmp_path, dims={"dense": 32}).encode(long)["dense"]
    assert np.allclose(found, unit(SentenceTransformer(str(tmp_path), device="cpu").encode(long)), atol=1e-5)


def test_siglip_texts_are_padded_as_in_training_despite_saved_settings(towers, tmp_path):
    """Without a padding setting, the library pads texts to the longest of their batch."""
    library = library_of([Transformer(str(towers / "siglip"))], tmp_path)
    alone, beside = (library.encode(texts)[0] for texts in (TEXTS[:1], [TEXTS[0], "a long text beside it, longer"]))
    assert not np.allclose(alone, beside, atol=1e-3)
    found = Served("siglip", tmp_path, dims={"dense": 48}).encode(TEXTS)["dense"]
    bare = Served("siglip", towers / "siglip", dims={"dense": 48}).encode(TEXTS)["dense"]
    assert np.allclose(found, bare, atol=1e-6)


def test_a_text_only_tower_is_recognised_as_sentence_transformer(tmp_path, minilm_directory):
    """clip-ViT-B-32-multilingual-v1 is such a model: its text vectors match another model's images."""
    save_encoder(tmp_path / "bert", minilm_directory, "bert")
    transformer = Transformer(str(tmp_path / "bert"))
    library_of([transformer, Pooling(64), Dense(64, 32, bias=False)], tmp_path / "saved")
    assert family_in(tmp_path / "saved")[0] == "sentence_transformer"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}},
            "text: forward → last_hidden_state cannot be served; supported is get_text_features → pooler_output",
        ),
        ({"processing_kwargs": {"image": {"do_center_crop": False}}}, "image: do_center_crop cannot be served"),
    ],
)
def test_settings_that_change_the_librarys_results_are_refused(towers, tmp_path, changes, said):
    library_of([Transformer(str(towers / "clip"))], tmp_path)
    update(tmp_path / "sentence_bert_config.json", **changes)
    with pytest.raises(LoadError, match=said):
        family_in(tmp_path)


def test_a_tower_followed_by_other_layers_is_refused(towers, tmp_path):
    library_of([Transformer(str(towers / "clip")), Dense(32, 16)], tmp_path)
    with pytest.raises(LoadError, match="Transformer → Dense cannot be served"):
        family_in(tmp_path)
