"""Every setting of the image and sound processors that models may have: obeyed, or without effect in the library too.

A class or a setting that a new version of a library brings must be added here.
"""

import ast
import inspect
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import transformers
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.image_processor import FILE, IMAGES, SOUNDS, ImagePlan
from sie_triton.checkpoints.mel import MelPlan
from sie_triton.checkpoints.naflex import NaflexPlan
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.checkpoints.processor_classes import CLIP_MEAN, CLIP_STD, DEFAULTS, OF_ONE_SIZE
from sie_triton.checkpoints.tile_plan import TilePlan
from sie_triton.errors import LoadError
from sie_triton.models.families.donut import page_plan
from sie_triton.models.families.grounding_dino import image_plan
from sie_triton.models.families.lighton_ocr import LongestEdgePlan
from sie_triton.models.families.owlv2 import square_plan
from tests.support.pictures import picture

CLAP, WHISPER = "ClapFeatureExtractor", "WhisperFeatureExtractor"
CLASSES = [name for name in DEFAULTS if name not in (CLAP, WHISPER)]
OF_PATCHES = ("Qwen2VLImageProcessor", "Glm46VImageProcessor", "PaddleOCRVLImageProcessor")
TILES, SIDE = "Idefics3ImageProcessor", 364

# Settings without effect, for all classes. The library reads pictures; a call says what it returns.
EVERYWHERE = {
    "do_convert_rgb": "pictures are RGB before they are resized",
    "data_format": "the steps have one order of axes",
    "input_data_format": "pictures have one order of axes",
    "device": "of another backend",
    "disable_grouping": "of another backend",
    "return_tensors": "each call gives it",
    "image_seq_length": "patches are counted",
}
NOT_READ = ("crop_size", "do_center_crop", "pad_size")

# Settings that no step of a class reads, or whose step changes nothing of one image.
WITHOUT_EFFECT = {
    "ConvNextImageProcessor": ("do_pad", "pad_size"),
    "Owlv2ImageProcessor": (*NOT_READ, "resample"),
    "Siglip2ImageProcessor": (*NOT_READ, "do_pad", "size", "default_to_square"),
    "GroundingDinoImageProcessor": (
        *("crop_size", "do_center_crop", "do_pad", "pad_and_return_pixel_mask", "default_to_square"),
        *("format", "do_convert_annotations"),
    ),
    "DonutImageProcessor": ("crop_size", "pad_size"),
    "PixtralImageProcessor": ("crop_size", "do_pad", "pad_size"),
    # Tiles leave nothing to pad; the prompt always has their rows and columns.
    TILES: (*NOT_READ, "do_pad", "default_to_square", "return_row_col_info"),
    **dict.fromkeys(OF_PATCHES, (*NOT_READ, "do_pad", "default_to_square")),
}

# A second value of each setting, and what else must be set for it to matter.
OTHER = {
    "size": {"height": 392, "width": 392},
    "default_to_square": None,
    "crop_size": 56,
    "pad_size": {"height": 500, "width": 500},
    "resample": 4,
    "rescale_factor": 0.5,
    "image_mean": 0.25,
    "image_std": 0.25,
    "data_format": "channels_last",
    "input_data_format": "channels_last",
    "device": "cpu",
    "return_tensors": "np",
    "image_seq_length": 7,
    "crop_pct": 0.5,
    "patch_size": 28,
    "merge_size": 4,
    "temporal_patch_size": 4,
    "max_num_patches": 9,
    "min_pixels": 200_000,
    "max_pixels": 300_000,
    "max_size": 801,
    "format": "coco_panoptic",
    "rescale": False,
    "max_image_size": {"longest_edge": 200},
}
BESIDE = {
    "default_to_square": {"size": 400},
    "crop_size": {"do_center_crop": True, "crop_size": 224},
    "do_center_crop": {"crop_size": 56},
    "pad_size": {"do_pad": True},
    "do_pad": {"pad_size": {"height": 500, "width": 500}},
    "crop_pct": {"size": {"shortest_edge": 224}},
    "max_size": {"size": 800},
}


def backend(name):
    return getattr(transformers, f"{name}Pil")


def keys_of(name):
    """Return the library's keys of a class: those of every call, and those that its constructor takes away."""
    kind = backend(name)
    own = re.findall(r"kwargs(?:\.(?:pop|get|setdefault)\(|\[)\"(\w+)\"|\"(\w+)\" in kwargs", inspect.getsource(kind))
    return {*kind.valid_kwargs.__annotations__, *(key for pair in own for key in pair if key)}


def ignored(name):
    return {*EVERYWHERE, *WITHOUT_EFFECT.get(name, ())}


@pytest.mark.parametrize("name", CLASSES)
def test_defaults_are_the_librarys(name):
    found = {key: getattr(backend(name), key, None) for key in backend(name).valid_kwargs.__annotations__}
    assert {key: value for key, value in found.items() if value is not None} == DEFAULTS[name]


@pytest.mark.parametrize("name", CLASSES)
def test_every_setting_is_obeyed_or_refused_unless_it_has_no_effect(name, tmp_path):
    for key in sorted(keys_of(name) - ignored(name)):
        assert read(name, tmp_path, key) != read(name, tmp_path, key, other(name, key)), key


@pytest.mark.parametrize("name", CLASSES)
def test_settings_without_effect_change_nothing_in_the_library(name):
    assert ignored(name) <= keys_of(name)
    for key in sorted(ignored(name)):
        beside = {each: value for each, value in BESIDE.get(key, {}).items() if each in ignored(name)}
        changed = pixels(name, **{**beside, key: other(name, key)})
        assert np.array_equal(changed, pixels(name, **beside)), key


@pytest.mark.parametrize("name", CLASSES)
def test_settings_of_other_classes_are_not_read(name, tmp_path):
    """The library keeps them as attributes that no step of the class reads."""
    of_others = set().union(*map(keys_of, CLASSES)) - keys_of(name)
    assert of_others
    for key in sorted(of_others):
        assert read(name, tmp_path, key) == read(name, tmp_path, key, other(name, key)), key


def other(name, key):
    if key == "patch_size" and name == "PixtralImageProcessor":
        return {"height": 28, "width": 28}
    return OTHER[key] if OTHER.get(key) is not None else not DEFAULTS[name].get(key, False)


def small(name):
    """Return a size that images get quickly, of the same form as the default."""
    if name in OF_PATCHES:
        return {"shortest_edge": 3136, "longest_edge": 6272}
    return {key: 800 if key == "longest_edge" else 400 for key in DEFAULTS[name].get("size", {})} or None


def pixels(name, **settings):
    given = {"size": small(name), **settings}
    processor = backend(name)(**{key: value for key, value in given.items() if value is not None})
    return processor([picture(90, 70)], return_tensors="np")["pixel_values"]


def read(name, directory, key, value=...):
    """Return what is read of a file whose setting `key` is `value`, by default missing; or why it is refused."""
    settings = {"size": small(name), **BESIDE.get(key, {}), **({} if value is ... else {key: value})}
    settings = {key: value for key, value in settings.items() if value is not None}
    (directory / FILE).write_text(json.dumps({IMAGES: name, **settings}))
    try:
        return repr(plan(name, directory))
    except LoadError as exc:
        return exc.args[0]


def plan(name, directory):
    if name in OF_ONE_SIZE:
        return ImagePlan.read(directory, name)
    if name in OF_PATCHES:
        return PatchPlan.read(directory, Fields("", {}), name)
    plans = {
        "Owlv2ImageProcessor": lambda directory: square_plan(directory, name),
        "Siglip2ImageProcessor": NaflexPlan.read,
        "GroundingDinoImageProcessor": image_plan,
        "DonutImageProcessor": page_plan,
        "PixtralImageProcessor": LongestEdgePlan.read,
        TILES: lambda directory: TilePlan.read(directory, Fields("", {"image_size": SIDE})),
    }
    return plans[name](directory)


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("clip", "CLIPImageProcessor"),
        ("siglip", "SiglipImageProcessor"),
        ("siglip2", "Siglip2ImageProcessor"),
        ("owlvit", "OwlViTImageProcessor"),
        ("owlv2", "Owlv2ImageProcessor"),
        ("grounding-dino", "GroundingDinoImageProcessor"),
        ("florence2", "CLIPImageProcessor"),
        ("colpali", "SiglipImageProcessor"),
        ("colqwen2", "Qwen2VLImageProcessor"),
        ("qwen3_vl", "Qwen2VLImageProcessor"),
        ("idefics3", "Idefics3ImageProcessor"),
        ("donut-swin", "DonutImageProcessor"),
        ("lighton_ocr", "PixtralImageProcessor"),
        ("mistral3", "PixtralImageProcessor"),
        ("paddleocr_vl", "PaddleOCRVLImageProcessor"),
    ],
)
def test_the_class_of_a_model_whose_files_name_none(model_type, name):
    assert IMAGE_PROCESSOR_MAPPING_NAMES[model_type]["pil"] == f"{name}Pil"


# Settings of extractors without effect: both make no mask; CLAP's fills sounds up with zeros.
OF_SOUNDS = {
    CLAP: ("padding_value", "return_attention_mask", "top_db", "padding_side"),
    WHISPER: ("return_attention_mask",),
}
SMALL = {CLAP: {"sampling_rate": 4000, "frequency_max": 1900, "max_length_s": 1}, WHISPER: {"chunk_length": 2}}
SETTINGS = {CLAP: MelPlan.read, WHISPER: MelPlan.of_whisper}
OTHER_SOUND = {
    "feature_size": 32,
    "sampling_rate": 8000,
    "hop_length": 320,
    "max_length_s": 2,
    "chunk_length": 3,
    "n_fft": 256,
    "dither": 0.1,
    "fft_window_size": 256,
    "frequency_min": 100,
    "frequency_max": 1000,
    "truncation": "rand_trunc",
    "padding": "pad",
    "padding_value": 3.0,
    "return_attention_mask": True,
    "top_db": 3,
    "padding_side": "left",
}


@pytest.mark.parametrize("name", [CLAP, WHISPER])
def test_every_setting_of_a_sound(name, tmp_path):
    kind = getattr(transformers, name)
    parameters = inspect.signature(kind).parameters
    usual = {
        key: each.default for key, each in parameters.items() if each.default not in (inspect.Parameter.empty, None)
    }
    assert usual == DEFAULTS[name]
    samples = np.sin(np.arange(1500) / 7)

    def by_the_library(**changes):
        extractor = kind(**{**SMALL[name], **changes})
        return extractor(samples, return_tensors="np")["input_features"]

    def ours(**changes):
        (tmp_path / FILE).write_text(json.dumps({SOUNDS: name, **SMALL[name], **changes}))
        try:
            return SETTINGS[name](tmp_path)
        except LoadError as exc:
            return exc.args[0]

    for key in sorted({*parameters, "padding_side"} - {"kwargs"}):
        value = OTHER_SOUND[key]
        if key in OF_SOUNDS[name]:
            assert np.array_equal(by_the_library(**{key: value}), by_the_library()), key
        else:
            assert ours(**{key: value}) != ours(), key


def test_every_setting_of_open_clip():
    """`size` is that of the model, `fill_color` belongs to a way of resizing that is refused."""
    source = (Path(sys.prefix) / "apart" / "open_clip" / "open_clip" / "transform.py").read_text()
    (kind,) = (
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "PreprocessCfg"
    )
    fields = {node.target.id: node.value for node in kind.body if isinstance(node, ast.AnnAssign)}
    assert set(fields) == {"size", "mode", "mean", "std", "interpolation", "resize_mode", "fill_color"}
    usual = {key: node.value for key, node in fields.items() if isinstance(node, ast.Constant)}
    assert usual == {
        "size": 224,
        "mode": "RGB",
        "interpolation": "bicubic",
        "resize_mode": "shortest",
        "fill_color": 0,
    }
    constants = {}
    exec((Path(sys.prefix) / "apart" / "open_clip" / "open_clip" / "constants.py").read_text(), constants)
    assert [*constants["OPENAI_DATASET_MEAN"]] == CLIP_MEAN
    assert [*constants["OPENAI_DATASET_STD"]] == CLIP_STD
