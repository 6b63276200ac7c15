"""Small models that read pages and transcribe them, with fixed-seed weights, as transformers saves them."""

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.pictures import upright
from tests.support.readers import VOCABULARY, save_reader_tokenizer

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|image_pad|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}


def save_lighton_ocr(directory: Path, tokenizer: Path, **image_settings: Any) -> None:
    """Pages of up to 64 × 64 in patches of 4."""
    special = {
        "image_token": "<|image_pad|>",
        "image_break_token": "<|vision_pad|>",
        "image_end_token": "<|vision_end|>",
    }
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None}
    fast = save_reader_tokenizer(
        directory,
        tokenizer,
        ["<|im_start|>", "<|im_end|>", "<|endoftext|>", *special.values()],
        **names,
        extra_special_tokens=special,
    )
    config = transformers.LightOnOcrConfig(
        vision_config={
            "model_type": "pixtral",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "head_dim": 16,
            "image_size": 64,
            "patch_size": 4,
        },
        text_config={"model_type": "qwen3", "vocab_size": len(fast), **TEXT},
        image_token_id=fast.convert_tokens_to_ids("<|image_pad|>"),
        spatial_merge_size=2,
    )
    save(directory, transformers.LightOnOcrForConditionalGeneration(config), fast)
    images = transformers.PixtralImageProcessorPil(
        **{"size": {"longest_edge": 64}, "patch_size": {"height": 8, "width": 8}, **image_settings}
    )
    transformers.LightOnOcrProcessor(
        images, fast, patch_size=4, spatial_merge_size=2, chat_template=CHATML
    ).save_pretrained(directory)


# With what such templates do: they look for the last message of the user, and call a macro for its content.
GLM_TEMPLATE = """[gMASK]<sop>
{%- macro shown(content) -%}
    {%- for part in content -%}
        {%- if part.type == 'image' -%}<|begin_of_image|><|image|><|end_of_image|>
        {%- else -%}{{ part.text }}{%- endif -%}
    {%- endfor -%}
{%- endmacro -%}
{%- set ns = namespace(last=-1) -%}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
<|{{ message.role }}|>
{{ shown(message.content) }}
    {%- if loop.index0 == ns.last and enable_thinking is defined and not enable_thinking -%}/nothink{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|assistant|>
{% endif -%}
"""


def save_glm_ocr(directory: Path, tokenizer: Path, **image_settings: Any) -> None:
    """Images of 256 to 4096 pixels in patches of 4, each seen twice."""
    names = {"eos_token": "<|user|>", "pad_token": "<|endoftext|>", "bos_token": None}
    bounds = ("<|begin_of_image|>", "<|image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>")
    fast = save_reader_tokenizer(
        directory, tokenizer, ["<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", *bounds], **names
    )
    config = transformers.GlmOcrConfig(
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "num_heads": 2,
            "intermediate_size": 64,
            "out_hidden_size": 32,
            "image_size": 64,
            "patch_size": 4,
            "temporal_patch_size": 2,
        },
        text_config={**TEXT, "vocab_size": len(fast), "rope_parameters": {**ROPE, "mrope_section": [1, 1, 2]}},
        image_token_id=fast.convert_tokens_to_ids("<|image|>"),
    )
    save(directory, transformers.GlmOcrForConditionalGeneration(config), fast)
    size = {"shortest_edge": 2 * 256, "longest_edge": 2 * 4096}
    images = transformers.Glm46VImageProcessorPil(**{"size": size, "patch_size": 4, **image_settings})
    images.save_pretrained(directory)
    (directory / "chat_template.jinja").write_text(GLM_TEMPLATE)


PADDLE_TEMPLATE = """{%- if not cls_token is defined -%}{%- set cls_token = "<|begin_of_sentence|>" -%}{%- endif -%}
{{- cls_token -}}
{%- for message in messages -%}
    {{- "User: " -}}
    {%- for part in message["content"] -%}
        {%- if part["type"] == "image" -%}{{ "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>" }}{%- endif -%}
    {%- endfor -%}
    {%- for part in message["content"] -%}
        {%- if part["type"] == "text" -%}{{ part["text"] }}{%- endif -%}
    {%- endfor -%}
    {{ "\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "Assistant:\n" -}}{%- endif -%}
"""


def save_paddleocr_vl(directory: Path, tokenizer: Path, **image_settings: Any) -> None:
    """Images of 256 to 4096 pixels in patches of 4."""
    names = {"eos_token": "</s>", "pad_token": "<unk>", "bos_token": "<s>", "cls_token": "<|begin_of_sentence|>"}
    special = ("<|IMAGE_START|>", "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_END|>")
    fast = save_reader_tokenizer(
        directory,
        tokenizer,
        [*names.values(), *special],
        **names,
        extra_special_tokens={"image_token": "<|IMAGE_PLACEHOLDER|>"},
    )
    config = transformers.PaddleOCRVLConfig(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 4,
        },
        text_config={**TEXT, "vocab_size": len(fast), "rope_parameters": {**ROPE, "mrope_section": [1, 1, 2]}},
        image_token_id=fast.convert_tokens_to_ids("<|IMAGE_PLACEHOLDER|>"),
        tie_word_embeddings=False,
    )
    save(directory, transformers.PaddleOCRVLForConditionalGeneration(config), fast)
    size = {"shortest_edge": 256, "longest_edge": 4096}
    images = transformers.PaddleOCRVLImageProcessorPil(**{"size": size, "patch_size": 4, **image_settings})
    transformers.PaddleOCRVLProcessor(images, fast, chat_template=PADDLE_TEMPLATE).save_pretrained(directory)


def save(directory: Path, model: transformers.PreTrainedModel, fast: Any) -> None:
    """Save the model with weights that make an answer depend on the image and on the tokens before, and let it end."""
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter[0].numel() ** -0.5 * 2.5)
        model.get_input_embeddings().weight.normal_()
        head = model.get_output_embeddings().weight
        if head is not model.get_input_embeddings().weight:
            likely = [*range(2000, 2060), *range(VOCABULARY, len(fast))]
            rows = torch.randn(len(likely), head.shape[1])
            head.zero_()
            head[likely] = rows
    said = model.generation_config
    said.update(eos_token_id=[fast.eos_token_id, fast.sep_token_id], pad_token_id=fast.pad_token_id)
    said.update(do_sample=True, temperature=0.2, top_p=0.9)
    model.eval().save_pretrained(directory)


class Library:
    """transformers' own model and processor of a directory."""

    def __init__(self, directory: Path, model: Any, processor: Any) -> None:
        self.model = model.from_pretrained(directory).eval()
        self.processor = processor(directory)

    def inputs(self, file: bytes, messages: list[dict[str, Any]]) -> Any:
        text = self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return self.processor(text=text, images=[upright(file)], truncation=False, return_tensors="pt")

    def tokens(self, file: bytes, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        """Return the generated token ids, without the prompt."""
        inputs = self.inputs(file, messages)
        options = {"max_new_tokens": 24, **options}
        self.model.generation_config.max_length = None
        (found,) = self.model.generate(**inputs, do_sample=False, **options)
        return found[inputs["input_ids"].shape[1] :].tolist()

    def read(self, file: bytes, messages: list[dict[str, Any]], **options: Any) -> str:
        return self.processor.decode(self.tokens(file, messages, **options), skip_special_tokens=True).strip()


def lighton_processor(directory: Path) -> Any:
    return transformers.LightOnOcrProcessor.from_pretrained(directory, backend="pil")


class GlmProcessor(transformers.Glm46VProcessor):
    """GLM's processor without its video part, which needs a package of its own."""

    def check_argument_for_proper_class(self, name: str, argument: Any) -> None: ...


def glm_processor(directory: Path) -> Any:
    images = transformers.Glm46VImageProcessorPil.from_pretrained(directory)
    fast = transformers.AutoTokenizer.from_pretrained(directory)
    template = (directory / "chat_template.jinja").read_text()
    return GlmProcessor(images, fast, None, chat_template=template)


def paddle_processor(directory: Path) -> Any:
    return transformers.PaddleOCRVLProcessor.from_pretrained(directory, backend="pil")


def asked(*said: str, system: str = "") -> list[dict[str, Any]]:
    """Return a conversation about an image, followed by `said`."""
    content = [{"type": "image"}, *({"type": "text", "text": each} for each in said)]
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": content}]


SAVE = {"lighton_ocr": save_lighton_ocr, "glm_ocr": save_glm_ocr, "paddleocr_vl": save_paddleocr_vl}
PROCESSORS = {"lighton_ocr": lighton_processor, "glm_ocr": glm_processor, "paddleocr_vl": paddle_processor}
