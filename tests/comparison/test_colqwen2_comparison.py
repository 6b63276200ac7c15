"""Vectors of pages and questions equal those of transformers' ColQwen2ForRetrieval on the same weights and files."""

import numpy as np
import pytest
import torch
import transformers

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract import Batch
from sie_triton.contract.tensors import IMAGE_SIZES
from sie_triton.engines.torch.patch_tower import PatchTower
from sie_triton.errors import LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.inputs.patch_resizing import resized_for_patches
from tests.support.items import Served
from tests.support.pages import PageLibrary, as_engine_saves, same, save_colqwen2, vectors_of
from tests.support.pictures import picture, pictures

TEXTS = ["What does the invoice say?", "two dogs", "", "naïve 😀 größe"]
FILES = pictures()
OPTIONS = {"dims": {"multivector": 32}, "tasks": ("encode", "score"), "score_modes": ("maxsim",)}


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen2_5_vl"])
def directory(tmp_path_factory, minilm_directory, request):
    return save_colqwen2(tmp_path_factory.mktemp(request.param), minilm_directory, request.param)


@pytest.fixture(scope="module")
def ours(directory):
    name, found = family_in(directory)
    assert (name, dict(found.dims), found.scores) == ("colqwen2", {"multivector": 32}, True)
    served = Served("colqwen2", directory, **OPTIONS)
    assert (served.adapter.encoder.path, served.adapter.encoder.paths) == ("packed", ("packed",))
    return served


@pytest.fixture(scope="module")
def library(directory):
    return PageLibrary(directory)


def test_texts_and_images_in_one_request(ours, library):
    items = [TEXTS[0], *({"image": file} for file in FILES), *TEXTS[1:]]
    found = vectors_of(ours.encode(items))
    of_texts, of_images = [library.text(text) for text in TEXTS], [library.image(file) for file in FILES]
    assert all(map(same, found, [of_texts[0], *of_images, *of_texts[1:]]))
    assert len({len(each) for each in found[1:5]}) > 1
    for item, together in zip(items, found, strict=True):
        assert np.allclose(vectors_of(ours.encode([item]))[0], together, atol=1e-5)


def test_a_text_that_holds_the_token_of_images(ours):
    """The states of an image in the same batch do not replace those of the text."""
    text = "an <|image_pad|>"
    alone, together = ours.encode([text]), ours.encode([{"image": FILES[0]}, text])
    assert np.allclose(vectors_of(alone)[0], vectors_of(together)[1], atol=1e-5)


def test_the_padded_path_gives_the_same_vectors(ours, library):
    ours.adapter.encoder.use("padded")
    try:
        found = vectors_of(ours.encode([TEXTS[0], {"image": FILES[0]}]))
    finally:
        ours.adapter.encoder.use("packed")
    assert all(map(same, found, [library.text(TEXTS[0]), library.image(FILES[0])]))


def test_the_same_weights_as_colpali_engine_saves_them(tmp_path, directory, ours):
    """Its queries end without a line break, which this tokenizer does not read."""
    as_engine_saves(directory, tmp_path)
    name, recognised = family_in(tmp_path)
    assert (name, dict(recognised.dims)) == ("colqwen2", {"multivector": 32})
    items = [TEXTS[0], {"image": FILES[0]}]
    found = Served("colqwen2", tmp_path, **OPTIONS).encode(items)
    assert np.allclose(found["multivector"], ours.encode(items)["multivector"], atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"min_pixels": 40_000},
        {"size": {"shortest_edge": 3136, "longest_edge": 9000}, "resample": 2},
        {"patch_size": 16, "merge_size": 3, "temporal_patch_size": 1, "image_mean": [0.1, 0.2, 0.3]},
        {"max_pixels": 784, "min_pixels": 1},
    ],
)
def test_patches_are_those_of_the_processor(tmp_path, settings):
    processor = transformers.Qwen2VLImageProcessorPil(**settings)
    processor.save_pretrained(tmp_path)
    plan = PatchPlan.read(tmp_path, Fields("", {}))
    tower = FakeTower(plan)
    for seed, size in enumerate([(97, 61), (40, 90), (33, 33), (300, 31), (7, 5), (640, 11), (1, 199)]):
        image = picture(*size, seed=seed)
        pixels = resized_for_patches(image, plan)
        expected = processor(image, return_tensors="np")
        height, width = pixels.shape[:2]
        assert expected["image_grid_thw"].tolist() == [[1, height // plan.patch, width // plan.patch]]
        assert expected["pixel_values"].shape[0] == plan.num_patches(height, width)
        assert plan.num_tokens(height, width) * plan.merge**2 == plan.num_patches(height, width)
        assert height * width <= plan.most_pixels
        assert np.abs(tower._patches(pixels.flatten(), height, width) - expected["pixel_values"]).max() < 1e-5


class FakeTower(PatchTower):
    """Vision tower that only makes patches."""

    def __init__(self, plan):
        self.plan, self.device = plan, "cpu"
        self._mean, self._std = torch.tensor(plan.mean), torch.tensor(plan.std)


def test_the_calibration_sample_is_a_page(ours):
    """The page has 12 tokens, the limit of the checkpoint; each patch adds half a token to its cost."""
    page = ours.adapter.sample([2])
    height, width = page[IMAGE_SIZES.name].values[0]
    assert (height, width) == (112, 84)
    num_tokens = int(page["input_ids"].of_items[0])
    assert page["read"].values.tolist() == [num_tokens + 48 // 2]


def test_sides_that_are_no_multiples_are_refused(ours):
    features = dict(ours.adapter.sample([1]))
    sizes = features[IMAGE_SIZES.name].values + np.array([1, 0], np.int32)
    features[IMAGE_SIZES.name] = features[IMAGE_SIZES.name]._replace(values=sizes)
    with pytest.raises(ValueError, match="must be multiples of 28"):
        ours.adapter.forward(Batch(features, np.zeros(1, np.bool_)))


@pytest.mark.parametrize(
    ("file", "said", "instead", "complaint"),
    [
        ("config.json", '_vl",', '_vq",', r"vlm_config: model_type 'qwen2_.*' cannot be served; .* qwen2_vl,"),
        ("config.json", '"spatial_merge_size": 2', '"spatial_merge_size": 4', r"merge_size is 4, but .* makes 2"),
        ("processor_config.json", "<|image_pad|>", "<|im_end|>", "must contain the token"),
        ("processor_config.json", '"do_resize": true', '"do_resize": false', "do_resize false cannot be served"),
        ("processor_config.json", '"longest_edge": 9408', '"longest_edge": 700', "is larger than the maximum"),
    ],
)
def test_unsupported_checkpoints_are_refused_with_the_reason(tmp_path, directory, file, said, instead, complaint):
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    content = (directory / file).read_text()
    assert said in content
    (tmp_path / file).write_text(content.replace(said, instead))
    with pytest.raises(LoadError, match=complaint):
        Served("colqwen2", tmp_path, **OPTIONS)
