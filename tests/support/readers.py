"""Small models that describe or transcribe images, with fixed-seed weights, as transformers saves them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

from sie_triton.contract import Batch
from sie_triton.models.inputs.features import join
from sie_triton.models.inputs.request_parts import features_of
from sie_triton.pipeline.worker.__main__ import sampler_of
from tests.support.extraction import Extractor
from tests.support.models import save_tokenizer

VOCABULARY = 30522  # of MiniLM's tokenizer
DONUT_TASKS = ("<s_docvqa>", "<s_cord-v2>", "<s_rvlcdip>", "<s_synthdog>")
FIELDS = ("question", "answer", "class", "menu", "nm", "price", "total")
DONUT_TOKENS = [
    *DONUT_TASKS,
    *(f"<{end}s_{field}>" for field in FIELDS for end in ("", "/")),
    "<sep/>",
    "<yes/>",
    "<no/>",
]


def save_donut(directory: Path, tokenizer: Path, **image_settings: Any) -> transformers.VisionEncoderDecoderModel:
    """Save a Donut for pages of 64 × 48, answers of up to 60 tokens; fields are as likely as words."""
    fast = save_reader_tokenizer(directory, tokenizer, DONUT_TOKENS)
    torch.manual_seed(5)
    encoder = transformers.DonutSwinConfig(
        image_size=[64, 48], patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    decoder = transformers.MBartConfig(
        vocab_size=len(fast),
        d_model=32,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=64,
        encoder_layers=0,
        max_position_embeddings=60,
        is_decoder=True,
        add_cross_attention=True,
        scale_embedding=True,
        pad_token_id=0,
        bos_token_id=101,
        eos_token_id=102,
        forced_eos_token_id=102,
    )
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.pad_token_id, config.decoder_start_token_id = 0, 101
    model = transformers.VisionEncoderDecoderModel(config=config).eval()
    loosen(model)
    model.save_pretrained(directory)
    settings = {"size": {"height": 64, "width": 48}, **image_settings}
    transformers.DonutImageProcessorPil(**settings).save_pretrained(directory)
    return model


# In the order of Microsoft's code, and transformers' own last.
FLORENCE_TOKENS = [
    *("<od>", "</od>", "<ocr>", "</ocr>"),
    *(f"<loc_{place}>" for place in range(1000)),
    *(f"<{end}{name}>" for name in ("cap", "ncap", "dcap", "grounding", "seg") for end in ("", "/")),
    "<sep>",
    *(f"<{end}{name}>" for name in ("region_cap", "region_to_desciption", "proposal", "poly") for end in ("", "/")),
    *("<and>", "<image>"),
]
POST_PROCESSING = {
    "ocr": {
        "PATTERN": "(.+?)" + r"<loc_(\d+)>" * 8,
        "AREA_THRESHOLD": 0.01,
    },
    "phrase_grounding": {"banned_grounding_tokens": ["it", "the image"]},
    **{
        kind: {}
        for kind in (
            "pure_text",
            "description_with_bboxes",
            "description_with_polygons",
            "polygons",
            "bboxes",
            "description_with_bboxes_or_polygons",
        )
    },
}


def save_florence2(directory: Path, tokenizer: Path, **image_settings: Any) -> transformers.Florence2Processor:
    """Save a Florence-2 for images of 64 × 64 in 5 patches, answers of up to 64 tokens; places as likely as words."""
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    fast = save_reader_tokenizer(directory, tokenizer, [*names.values(), *FLORENCE_TOKENS], **names)
    start, end, padding, image = (fast.convert_tokens_to_ids(token) for token in (*names.values(), "<image>"))
    torch.manual_seed(5)
    config = transformers.Florence2Config(
        vision_config={
            "embed_dim": [8, 16, 32, 64],
            "depths": [1, 1, 1, 1],
            "num_heads": [2, 2, 4, 4],
            "num_groups": [2, 2, 4, 4],
            "window_size": 4,
            "projection_dim": 32,
        },
        text_config={
            "model_type": "bart",
            "vocab_size": len(fast),
            "d_model": 32,
            **{f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in BART.items()},
            "max_position_embeddings": 64,
            "bos_token_id": start,
            "eos_token_id": end,
            "pad_token_id": padding,
            "decoder_start_token_id": end,
            "forced_bos_token_id": start,
            "forced_eos_token_id": end,
        },
        image_token_id=image,
        bos_token_id=start,
        eos_token_id=end,
        pad_token_id=padding,
    )
    model = transformers.Florence2ForConditionalGeneration(config).eval()
    loosen(model)
    model.generation_config.update(
        bos_token_id=start,
        eos_token_id=end,
        pad_token_id=padding,
        decoder_start_token_id=end,
        forced_bos_token_id=start,
        forced_eos_token_id=end,
        no_repeat_ngram_size=3,
    )
    model.save_pretrained(directory)
    images = transformers.CLIPImageProcessorPil(
        size={"height": 64, "width": 64}, do_center_crop=False, **{"image_seq_length": 5, **image_settings}
    )
    processor = transformers.Florence2Processor(images, fast, post_processor_config=POST_PROCESSING)
    processor.save_pretrained(directory)
    return processor


def save_original(directory: Path, native: Path, tokenizer: Path) -> None:
    """Save the model in `native` in the layout of Microsoft's files."""
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    save_reader_tokenizer(directory, tokenizer, [*names.values(), "<image>"], **names)
    config = json.loads((native / "config.json").read_text())
    vision = {name: value for name, value in config["vision_config"].items() if name != "embed_dim"}
    vision |= {
        "model_type": "",
        "dim_embed": config["vision_config"]["embed_dim"],
        "image_pos_embed": {"type": "learned_abs_2d", "max_pos_embeddings": vision.pop("max_position_embeddings")},
        "visual_temporal_embedding": {"max_temporal_embeddings": vision.pop("max_temporal_embeddings")},
        "image_feature_source": ["spatial_avg_pool", "temporal_avg_pool"],
    }
    generation = {"no_repeat_ngram_size": 3, "num_beams": 3, "decoder_start_token_id": VOCABULARY + 1}
    forced = {"forced_bos_token_id": VOCABULARY, "forced_eos_token_id": VOCABULARY + 1}
    text = {**config["text_config"], "model_type": "florence2_language", **generation, **forced}
    original = {"model_type": "florence2", "vision_config": vision, "text_config": text, "auto_map": {}}
    (directory / "config.json").write_text(json.dumps(original))
    state = load_file(native / "model.safetensors")
    projection = "model.multi_modal_projector.image_projection.weight"
    state[projection] = state[projection].T.contiguous()
    save_file({in_words_of_microsoft(name): weight for name, weight in state.items()}, directory / "model.safetensors")
    images = json.loads((native / "processor_config.json").read_text())["image_processor"]
    (directory / "preprocessor_config.json").write_text(json.dumps(images))


def in_words_of_microsoft(name: str) -> str:
    """Return Microsoft's name for a weight of transformers."""
    name = name.removeprefix("model.").replace("multi_modal_projector.", "")
    if name == "image_projection.weight":
        return "image_projection"
    if name.startswith("language_model.") or name == "lm_head.weight":
        return f"language_model.model.{name.removeprefix('language_model.')}" if "lm_head" not in name else name
    name = name.replace("image_position_embed", "image_pos_embed")
    if ".convs." in name:
        return name.replace(".conv.", ".proj.")
    attention = "window_attn" if "spatial_block" in name else "channel_attn"
    for old, new in {
        ".conv1.": ".conv1.fn.dw.",
        ".conv2.": ".conv2.fn.dw.",
        ".norm1.": f".{attention}.norm.",
        ".norm2.": ".ffn.norm.",
        ".qkv.": ".fn.qkv.",
        ".proj.": ".fn.proj.",
        ".fc1.": ".fn.net.fc1.",
        ".fc2.": ".fn.net.fc2.",
    }.items():
        name = name.replace(old, new)
    return name


BART = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}


@torch.no_grad()
def loosen(model: transformers.PreTrainedModel) -> None:
    """Scale the weights so that an answer depends on the image and on the tokens before, and few tokens are likely."""
    torch.manual_seed(6)
    for name, parameter in model.named_parameters():
        if "embed_positions" in name:
            parameter.normal_()
        elif parameter.ndim > 1:
            parameter *= 40 if "encoder_attn" in name else 6
    model.get_input_embeddings().weight.normal_()
    head = model.get_output_embeddings().weight
    likely = [*range(2000, 2060), 102, *range(VOCABULARY, len(head) - 1)]
    rows = torch.randn(len(likely), head.shape[1])
    head.zero_()
    head[likely] = rows


def save_reader_tokenizer(directory: Path, tokenizer: Path, added: list[str], **names: str) -> Any:
    """MiniLM's, with BERT's names of special tokens or others, and `added` ones that are single tokens."""
    extra = {"extra_special_tokens": {"image_token": "<image>"}} if "<image>" in added else {}
    fast = save_tokenizer(directory, tokenizer, **{"bos_token": "[CLS]", "eos_token": "[SEP]", **names, **extra})
    fast.add_tokens(
        [tokenizers.AddedToken(token, normalized=False, special=True) for token in added], special_tokens=True
    )
    fast.backend_tokenizer.decoder = tokenizers.decoders.Fuse()  # no spaces between tokens, as those of BART decode
    fast.save_pretrained(directory)
    return fast


def data(found: list[dict[str, Any]]) -> list[Any]:
    """Return what was read of each image."""
    return [each["data"] for each in found]


class Reader(Extractor):
    """A reading family without a server: images or sounds to results."""

    def __init__(self, family: str, directory: Path, **changes: Any) -> None:
        super().__init__(family, directory, **{"inputs": ("image",), **changes})

    def answers(self, requests: Any) -> list[list[dict[str, Any]]]:
        """Results of several requests whose items share a forward pass: files and parameters of each, with labels."""
        read = [(files, {**given}) for files, given in requests]
        return self.extract([(files, given.pop("labels", ()), given) for files, given in read])

    def sample(self, total: int) -> Batch:
        """Return the batch that calibration measures."""
        sampler = sampler_of(self.spec, self.adapter)
        assert list(sampler.features([1])) == [tensor.name for tensor in self.model.features]
        return sampler.batch(total)

    def batch(self, requests: Any, deadline_ns: int | None = None) -> Batch:
        """Return the batch that the worker receives for these requests."""
        (kind,) = self.spec.inputs
        features = features_of(self.processor, [self.asked("extract", {kind: f}, given) for f, given in requests])
        options = [given for files, given in requests for _ in files]
        return Batch(join(features), np.zeros(len(options), np.bool_), frozenset(), options, deadline_ns=deadline_ns)
