"""Small models that read pages, with fixed-seed weights, as transformers saves them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tests.support.copies import copy
from tests.support.models import SIZES
from tests.support.pictures import upright
from tests.support.tokenizers import KINDS
from tests.support.towers import VISION, enlarge

LANGUAGE = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 256}
QWEN_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
QWEN_VISION = {
    "qwen2_vl": {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2},
    "qwen2_5_vl": {
        "depth": 2,
        "hidden_size": 32,
        "out_hidden_size": 64,
        "num_heads": 2,
        "intermediate_size": 64,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    },
}


def save_colpali(directory: Path, tokenizer: Path) -> Path:
    """Save a model for images of 56 × 56 in 16 patches, whose token is not in the vocabulary."""
    fast = page_tokenizer(tokenizer, bos_token="[CLS]")
    images = transformers.SiglipImageProcessorPil(
        size={"height": 56, "width": 56}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    images.image_seq_length = 16
    processor = transformers.ColPaliProcessor(images, fast)
    torch.manual_seed(21)
    config = transformers.PaliGemmaConfig(
        text_config=transformers.GemmaConfig(**LANGUAGE, head_dim=16, pad_token_id=0),
        vision_config=transformers.SiglipVisionConfig(**VISION, image_size=56, patch_size=14, vision_use_head=False),
        projection_dim=64,
        hidden_size=64,
        image_token_index=processor.image_token_id,
    )
    model = transformers.ColPaliForRetrieval(transformers.ColPaliConfig(vlm_config=config, embedding_dim=32))
    return save(directory, model, processor)


def save_colqwen2(directory: Path, tokenizer: Path, kind: str = "qwen2_vl", **image_settings: Any) -> Path:
    """Save a model for images of 1 to 12 tokens."""
    fast = page_tokenizer(tokenizer, QWEN_TOKENS)
    small = {"min_pixels": 28 * 28, "max_pixels": 12 * 28 * 28, **image_settings}
    processor = transformers.ColQwen2Processor(transformers.Qwen2VLImageProcessorPil(**small), fast)
    torch.manual_seed(22)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    config = {
        "model_type": kind,
        "image_token_id": processor.image_token_id,
        "text_config": {**LANGUAGE, "vocab_size": len(fast), "rope_parameters": rope, "pad_token_id": 0},
        "vision_config": {"patch_size": 14, **QWEN_VISION[kind]},
    }
    model = transformers.ColQwen2ForRetrieval(transformers.ColQwen2Config(vlm_config=config, embedding_dim=32))
    return save(directory, model, processor)


def as_engine_saves(directory: Path, target: Path) -> Path:
    """Save the same ColQwen2 as colpali-engine's class does."""
    config = json.loads((directory / "config.json").read_text())["vlm_config"]
    names = {"qwen2_vl": "ColQwen2", "qwen2_5_vl": "ColQwen2_5"}
    own = {"architectures": [names[config["model_type"]]], "embedding_dim": 32}
    copy(directory, target)
    (target / "config.json").write_text(json.dumps({**config, **own}))
    weights = {
        name.removeprefix("vlm.").replace("embedding_proj_layer", "custom_text_proj"): tensor
        for name, tensor in load_file(directory / "model.safetensors").items()
    }
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    return target


def page_tokenizer(
    tokenizer: Path, added: Sequence[str] = (), behind: str = "", **special: str
) -> transformers.PreTrainedTokenizerFast:
    """MiniLM's, which puts nothing around a text by itself, as the tokenizers of these models, but `behind` it."""
    content = json.loads((tokenizer / "tokenizer.json").read_text())
    content["post_processor"] = None
    content["truncation"] = content["padding"] = None
    made = Tokenizer.from_str(json.dumps(content))
    if behind:
        made.post_processor = TemplateProcessing(
            single=f"$A {behind}", special_tokens=[(behind, made.token_to_id(behind))]
        )
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", **special)
    fast.add_tokens([transformers.AddedToken(name, special=True, normalized=False) for name in added])
    return fast


def save(directory: Path, model: transformers.PreTrainedModel, processor: Any) -> Path:
    """Save a model with larger weights than it was made with, and its processor."""
    enlarge(model)
    model.eval().save_pretrained(directory)
    processor.save_pretrained(directory)
    return directory


class PageLibrary:
    """Reference of transformers: unit vectors of texts and of images, each item by itself."""

    def __init__(self, directory: Path) -> None:
        self.model = transformers.AutoModelForPreTraining.from_pretrained(directory).eval()
        self.is_qwen = self.model.config.model_type == "colqwen2"
        if self.is_qwen:  # its own way to load a processor asks for torchvision
            images = transformers.Qwen2VLImageProcessorPil.from_pretrained(directory)
            self.processor: Any = transformers.ColQwen2Processor(
                images, transformers.AutoTokenizer.from_pretrained(directory)
            )
        else:
            self.processor = transformers.ColPaliProcessor.from_pretrained(directory)

    def text(self, text: str) -> torch.Tensor:
        return self(**self.processor(text=[text], return_tensors="pt"))

    def image(self, file: bytes) -> torch.Tensor:
        inputs = self.processor(images=[upright(file)], return_tensors="pt")
        inputs.pop("labels", None)
        if self.is_qwen:
            ids = inputs["input_ids"]
            is_image = (ids == self.processor.image_token_id).int()
            inputs["position_ids"], _ = self.model.vlm.get_rope_index(ids, is_image, inputs["image_grid_thw"])
        return self(**inputs)

    @torch.inference_mode()
    def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
        embeddings: torch.Tensor = self.model(**inputs).embeddings
        return embeddings[0]


def vectors_of(answer: Mapping[str, Any]) -> list[np.ndarray]:
    """Vectors of each item, [tokens, dim]."""
    return np.split(answer["multivector"], np.cumsum(answer["multivector_lengths"])[:-1])


def same(ours: np.ndarray, theirs: torch.Tensor | np.ndarray) -> bool:
    """Check that the vectors are equal in number, and each pair at a cosine of 0.9999 or more."""
    theirs = np.asarray(theirs)
    return ours.shape == theirs.shape and bool(((ours * theirs).sum(-1) >= 0.9999).all())


SMOL_TOKENS = (
    *("<|im_start|>", "<image>", "<end_of_utterance>", "<fake_token_around_image>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),  # others are read letter by letter
)


class ColIdefics3(transformers.Idefics3PreTrainedModel):
    """The class of colpali-engine: a projection of the states of an Idefics3."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = transformers.Idefics3Model(config)
        self.linear = torch.nn.Linear(config.text_config.hidden_size, config.embedding_dim)
        self.post_init()

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        states = self.model(**inputs).last_hidden_state
        return torch.nn.functional.normalize(self.linear(states), dim=-1)


def save_colsmol(directory: Path, tokenizer: Path, **image_settings: Any) -> Path:
    """Save a model for images in tiles of 32 × 32, each 4 tokens of 4 patches. Its tokenizer reads line breaks."""
    KINDS["qwen2"](directory, tokenizer)
    fast = transformers.AutoTokenizer.from_pretrained(directory)
    fast.add_tokens([transformers.AddedToken(name, special=True, normalized=False) for name in SMOL_TOKENS])
    fast.pad_token = "<end_of_utterance>"
    small = {"size": {"longest_edge": 96}, "max_image_size": {"longest_edge": 32}, **image_settings}
    torch.manual_seed(25)
    config = transformers.Idefics3Config(
        text_config=transformers.LlamaConfig(**{**LANGUAGE, "vocab_size": len(fast), "pad_token_id": 0}),
        vision_config={**VISION, "image_size": 32, "patch_size": 8},
        image_token_id=fast.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        embedding_dim=32,
    )
    fast.save_pretrained(directory)
    return save(directory, ColIdefics3(config), transformers.Idefics3ImageProcessorPil(**small))


class SmolLibrary:
    """Reference of transformers for ColSmol, with the prompts of colpali-engine, each item by itself."""

    def __init__(self, directory: Path) -> None:
        self.model = ColIdefics3.from_pretrained(directory).eval()
        images = transformers.Idefics3ImageProcessorPil.from_pretrained(directory)
        self.processor = transformers.Idefics3Processor(
            images, transformers.AutoTokenizer.from_pretrained(directory), image_seq_len=4
        )

    def text(self, text: str) -> torch.Tensor:
        return self(self.processor(text=[text + "<end_of_utterance>" * 10], return_tensors="pt"))

    def image(self, file: bytes) -> torch.Tensor:
        prompt = "<|im_start|>User:<image>Describe the image.<end_of_utterance>\nAssistant:"
        return self(self.processor(text=[prompt], images=[upright(file)], return_tensors="pt"))

    @torch.inference_mode()
    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        vectors: torch.Tensor = self.model(**inputs)
        return vectors[0]
