"""Default values of transformers' processors of images and sounds, which a test compares with the installed library."""

from collections.abc import Mapping
from typing import Any

CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
HALF = [0.5, 0.5, 0.5]

# Pillow's numbers for its filters.
LANCZOS, BILINEAR, BICUBIC = 1, 2, 3

_STEPS = {"do_resize": True, "do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255}
_OF_CLIP = {**_STEPS, "do_convert_rgb": True, "resample": BICUBIC, "image_mean": CLIP_MEAN, "image_std": CLIP_STD}
_OF_HALF = {**_STEPS, "default_to_square": True, "image_mean": HALF, "image_std": HALF}
_OF_PATCHES = {**_OF_CLIP, "default_to_square": False, "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
_CENTER = {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}}
_SQUARE, _SHORTEST = {"height": 224, "width": 224}, {"shortest_edge": 224}

# Class → its defaults. Keys that are missing here are null.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "CLIPImageProcessor": {**_OF_CLIP, **_CENTER, "size": _SHORTEST, "default_to_square": False},
    "BitImageProcessor": {**_OF_CLIP, **_CENTER, "size": _SHORTEST, "default_to_square": False},
    "SiglipImageProcessor": {
        **_OF_HALF,
        "size": _SQUARE,
        "resample": BICUBIC,
        "do_convert_rgb": True,
        "default_to_square": False,
    },
    "ViTImageProcessor": {**_OF_HALF, "size": _SQUARE, "resample": BILINEAR},
    "DeiTImageProcessor": {
        **_OF_HALF,
        **_CENTER,
        "size": {"height": 256, "width": 256},
        "resample": BICUBIC,
    },
    "BlipImageProcessor": {**_OF_CLIP, "size": {"height": 384, "width": 384}, "default_to_square": True},
    "ConvNextImageProcessor": {
        **_OF_HALF,
        "size": {"shortest_edge": 384},
        "resample": BICUBIC,
        "default_to_square": False,
        "crop_pct": 224 / 256,
    },
    "OwlViTImageProcessor": {
        **_OF_CLIP,
        "size": {"height": 768, "width": 768},
        "do_center_crop": False,
        "crop_size": {"height": 768, "width": 768},
        "default_to_square": True,
    },
    "Owlv2ImageProcessor": {
        **_OF_CLIP,
        "size": {"height": 960, "width": 960},
        "resample": BILINEAR,
        "default_to_square": True,
        "do_pad": True,
    },
    "Siglip2ImageProcessor": {**_OF_HALF, "resample": BILINEAR, "patch_size": 16, "max_num_patches": 256},
    "GroundingDinoImageProcessor": {
        **_STEPS,
        "size": {"shortest_edge": 800, "longest_edge": 1333},
        "resample": BILINEAR,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
        "default_to_square": False,
        "do_pad": True,
        "format": "coco_detection",
    },
    "DonutImageProcessor": {
        **_OF_HALF,
        "size": {"height": 2560, "width": 1920},
        "resample": BILINEAR,
        "do_thumbnail": True,
        "do_align_long_axis": False,
        "do_pad": True,
    },
    "PixtralImageProcessor": {
        **_OF_CLIP,
        "size": {"longest_edge": 1024},
        "patch_size": {"height": 16, "width": 16},
        "default_to_square": True,
        "do_pad": True,
    },
    "Idefics3ImageProcessor": {
        **_OF_HALF,
        "do_convert_rgb": True,
        "size": {"longest_edge": 4 * 364},
        "resample": LANCZOS,
        "max_image_size": {"longest_edge": 364},
        "do_image_splitting": True,
        "do_pad": True,
        "return_row_col_info": False,
    },
    "Qwen2VLImageProcessor": {**_OF_PATCHES, "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}},
    "Glm46VImageProcessor": {**_OF_PATCHES, "size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15_000}},
    "PaddleOCRVLImageProcessor": {
        **_OF_PATCHES,
        "size": {"shortest_edge": 384 * 384, "longest_edge": 1536 * 1536},
        "temporal_patch_size": 1,
    },
    "ClapFeatureExtractor": {
        "feature_size": 64,
        "sampling_rate": 48_000,
        "hop_length": 480,
        "max_length_s": 10,
        "fft_window_size": 1024,
        "padding_value": 0.0,
        "return_attention_mask": False,
        "frequency_min": 0,
        "frequency_max": 14_000,
        "truncation": "fusion",
        "padding": "repeatpad",
    },
    "WhisperFeatureExtractor": {
        "feature_size": 80,
        "sampling_rate": 16_000,
        "hop_length": 160,
        "chunk_length": 30,
        "n_fft": 400,
        "padding_value": 0.0,
        "dither": 0.0,
        "return_attention_mask": False,
    },
}

# Classes that resize, crop and scale an image without further steps of their own. A model that reads images of one size
# may have any of them.
OF_ONE_SIZE = (
    "CLIPImageProcessor",
    "SiglipImageProcessor",
    "ViTImageProcessor",
    "ConvNextImageProcessor",
    "BitImageProcessor",
    "BlipImageProcessor",
    "DeiTImageProcessor",
    "OwlViTImageProcessor",
)

# Classes that take null as the default of `size`. Other nulls are values: false, or an error.
NULL_SIZES = (
    "GroundingDinoImageProcessor",
    "DonutImageProcessor",
    "Qwen2VLImageProcessor",
    "PaddleOCRVLImageProcessor",
)

# Other names of settings in older files.
RENAMED = {"OwlViTImageProcessor": {"rescale": "do_rescale"}, "Owlv2ImageProcessor": {"rescale": "do_rescale"}}
