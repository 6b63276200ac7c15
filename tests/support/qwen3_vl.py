"""A small Qwen3-VL with fixed-seed weights, as transformers and the authors of embedding models save it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.support.copies import update
from tests.support.pages import LANGUAGE, QWEN_TOKENS, page_tokenizer, save
from tests.support.pictures import upright

VISION = {
    "depth": 3,
    "hidden_size": 32,
    "out_hidden_size": 64,
    "num_heads": 2,
    "intermediate_size": 64,
    "patch_size": 16,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 1],
}
# The sizes that Qwen's own embedding models read.
SIZE = {"shortest_edge": 4 * 32 * 32, "longest_edge": 1800 * 32 * 32}
PROMPT = "<|im_start|>user\n<|vision_start|>{}<|vision_end|>Describe the image.<|im_end|><|endoftext|>"


def save_qwen3_vl(directory: Path, tokenizer: Path) -> Path:
    """Save a whole Qwen3-VL, whose tokenizer appends [SEP] to every text, as the real one appends <|endoftext|>."""
    fast = page_tokenizer(tokenizer, QWEN_TOKENS, behind="[SEP]")
    torch.manual_seed(23)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
    language = {**LANGUAGE, "vocab_size": len(fast), "head_dim": 16, "rope_parameters": rope, "pad_token_id": 0}
    config = transformers.Qwen3VLConfig(
        image_token_id=fast.convert_tokens_to_ids("<|image_pad|>"), text_config=language, vision_config=VISION
    )
    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=16, image_mean=[0.5] * 3, image_std=[0.5] * 3, min_pixels=65536, max_pixels=16777216
    )
    fast.save_pretrained(directory)
    return save(directory, transformers.Qwen3VLForConditionalGeneration(config), images)


def save_nemo_colembed(directory: Path, tokenizer: Path, **settings: Any) -> Path:
    """Save a Qwen3-VL under the type of Nemotron ColEmbed; `settings` are those of the processor.

    The weights of its final norm are random, because equal ones would not show in unit vectors.
    """
    save_qwen3_vl(directory, tokenizer)
    name = "Qwen3VLNemotronEmbedModel"
    update(
        directory / "config.json",
        model_type="qwen3_vl_nemotron_embed",
        architectures=[name],
        pooling="colbert",
        auto_map={"AutoModel": f"modeling_qwen3_vl_nemotron_embed.{name}"},
    )
    weights = load_file(directory / "model.safetensors")
    norm = weights["model.language_model.norm.weight"]
    norm.copy_(torch.rand(norm.shape, generator=torch.manual_seed(24)) + 0.2)
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    update(directory / "processor_config.json", **settings)
    return directory


def save_colqwen3(directory: Path, tokenizer: Path) -> Path:
    """Save a Qwen3-VL and a projection as TomoroAI's class does."""
    save_qwen3_vl(directory, tokenizer)
    update(directory / "tokenizer.json", post_processor=None)
    update(directory / "config.json", model_type="colqwen3", architectures=["ColQwen3"], embed_dim=40)
    weights = {f"vlm.{name}": each for name, each in load_file(directory / "model.safetensors").items()}
    torch.manual_seed(25)
    layer = {f"embedding_proj_layer.{name}": each.data for name, each in torch.nn.Linear(64, 40).named_parameters()}
    save_file({**weights, **layer}, directory / "model.safetensors", {"format": "pt"})
    return directory


class Qwen3Library:
    """Reference of transformers for what reads with a Qwen3-VL, each item by itself."""

    def __init__(self, directory: Path, model: Any = None, size: Mapping[str, int] = SIZE) -> None:
        self.model = (model or transformers.AutoModel.from_pretrained(directory)).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self.images = transformers.Qwen2VLImageProcessorPil.from_pretrained(directory)
        for name, limit in size.items():
            self.images.size[name] = limit

    def pictures(self, files: Sequence[bytes]) -> tuple[Mapping[str, torch.Tensor], list[str]]:
        """The patches of images, and the tokens that stand for each."""
        if not files:
            return {}, []
        images = self.images([upright(file) for file in files], return_tensors="pt")
        return images, ["<|image_pad|>" * (num // 4) for num in images["image_grid_thw"].prod(1).tolist()]

    def inputs(self, ids: Sequence[int]) -> dict[str, torch.Tensor]:
        """The tokens, and which of them are of an image."""
        made = torch.tensor([ids])
        return {"input_ids": made, "mm_token_type_ids": (made == self.model.config.image_token_id).int()}


class ColQwen3Library(Qwen3Library):
    """What the processor and model of TomoroAI do with one item."""

    def __init__(self, directory: Path) -> None:
        weights = load_file(directory / "model.safetensors")
        model = transformers.Qwen3VLModel(transformers.Qwen3VLConfig.from_pretrained(directory))
        prefix = "vlm.model."
        model.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})
        super().__init__(directory, model, {"longest_edge": 1280 * 32 * 32})
        self.layer = [weights[f"embedding_proj_layer.{name}"] for name in ("weight", "bias")]

    def text(self, text: str) -> torch.Tensor:
        return self(text.strip() + "[PAD]" * 10)

    def image(self, file: bytes) -> torch.Tensor:
        images, (seen,) = self.pictures([file])
        return self(PROMPT.format(seen), **images)

    @torch.inference_mode()
    def __call__(self, text: str, **images: torch.Tensor) -> torch.Tensor:
        states = self.model(**self.inputs(self.tokenizer(text)["input_ids"]), **images)
        vectors = torch.nn.functional.linear(states.last_hidden_state[0], *self.layer)
        return torch.nn.functional.normalize(vectors, dim=-1)
