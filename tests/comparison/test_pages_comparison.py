"""Vectors of pages and questions equal those of the library of each family on the same weights and files.

The libraries are transformers' ColPaliForRetrieval and ColQwen2ForRetrieval, colpali-engine's ColIdefics3 over
transformers' Idefics3, and transformers' Qwen3VLModel with a projection, as ColQwen3 uses them.
"""

from functools import partial

import numpy as np
import pytest
import torch
import transformers

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.checkpoints.tile_plan import TilePlan
from sie_triton.contract import Batch
from sie_triton.contract.tensors import IMAGE_SIZES, INPUT_IDS, PIXELS
from sie_triton.engines.torch.patch_tower import PatchTower
from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.inputs.patch_resizing import resized_for_patches
from sie_triton.models.inputs.tiles import tiled
from tests.support import pdfs
from tests.support.copies import copy, reword, update
from tests.support.items import Served
from tests.support.pages import (
    PageLibrary,
    SmolLibrary,
    as_engine_saves,
    same,
    save_colpali,
    save_colqwen2,
    save_colsmol,
    vectors_of,
)
from tests.support.pictures import picture, pictures, saved
from tests.support.qwen3_vl import ColQwen3Library, save_colqwen3

TEXTS = ["What does the invoice say?", " two dogs ", "", "naïve 😀 größe"]
FILES = pictures(((97, 61), (40, 90), (33, 33), (300, 31), (700, 500)))
SIZES = [(97, 61), (40, 90), (33, 33), (300, 31), (7, 5), (640, 11), (1, 199), (64, 64)]

# The family, the reference, the dimension, and how a small model is saved, by the kind of model.
KINDS = {
    "colpali": ("colpali", PageLibrary, 32, save_colpali),
    "qwen2_vl": ("colqwen2", PageLibrary, 32, save_colqwen2),
    "qwen2_5_vl": ("colqwen2", PageLibrary, 32, partial(save_colqwen2, kind="qwen2_5_vl")),
    "colsmol": ("colsmol", SmolLibrary, 32, save_colsmol),
    "colqwen3": ("colqwen3", ColQwen3Library, 40, save_colqwen3),
}


def of(*kinds):
    return pytest.mark.parametrize("kind", kinds, indirect=True)


def served_of(kind, directory, **given):
    family, _, dim, _ = KINDS[kind]
    changes = {"dims": {"multivector": dim}, "tasks": ("encode", "score"), "score_modes": ("maxsim",)}
    return Served(family, directory, **changes, **given)


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def directory(kind, tmp_path_factory, minilm_directory):
    return KINDS[kind][-1](tmp_path_factory.mktemp(kind), minilm_directory)


@pytest.fixture(scope="module")
def ours(kind, directory):
    name, found = family_in(directory)
    expected = (KINDS[kind][0], {"multivector": KINDS[kind][2]}, True, "")
    assert (name, dict(found.dims), found.scores, found.doubt) == expected
    assert kind != "colpali" or found.max_sequence_length == 256
    served = served_of(kind, directory)
    assert served.adapter.encoder.path == "packed"
    assert kind == "colpali" or served.adapter.encoder.paths == ("packed",)
    return served


@pytest.fixture(scope="module")
def library(kind, directory):
    return KINDS[kind][1](directory)


def test_texts_and_images_in_one_request(kind, ours, library):
    items = [TEXTS[0], {"image": FILES[0]}, TEXTS[1], *({"image": file} for file in FILES[1:]), *TEXTS[2:]]
    found = vectors_of(ours.encode(items))
    of_texts, of_images = [library.text(text) for text in TEXTS], [library.image(file) for file in FILES]
    expected = [of_texts[0], of_images[0], of_texts[1], *of_images[1:], *of_texts[2:]]
    assert all(map(same, found, expected))
    assert not same(found[1], of_images[1])
    assert kind == "colpali" or len({len(each) for each in [found[1], *found[3:7]]}) > 1 + (kind == "colsmol")
    for item, together in zip(items, found, strict=True):
        assert np.allclose(vectors_of(ours.encode([item]))[0], together, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "token"),
    [("qwen2_vl", "<|image_pad|>"), ("qwen2_5_vl", "<|image_pad|>"), ("colsmol", "<image>")],
    indirect=["kind"],
)
def test_a_text_that_holds_the_token_of_images(ours, token):
    """The states of an image in the same batch do not replace those of the text."""
    text = f"an {token}"
    alone, together = ours.encode([text]), ours.encode([{"image": FILES[0]}, text])
    assert np.allclose(vectors_of(alone)[0], vectors_of(together)[1], atol=1e-5)


@of("colpali", "qwen2_vl", "qwen2_5_vl")
def test_the_padded_path_gives_the_same_vectors(ours, library):
    with ours.padded():
        found = vectors_of(ours.encode([TEXTS[0], {"image": FILES[0]}]))
    assert all(map(same, found, [library.text(TEXTS[0]), library.image(FILES[0])]))


LLAVA = r"vlm_config: model_type 'llava' cannot be served; .* are paligemma"
QWEN2 = r"vlm_config: model_type 'qwen2_.*' cannot be served; .* qwen2_vl,"
OF_QWEN2 = [
    ("config.json", '_vl",', '_vq",', QWEN2),
    ("config.json", '"spatial_merge_size": 2', '"spatial_merge_size": 4', r"merge_size is 4, but .* makes 2"),
    ("processor_config.json", "<|image_pad|>", "<|im_end|>", "must contain the token"),
    ("processor_config.json", '"do_resize": true', '"do_resize": false', "do_resize false cannot be served"),
    ("processor_config.json", '"longest_edge": 9408', '"longest_edge": 700', "is larger than the maximum"),
]
TILES = "preprocessor_config.json"


@pytest.mark.parametrize(
    ("kind", "file", "said", "instead", "complaint"),
    [
        ("colpali", "config.json", '"paligemma"', '"llava"', LLAVA),
        ("colpali", "config.json", '"image_size": 56', '"image_size": 70', r"to 56 × 56, but config\.json"),
        ("colpali", "tokenizer_config.json", '"pad_token"', '"no_token"', "pad_token is missing"),
        ("colpali", "config.json", '_embeddings": 256', '_embeddings": 13', "leave no room for a text"),
        *[("qwen2_vl", *each) for each in OF_QWEN2],
        *[("qwen2_5_vl", *each) for each in OF_QWEN2],
        ("colsmol", "config.json", '"image_size": 32', '"image_size": 64', "max_image_size: must be 64"),
        ("colsmol", "config.json", '"scale_factor": 2', '"scale_factor": 3', "multiple of patch_size · scale_factor"),
        ("colsmol", "config.json", '"image_token_id": ', '"image_token_id": 1', "<image> must be the token"),
        ("colsmol", TILES, 'splitting": true', 'splitting": false', "do_image_splitting"),
        ("colsmol", TILES, '"longest_edge": 96', '"shortest_edge": 96', "must have longest_edge"),
        ("colsmol", TILES, '"longest_edge": 96', '"longest_edge": 4000', "max_image_size: must be 32"),
    ],
    indirect=["kind"],
)
def test_unsupported_checkpoints_are_refused_with_the_reason(kind, tmp_path, directory, file, said, instead, complaint):
    reword(directory, tmp_path, file, said, instead)
    with pytest.raises(LoadError, match=complaint):
        served_of(kind, tmp_path)


@of("colpali")
def test_a_truncated_text_keeps_its_suffix(ours, library):
    text = "page " * 400
    (found,) = vectors_of(ours.encode([text]))
    ids = library.processor(text=[text], return_tensors="pt")["input_ids"]
    kept = torch.cat([ids[:, :246], ids[:, -10:]], 1)
    assert same(found, library(input_ids=kept, token_type_ids=torch.zeros_like(kept)))


@of("colpali")
def test_scores_are_those_of_the_processor(ours, library):
    sent = {"query": [TEXTS[0].encode()], "image": FILES}
    (answer,) = ours.together("score", [(sent, {})])
    expected = library.processor.score_retrieval([library.text(TEXTS[0])], [library.image(file) for file in FILES])
    assert np.allclose(answer["scores"], expected[0], rtol=1e-4)
    assert len(set(answer["scores"].round(3).tolist())) == len(FILES)


@of("colpali")
def test_pages_of_a_pdf_are_scored_each(ours):
    pdf = pdfs.pdf_of(pdfs.pages())
    pages = [saved(page) for page in pdfs.drawn(pdf)]
    (apart,) = ours.together("score", [({"query": [b"vines"], "image": [FILES[0], *pages]}, {})])
    (whole,) = ours.together("score", [({"query": [b"vines"], "image": [FILES[0], pdf]}, {})])
    assert np.allclose(whole["scores"], apart["scores"], rtol=1e-4)
    (last,) = ours.together("score", [({"query": [b"vines"], "image": [pdf]}, {"pages": "2-"})])
    assert np.allclose(last["scores"], apart["scores"][2:], rtol=1e-4)
    with pytest.raises(InputError, match=r"query_image\[0\]: is a PDF, which is only allowed for items"):
        ours.together("score", [({"query_image": [pdf], "image": [FILES[0]]}, {})])


@of("colpali")
def test_tokens_without_their_image_are_refused(ours):
    features = dict(ours.adapter.sample([1]))
    ids, lengths = features[INPUT_IDS.name]
    features[INPUT_IDS.name] = features[INPUT_IDS.name]._replace(values=ids[1:], lengths=lengths - 1)
    with pytest.raises(ValueError, match="as many tokens as states"):
        ours.adapter.forward(Batch(features, np.zeros(1, np.bool_)))


@of("qwen2_vl", "qwen2_5_vl")
def test_the_same_weights_as_colpali_engine_saves_them(kind, tmp_path, directory, ours):
    """Its queries end without a line break, which this tokenizer does not read."""
    as_engine_saves(directory, tmp_path)
    name, recognised = family_in(tmp_path)
    assert (name, dict(recognised.dims)) == ("colqwen2", {"multivector": 32})
    items = [TEXTS[0], {"image": FILES[0]}]
    found = served_of(kind, tmp_path).encode(items)
    assert np.allclose(found["multivector"], ours.encode(items)["multivector"], atol=1e-5)


@of("qwen2_vl", "qwen2_5_vl")
def test_the_calibration_sample_is_a_page(ours):
    """The page has 12 tokens, the limit of the checkpoint; each patch adds half a token to its cost."""
    page = ours.adapter.sample([2])
    height, width = page[IMAGE_SIZES.name].values[0]
    assert (height, width) == (112, 84)
    num_tokens = int(page["input_ids"].of_items[0])
    assert page["read"].values.tolist() == [num_tokens + 48 // 2]


@of("qwen2_vl", "qwen2_5_vl")
def test_sides_that_are_no_multiples_are_refused(ours):
    features = dict(ours.adapter.sample([1]))
    sizes = features[IMAGE_SIZES.name].values + np.array([1, 0], np.int32)
    features[IMAGE_SIZES.name] = features[IMAGE_SIZES.name]._replace(values=sizes)
    with pytest.raises(ValueError, match="must be multiples of 28"):
        ours.adapter.forward(Batch(features, np.zeros(1, np.bool_)))


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
    for seed, size in enumerate(SIZES):
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


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"size": {"longest_edge": 97}, "max_image_size": {"longest_edge": 32}},
        {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 64}, "resample": 2},
        {"size": {"longest_edge": 200}, "max_image_size": {"longest_edge": 64}, "image_mean": [0.1, 0.2, 0.3]},
    ],
)
def test_tiles_are_those_of_the_processor(tmp_path, settings):
    processor = transformers.Idefics3ImageProcessorPil(**settings)
    processor.save_pretrained(tmp_path)
    side = processor.max_image_size["longest_edge"]
    plan = TilePlan.read(tmp_path, Fields("", {"image_size": side}))
    mean, std = np.array(plan.tile.mean), np.array(plan.tile.std)
    for seed, size in enumerate(SIZES):
        image = picture(*size, seed=seed)
        tiles = tiled(image, plan)
        expected = processor([[image]], return_tensors="np", return_row_col_info=True)
        assert expected["rows"] == [[tiles.rows]]
        pixels = (tiles.pixels * plan.tile.scale - mean) / std
        assert len(pixels) <= plan.most_tiles
        assert np.abs(pixels.transpose(0, 3, 1, 2) - expected["pixel_values"][0]).max() < 1e-5


@of("colsmol")
def test_the_calibration_sample_is_a_page_of_two_tiles(ours):
    page = ours.adapter.sample([2])
    assert page[PIXELS.name].of_items.tolist() == [3 * 32 * 32 * 3]


@of("colsmol")
def test_a_part_of_a_tile_is_refused(ours):
    features = dict(ours.adapter.sample([1]))
    pixels, lengths = features[PIXELS.name]
    features[PIXELS.name] = features[PIXELS.name]._replace(values=pixels[:-3], lengths=lengths - 3)
    with pytest.raises(ValueError, match="must have 3072 bytes"):
        ours.adapter.forward(Batch(features, np.zeros(1, np.bool_)))


@of("colqwen3")
def test_prompts_are_those_of_the_processor(kind, tmp_path, directory):
    """The files of the processor are obeyed: with another prefix, vectors are others."""
    asked = {"query_prefix": "Query: do", "visual_prompt_prefix": "<|image_pad|> a", "visual_prompt_suffix": ""}
    copy(directory, tmp_path, "processor_config.json", **asked)
    (found,) = vectors_of(served_of(kind, tmp_path).encode([" gs\n"]))
    assert same(found, ColQwen3Library(tmp_path)("Query: dogs" + "[PAD]" * 10))
    update(tmp_path / "processor_config.json", visual_prompt_prefix="none")
    with pytest.raises(LoadError, match="exactly once"):
        served_of(kind, tmp_path)


@of("colqwen3")
def test_images_have_at_most_the_tokens_of_the_authors_processor(kind, ours, directory):
    item = {"image": saved(picture(2400, 1800, seed=3))}
    (found,) = vectors_of(ours.encode([item]))
    assert 1100 < len(found) <= 1280 + 20
    compact = served_of(kind, directory, options={"max_num_visual_tokens": 300})
    assert 250 < len(vectors_of(compact.encode([item]))[0]) <= 300 + 20
