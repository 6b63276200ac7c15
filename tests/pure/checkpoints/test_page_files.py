"""Configuration of checkpoints that read pages, in each layout that has been published."""

import json

import pytest

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.errors import LoadError


def written(directory, **files):
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"tokenizer_config": {"pad_token": "<pad>"}}, "<pad>"),
        ({"tokenizer_config": {"pad_token": {"content": "[P]", "lstrip": False}}}, "[P]"),
        ({"tokenizer_config": {"pad_token": None}, "special_tokens_map": {"pad_token": "<p>"}}, "<p>"),
        ({"special_tokens_map": {"pad_token": {"content": "<|endoftext|>"}}}, "<|endoftext|>"),
    ],
)
def test_a_special_token(tmp_path, files, found):
    assert special_token(written(tmp_path, **files), "pad_token") == found


def test_a_missing_special_token_is_named(tmp_path):
    with pytest.raises(LoadError, match="bos_token is missing"):
        special_token(written(tmp_path, tokenizer_config={"pad_token": "<pad>"}), "bos_token")


VISION = {"depth": 2, "embed_dim": 32}


@pytest.mark.parametrize(
    "text",
    [
        {"hidden_size": 64, "max_position_embeddings": 100},
        {"text_config": {"hidden_size": 64, "max_position_embeddings": 100}},
    ],
)
@pytest.mark.parametrize("token", ["image_token_id", "image_token_index"])
def test_the_language_model_may_be_at_either_level_of_a_config(tmp_path, text, token):
    """Before transformers 4.52, its fields were at the same level as those of the tower."""
    vlm = {"model_type": "qwen2_vl", "vision_config": VISION, token: 7, **text}
    files = PageFiles.read(written(tmp_path, config={"vlm_config": vlm, "embedding_dim": 16}), ("qwen2_vl",), 9)
    assert (files.text.integer("hidden_size"), files.longest, files.image_token, files.dim) == (64, 100, 7, 16)
    assert files.vision.values == VISION


def test_a_model_of_other_parts_is_refused(tmp_path):
    config = {"vlm_config": {"model_type": "idefics3"}}
    with pytest.raises(LoadError, match="model_type 'idefics3' cannot be served; supported are qwen2_vl, qwen2_5_vl"):
        PageFiles.read(written(tmp_path, config=config), ("qwen2_vl", "qwen2_5_vl"), 9)


@pytest.mark.parametrize(
    ("said", "pixels"),
    [
        ({}, (3136, 1003520)),
        ({"min_pixels": 784, "max_pixels": 12845056}, (784, 12845056)),
        ({"size": {"shortest_edge": 65536, "longest_edge": 16777216}}, (65536, 16777216)),
        ({"size": {"min_pixels": 784, "max_pixels": 7840}}, (784, 7840)),
        ({"max_pixels": 7840, "size": {"shortest_edge": 784, "longest_edge": 9}}, (784, 7840)),
    ],
)
def test_the_preprocessor_config_limits_the_pixels_of_an_image(tmp_path, said, pixels):
    plan = PatchPlan.read(written(tmp_path, preprocessor_config=said), Fields("", {}))
    assert (plan.min_pixels, plan.max_pixels) == pixels
    assert (plan.factor, plan.frames, plan.resample) == (28, 2, 3)
