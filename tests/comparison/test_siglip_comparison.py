"""Vectors of SigLIP, and of SigLIP 2 with images of any shape, equal those of transformers on the same files."""

import json

import numpy as np
import pytest
import torch
import transformers

from sie_triton.errors import LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.inputs.images import ImageFile
from tests.support.copies import copy
from tests.support.items import Served
from tests.support.pictures import pictures
from tests.support.towers import TowersLibrary, save_gemma_tokenizer, save_naflex, save_siglip, unit

TEXTS = ["a photo of a Cat", "two dogs!", "", "naïve 😀 " * 60]
SHAPES = [(97, 61), (40, 90), (33, 33), (300, 31), (8, 5), (640, 480), (5, 900)]
FILES = pictures(SHAPES)
KINDS = ("siglip", "siglip2")


@pytest.fixture(scope="module")
def directories(tmp_path_factory, minilm_directory):
    home = tmp_path_factory.mktemp("siglip")
    save_siglip(home / "siglip", minilm_directory)
    save_naflex(home / "siglip2")
    return {kind: home / kind for kind in KINDS}


@pytest.fixture(scope="module")
def ours(directories):
    return {kind: Served("siglip", directories[kind], dims={"dense": 48}) for kind in KINDS}


@pytest.fixture(scope="module")
def library(directories):
    return {kind: TowersLibrary(directory) for kind, directory in directories.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_recognised(directories, kind):
    name, found = family_in(directories[kind])
    assert (name, found.dims, found.max_sequence_length, found.normalize) == ("siglip", {"dense": 48}, 64, True)
    said = {"siglip": "images of 64 × 64 in 16 patches", "siglip2": "images of any shape in at most 24 patches"}
    assert found.reason == f"config.json: {kind}, {said[kind]}"


@pytest.mark.parametrize("kind", KINDS)
def test_texts(ours, library, kind):
    assert ours[kind].adapter.encoder.path == "packed"
    found = ours[kind].encode(TEXTS)["dense"]
    assert np.allclose(found, library[kind].texts(TEXTS), atol=1e-5)
    assert (found @ found.T - np.eye(len(TEXTS))).max() < 0.999


@pytest.mark.parametrize("kind", KINDS)
def test_images_of_several_shapes(ours, library, kind):
    """Images are encoded together and alone; the library pads each to the maximum number of patches."""
    found = ours[kind].encode([{"image": file} for file in FILES])["dense"]
    assert np.allclose(found, library[kind].images(FILES), atol=1e-5)
    alone = np.concatenate([ours[kind].encode([{"image": file}])["dense"] for file in FILES])
    assert np.allclose(found, alone, atol=1e-5)
    assert (found @ found.T - np.eye(len(FILES))).max() < 0.999


@pytest.mark.parametrize("kind", KINDS)
def test_texts_and_images_in_one_request(ours, library, kind):
    items = [TEXTS[0], {"image": FILES[0]}, TEXTS[1], {"image": FILES[1]}]
    expected = np.empty((4, 48), np.float32)
    expected[[0, 2]], expected[[1, 3]] = library[kind].texts(TEXTS[:2]), library[kind].images(FILES[:2])
    assert np.allclose(ours[kind].encode(items)["dense"], expected, atol=1e-5)


@pytest.mark.parametrize(("kind", "of_images"), [("siglip", [16, 16]), ("siglip2", [24, 21])])
def test_the_cost_of_an_item_includes_padding(ours, kind, of_images):
    """An item costs all that the model reads, padding included."""
    processor = ours[kind].processor
    images = [processor.prepare({"image": ImageFile(file, "image")}) for file in FILES[:2]]
    features = processor.encode([{"text": "a"}, *images])
    assert features["read"].values.tolist() == [64, *of_images]


def test_a_model_file_may_cut_texts_sooner(directories, library):
    """Texts are padded nevertheless: the model was trained so."""
    served = Served("siglip", directories["siglip"], dims={"dense": 48}, max_sequence_length=5)
    tokenizer = library["siglip"].tokenizer
    cut = tokenizer("one two three four five six", truncation=True, max_length=5)["input_ids"]
    ids = torch.tensor([cut + [tokenizer.pad_token_id] * (64 - len(cut))])
    with torch.inference_mode():
        expected = unit(library["siglip"].model.get_text_features(input_ids=ids).pooler_output)
    assert np.allclose(served.encode(["one two three four five six"])["dense"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "tokenizer", "lowers"),
    [
        ("siglip", "Siglip2Tokenizer", True),
        ("siglip", "GemmaTokenizer", False),
        # This holds whatever its files say.
        ("siglip2", "GemmaTokenizer", True),
    ],
)
def test_gemmas_tokenizer(directories, tmp_path, kind, tokenizer, lowers):
    """SigLIP 2 with images of one size is transformers' SigLIP; its pad_token is not that of config.json's default."""
    copy(directories[kind], tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    save_gemma_tokenizer(tmp_path, getattr(transformers, tokenizer))
    texts = ["a Cat", "a cat", "dog.", "Ünï"]
    found = Served("siglip", tmp_path, dims={"dense": 48}).encode(texts)["dense"]
    assert np.allclose(found, TowersLibrary(tmp_path).texts(texts), atol=1e-5)
    assert np.allclose(found[0], found[1], atol=1e-5) == lowers


def test_the_first_siglips_tokenizer_cleans_texts(directories, tmp_path):
    """Texts are cleaned whatever tokenizer.json says; the library's own tokenizer needs sentencepiece."""
    other = copy(directories["siglip"], tmp_path, "tokenizer_config.json", tokenizer_class="SiglipTokenizer")
    features = Served("siglip", other, dims={"dense": 48}).processor.encode([{"text": "a Cat, (that) sits."}])
    plain = Served("siglip", directories["siglip"], dims={"dense": 48}).processor.encode([{"text": "a cat that sits"}])
    assert features["input_ids"].values.tolist() == plain["input_ids"].values.tolist()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("siglip", {"image_processor_type": "CLIPImageProcessor", "size": 64, "crop_size": 64}),
        ("siglip", {"feature_extractor_type": "ViTFeatureExtractor", "size": 64}),
        ("siglip2", {"patch_size": 8, "max_num_patches": 24, "do_rescale": False, "resample": None}),
        ("siglip2", {"patch_size": 8, "max_num_patches": 24, "do_normalize": False, "size": {"height": 9, "width": 9}}),
    ],
)
def test_settings_left_to_the_class(directories, tmp_path, kind, settings):
    copy(directories[kind], tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    found = Served("siglip", tmp_path, dims={"dense": 48}).encode([{"image": file} for file in FILES])["dense"]
    assert np.allclose(found, TowersLibrary(tmp_path).images(FILES), atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "file", "changes", "said"),
    [
        ("siglip", "config.json", {"vision_config__image_size": 80}, "64 × 64, but config.json needs 80 × 80"),
        ("siglip", "config.json", {"vision_config__vision_use_head": False}, "there is no layer that makes one vector"),
        ("siglip", "config.json", {"text_config__projection_size": 40}, "texts become 40 numbers and images 48"),
        ("siglip", "tokenizer_config.json", {"pad_token": None}, "pad_token is missing"),
        ("siglip", "preprocessor_config.json", {"size": {"shortest_edge": 64}}, "images of different sizes"),
        ("siglip2", "preprocessor_config.json", {"patch_size": 16}, "patches of 16 pixels, but config.json needs 8"),
        ("siglip2", "preprocessor_config.json", {"do_resize": False}, "do_resize false cannot be served"),
        ("siglip2", "config.json", {"vision_config__num_patches": 17}, "num_patches: must be a square"),
    ],
)
def test_unsupported_settings_are_refused_with_their_file(directories, tmp_path, kind, file, changes, said):
    with pytest.raises(LoadError, match=said):
        family_in(copy(directories[kind], tmp_path, file, **changes))


def test_inconsistent_image_features_are_not_accepted(ours):
    """A client may send these to the step directly."""
    tower = ours["siglip2"].adapter.vision
    lengths, shapes = np.array([3 * 8 * 16], np.int32), np.array([[8, 16]], np.int32)
    assert tower.takes(lengths, shapes)
    assert tower.takes(lengths, np.array([[16, 8]], np.int32))
    for wrong in ([[0, 0]], [[7, 16]], [[8, 24]], [[8, 2**31 - 8]], [[-8, -16]], [[200, 200]]):
        assert not tower.takes(lengths, np.array(wrong, np.int32))
    assert not ours["siglip"].adapter.vision.takes(lengths, shapes)
