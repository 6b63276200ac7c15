"""Vectors of open_clip's checkpoints equal its own on the same weights and files.

open_clip runs in a separate process, because transformers behaves differently beside torchvision.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import yaml
from safetensors import torch as safetensors

from sie_triton.checkpoints import open_clip
from sie_triton.contract.spec import Runtime
from sie_triton.errors import CatalogError, LoadError
from sie_triton.models.catalog import load_file
from sie_triton.models.catalog.recognise import explain, family_in
from sie_triton.models.families.siglip import cleaning
from sie_triton.models.weights.disk import DiskCache
from sie_triton.models.weights.locate import MODEL_FILES
from sie_triton.models.weights.pickles import pickled, without_pickles
from sie_triton.models.weights.uses import Uses
from tests.support import open_clips
from tests.support.items import Served
from tests.support.models import save_tokenizer
from tests.support.open_clips import CONFIGS, PREPROCESS, SIGLIP_TEXT, TEXT, TIMM
from tests.support.pictures import picture, saved
from tests.support.towers import save_clip, save_gemma_tokenizer

TEXTS = ["a photo of a Cat", "two dogs!", "one under_score,  and more"]
# Their longer sides, once resized, are longer than 64 by 0, 1, 2, 3 and many pixels.
IMAGES = [saved(picture(*size, seed=i)) for i, size in enumerate([(64, 64), (65, 64), (66, 64), (64, 67), (300, 31)])]
SQUASHED = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bilinear", "resize_mode": "squash"}

# Installed apart by scripts/env.
LIBRARIES = Path(sys.prefix) / "apart" / "open_clip"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(open_clip.TIMM_SIZES, "base", open_clips.TIMM_SIZE)


def ids_of(directory, name):
    """Clean the texts, tokenize them and pad to the model's maximum number of tokens."""
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    length = CONFIGS[name]["text_cfg"]["context_length"]
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    return np.array([each.ids for each in tokenizer.encode_batch([" ".join(t.split()) for t in TEXTS])])


@pytest.fixture(scope="module")
def library(tmp_path_factory, minilm_directory):
    """Name → the directory of a checkpoint, with open_clip's vectors of IMAGES and TEXTS."""
    directories = {name: tmp_path_factory.mktemp("open_clip") for name in CONFIGS}
    for name, directory in directories.items():
        saved = {"model_cfg": CONFIGS[name], "preprocess_cfg": SQUASHED if name == "siglip" else PREPROCESS}
        (directory / "open_clip_config.json").write_text(json.dumps(saved))
        save_gemma_tokenizer(directory) if name == "siglip" else save_tokenizer(directory, minilm_directory)
        np.save(directory / "ids.npy", ids_of(directory, name))
        for i, file in enumerate(IMAGES):
            (directory / f"image-{i}").write_bytes(file)
    width, depth, heads, middle = open_clips.TIMM_SIZE
    small = {"embed_dim": width, "depth": depth, "num_heads": heads, "mlp_ratio": middle / width, "img_size": 64}
    arguments = ["tests.support.by_open_clip", json.dumps(small), *map(str, directories.values())]
    command = [sys.executable, "-W", "ignore", "-m", *arguments]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(LIBRARIES)}, check=True, timeout=200)
    return directories


@pytest.fixture
def copied(library, tmp_path):
    """Copy the directory of a checkpoint, to change it; return it and the library's vectors of IMAGES."""

    def copy(name):
        directory = Path(shutil.copytree(library[name], tmp_path / "copied"))
        return directory, np.load(directory / "vectors.npz")["images"]

    return copy


@pytest.mark.parametrize("name", CONFIGS)
def test_vectors_are_those_of_open_clip(library, name):
    found, dim = np.load(library[name] / "vectors.npz"), CONFIGS[name]["embed_dim"]
    family, recognised = family_in(library[name])
    assert (family, recognised.dims) == (name.partition(",")[0], {"dense": dim})
    served = Served(family, library[name], dims={"dense": dim})
    images = served.encode([{"image": file} for file in IMAGES])["dense"]
    assert np.allclose(images, found["images"], atol=1e-5)
    assert (images @ images.T - np.eye(len(IMAGES))).max() < 0.999
    together = served.encode([TEXTS[0], {"image": IMAGES[0]}, *TEXTS[1:]])["dense"][[0, 2, 3]]
    assert np.allclose(together, found["texts"], atol=1e-5)


@pytest.mark.parametrize(
    ("way", "text", "expected"),
    [
        ("canonicalize", " Under_score, (Two)\n x-y ", "under score two xy"),
        ("siglip", " Under_score, (Two)\n x-y ", "underscore two xy"),
        ("siglip2", " Under_score,", " under_score,"),
        ("lower", " A  b\t", "a b"),
        ("whitespace", " A  b\t", "A b"),
    ],
)
def test_cleaning(way, text, expected):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    assert cleaning(tokenizer, way).normalizer.normalize_str(text) == expected


def test_an_open_clip_model_inside_a_custom_class_is_served(copied):
    """config.json asks for code that is never run, and model.safetensors has open_clip's model under a name."""
    directory, vectors = copied("siglip")
    config = {"model_type": "siglip", "architectures": ["MyFashionSigLIP"], "auto_map": {"AutoModel": "my.My"}}
    (directory / "config.json").write_text(json.dumps(config))
    weights = safetensors.load_file(directory / "open_clip_model.safetensors")
    (directory / "open_clip_model.safetensors").unlink()
    named = {f"model.{name}": tensor for name, tensor in weights.items()}
    safetensors.save_file(named, directory / "model.safetensors")
    assert family_in(directory)[0] == "siglip"
    found = Served("siglip", directory, dims={"dense": 48}).encode([{"image": IMAGES[0]}])["dense"]
    assert np.allclose(found, vectors[:1], atol=1e-5)


def test_transformers_files_go_first(copied, minilm_directory):
    """Most repositories on the hub have both."""
    directory, _ = copied("clip")
    save_clip(directory, minilm_directory)
    assert family_in(directory)[1].reason.startswith("config.json: clip")


def changed(**parts):
    """CLIP's configuration with other settings of its parts."""
    config = json.loads(json.dumps(CONFIGS["clip"]))
    for part, given in parts.items():
        config[part] = {**config[part], **given} if isinstance(config.get(part), dict) else given
    return config


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (changed(multimodal_cfg={"width": 64}), "multimodal_cfg .* cannot be served: CoCa and similar models"),
        (changed(text_cfg={"hf_model_name": "roberta-base"}), "hf_model_name 'roberta-base' cannot be served: the"),
        (changed(vision_cfg={"layers": [3, 4, 6, 3]}), "layers .* cannot be served: the image tower is a ResNet"),
        (changed(vision_cfg={"timm_model_name": "convnext_base"}), "timm_model_name 'convnext_base' cannot be served"),
        (changed(vision_cfg={"attentional_pool": True}), "attentional_pool True cannot be served: it is not supported"),
        (changed(vision_cfg={"pool_type": "avg"}), "vision_cfg: pool_type 'avg' cannot be served: supported is 'tok'"),
        (changed(vision_cfg={"ls_init_value": 1e-5}), "ls_init_value 1e-05 cannot be served"),
        (changed(text_cfg={"pool_type": "last"}), "text_cfg: pool_type 'last' cannot be served"),
        (changed(text_cfg={"no_causal_mask": True}), "no_causal_mask True cannot be served"),
        (changed(text_cfg={"tokenizer_kwargs": {"strip_sep_token": True}}), "strip_sep_token True cannot be served"),
        (changed(vision_cfg={"image_size": [64, 96]}), r"image_size \[64, 96\] cannot be served: images must be"),
        (changed(embed_dim="many"), "embed_dim: must be a whole number"),
        ({"embed_dim": 48, "vision_cfg": TIMM, "text_cfg": TEXT}, "text_cfg: pool_type: is missing; supported is"),
        (
            {"embed_dim": 48, "vision_cfg": {**TIMM, "timm_pool": "avg"}, "text_cfg": SIGLIP_TEXT},
            "timm_pool 'avg' cannot be served: supported is 'map'",
        ),
    ],
)
def test_unsupported_settings_are_refused_by_name(tmp_path, minilm_directory, config, said):
    save_tokenizer(tmp_path, minilm_directory)
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    with pytest.raises(LoadError, match=said) as told:
        family_in(tmp_path)
    assert str(tmp_path / "open_clip_config.json") in str(told.value)


def test_an_unknown_resize_mode_is_refused(copied):
    directory, _ = copied("clip")
    path = directory / "open_clip_config.json"
    path.write_text(path.read_text().replace('"mean"', '"resize_mode": "longest", "mean"'))
    with pytest.raises(LoadError, match="resize_mode 'longest' is unknown"):
        family_in(directory)


def test_unexpected_or_missing_weights_are_refused(copied):
    directory, _ = copied("clip")
    path = directory / "open_clip_model.safetensors"
    weights = safetensors.load_file(path)
    safetensors.save_file({**weights, "visual.transformer.resblocks.0.ls_1.gamma": torch.ones(48)}, path)
    with pytest.raises(LoadError, match=r"resblocks\.0\.ls_1\.gamma belongs to no supported tower"):
        Served("clip", directory, dims={"dense": 32})
    safetensors.save_file({name: tensor for name, tensor in weights.items() if name != "visual.proj"}, path)
    with pytest.raises(LoadError, match=r"lack visual_projection\.weight"):
        Served("clip", directory, dims={"dense": 32})


def test_pickled_weights_are_refused_or_converted(copied, tmp_path):
    """They are refused like others or, if the model file says so, converted."""
    name = "open_clip_pytorch_model.bin"
    assert pickled({name, "open_clip_config.json"}, ["."]) == [name]
    assert pickled({name, "open_clip_model.safetensors"}, ["."]) == []
    assert pickled({name, "config.json", "model.safetensors"}, ["."]) == []
    directory, vectors = copied("clip")
    torch.save(safetensors.load_file(directory / "open_clip_model.safetensors"), directory / name)
    (directory / "open_clip_model.safetensors").unlink()
    with pytest.raises(CatalogError, match=f"{name} is a pickle"):
        explain(directory, "my/clip", {"weights_path": str(directory)})
    disk = DiskCache.of(Runtime(disk_cache_enabled=False), tmp_path)
    converted = without_pickles(directory, MODEL_FILES, [name], tmp_path / "cache", lambda line: None, disk, Uses())
    found = Served("clip", converted, dims={"dense": 32}).encode([{"image": IMAGES[0]}])["dense"]
    assert np.allclose(found, vectors[:1], atol=1e-5)


@pytest.mark.parametrize(
    ("hf_id", "loadtime", "said"),
    [
        ("org/m", {"backend": "open_clip", "open_clip_model_id": "hf-hub:org/m", "dense_dim": 48}, None),
        ("org/m", {"open_clip_model_id": "hf-hub:org/other"}, "must be hf-hub:org/m, like hf_id .given"),
        ("org/m", {"open_clip_model_id": "ViT-B-16-SigLIP"}, "must be hf-hub:org/m, like hf_id .given ViT-B-16-SigLIP"),
        ("org/m", {"dense_dim": 47}, "dense_dim: must be 48, like tasks.encode.dense.dim .given 47"),
    ],
)
@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_open_clip_options_of_model_files_are_checked(tmp_path, family, hf_id, loadtime, said):
    """SIE would load another repository than hf_id."""
    document = {
        "sie_id": "org/m",
        "hf_id": hf_id,
        "inputs": {"text": True, "image": True},
        "tasks": {"encode": {"dense": {"dim": 48}}},
        "profiles": {"default": {"adapter_path": family, "adapter_options": {"loadtime": loadtime}}},
    }
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump(document))
    if said is None:
        assert load_file(path).resolve(Runtime()).options["backend"] == "open_clip"
        return
    with pytest.raises(CatalogError, match=said):
        load_file(path).resolve(Runtime())
