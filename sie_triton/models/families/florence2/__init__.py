"""Florence-2: captions, text and objects in an image (Xiao et al., 2024).

image → DaViT → patches ┐
task  → its prompt ─────┴→ BART → tokens → text with places → lines, objects, data
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tokenizers

from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.checkpoints.image_processor import NESTED, ImagePlan
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.page_models import kind_of
from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.contract import Extraction, Features, Findings, Line, Object, ParameterValue, Part, Ragged, Rows
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.contract.tensors import INPUT_IDS, ORIGINAL_SIZES, PIXELS, READ, Tensor
from sie_triton.errors import InputError, LoadError
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.florence2.tasks import DOCVQA, GROUNDING, NUMBERS, OCR_WITH_REGION, TASKS, ReadingTask
from sie_triton.models.families.shared.images import original_sizes
from sie_triton.models.families.shared.readers.processor import (
    CERTAIN,
    GENERATED,
    NEW_TOKENS,
    READER_PARAMETERS,
    ReaderProcessor,
    ReadingPrompt,
    TaskOptions,
    new_tokens,
    num_beams,
    text_of,
)
from sie_triton.models.inputs.pixels import resized
from sie_triton.models.inputs.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image

POOLED = ("spatial_avg_pool", "temporal_avg_pool")
RENAMED = {"dim_embed": "embed_dim"}

# In the order in which they are added to the tokenizer.
TOKENS = (
    *("<od>", "</od>", "<ocr>", "</ocr>"),
    *(f"<loc_{place}>" for place in range(1000)),
    *("<cap>", "</cap>", "<ncap>", "</ncap>", "<dcap>", "</dcap>", "<grounding>", "</grounding>", "<seg>", "</seg>"),
    *("<sep>", "<region_cap>", "</region_cap>", "<region_to_desciption>", "</region_to_desciption>", "<proposal>"),
    *("</proposal>", "<poly>", "</poly>", "<and>"),
)

# Phrases that the published code never grounds.
PHRASES = (
    "it,I,me,mine,you,your,yours,he,him,his,she,her,hers,they,them,their,theirs,one,oneself,we,us,our,ours,its,myself,"
    "yourself,himself,herself,itself,ourselves,yourselves,themselves,this,that,these,those,who,whom,whose,which,what,"
    "all,another,any,anybody,anyone,anything,each,everybody,everyone,everything,few,many,nobody,none,several,some,"
    "somebody,someone,something,each other,one another,the image,image,images,the,a,an,a group,other objects,lots,a set"
)
BANNED = frozenset(PHRASES.split(","))


def as_transformers(config: Fields) -> Mapping[str, Any]:
    """Translate Microsoft's config.json to that of transformers, which computes the same as the published code.

    The padding token stands for an image: no prompt contains padding. Raises LoadError for settings that transformers
    does not have.
    """
    vision, text = config.fields("vision_config"), config.fields("text_config")
    if vision.texts("image_feature_source", POOLED) != POOLED:
        raise vision.unserved(f"image_feature_source: must be {' and '.join(POOLED)}")
    seen = {RENAMED.get(key, key): value for key, value in vision.values.items()}
    places = vision.fields("image_pos_embed").integer("max_pos_embeddings", 50, least=1)
    times = vision.fields("visual_temporal_embedding").integer("max_temporal_embeddings", 100, least=1)
    return {
        "model_type": "florence2",
        "vision_config": {
            **{name: seen[name] for name in SAME if name in seen},
            "max_position_embeddings": places,
            "max_temporal_embeddings": times,
        },
        "text_config": {**text.values, "model_type": "bart"},
        "image_token_id": text.integer("pad_token_id", 1),
    }


SAME = (
    *("depths", "embed_dim", "num_heads", "num_groups", "window_size", "projection_dim", "drop_path_rate"),
    *("patch_size", "patch_stride", "patch_padding", "patch_prenorm"),
)


@dataclass(frozen=True, slots=True)
class Florence2Files:
    """Files of a Florence-2 model."""

    directory: Path
    plan: ImagePlan
    num_patches: int  # of an image, as many tokens `image_token`
    image_token: int
    positions: int  # maximum number of tokens of encoder and decoder
    banned: frozenset[str]  # phrases that are not grounded
    least_area: float  # share of the image; words on less are dropped
    added_tokens: tuple[str, ...] = ()  # appended to those of the tokenizer
    original: Mapping[str, Any] | None = None  # Microsoft's config.json in the terms of transformers, if it is that

    @classmethod
    def read(cls, directory: Path) -> "Florence2Files":
        config = read_fields(directory / "config.json")
        original = as_transformers(config) if config.fields("vision_config").has("dim_embed") else None
        if original is not None:
            config = Fields(config.where, original)
        vision, text = config.fields("vision_config"), config.fields("text_config")
        text.integer("d_model", 1024, least=1, most=LIMITS.max_width)
        for layers in ("encoder_layers", "decoder_layers"):
            text.integer(layers, 12, least=1, most=LIMITS.max_layers)
        plan = ImagePlan.read(directory, "CLIPImageProcessor")
        asked = read_fields(directory / NESTED, required=False).fields("post_processor_config")
        return cls(
            directory,
            plan,
            _num_patches(vision, plan),
            config.integer("image_token_id", 51289),
            text.integer("max_position_embeddings", 1024, least=2),
            BANNED if original else frozenset(asked.fields("phrase_grounding").texts("banned_grounding_tokens")),
            asked.fields("ocr").number("AREA_THRESHOLD", 0.0),
            TOKENS if original else (),
            original,
        )


def _num_patches(vision: Fields, plan: ImagePlan) -> int:
    """Return the number of patches that the convolutions make of an image, and one more for the image as a whole."""
    sides = list(plan.shape)
    stages = zip(*(_numbers(vision, name, usual) for name, usual in CONVOLUTIONS.items()), strict=True)
    for kernel, stride, padding in stages:
        sides = [(side + 2 * padding - kernel) // stride + 1 for side in sides]
    most = vision.integer("max_position_embeddings", 50, least=1)
    if not all(1 <= side <= most for side in sides):
        message = f"images of {plan.shape[0]} × {plan.shape[1]} become {sides[0]} × {sides[1]} patches"
        raise vision.corrupt(f"{message}, but its max_position_embeddings is {most}")
    return 1 + sides[0] * sides[1]


CONVOLUTIONS = {"patch_size": [7, 3, 3, 3], "patch_stride": [4, 2, 2, 2], "patch_padding": [3, 1, 1, 1]}


def _numbers(fields: Fields, name: str, usual: list[int]) -> list[int]:
    values = fields.values.get(name, usual)
    if not isinstance(values, list) or len(values) != 4:
        raise fields.corrupt(f"{name}: must be a list of 4 numbers")
    least = 0 if name == "patch_padding" else 1
    entries = Fields(f"{fields.where}: {name}", {str(i): value for i, value in enumerate(values)})
    return [entries.integer(str(i), least=least, most=LIMITS.max_image_side) for i in range(4)]


TASK = Tensor("task_number", "INT32", (-1,), "[n] number of the task", "", 0, len(TASKS) - 1)


def findings(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    """Return the answer as `data` under the name of its task, and as lines or objects."""
    (row,) = rows
    name, answer = json.loads(text_of(row))
    found, task = Findings(data={name: answer}), TASKS[name]
    if isinstance(answer, str):
        found.lines = [Line(answer, None, task.label, CERTAIN)] if answer else []
    elif task.kind == "ocr":
        pairs = zip(answer["quad_boxes"], answer["labels"], strict=True)
        found.lines = [Line(words, _around(quad), task.label, CERTAIN) for quad, words in pairs]
    elif "bboxes" in answer:
        labels = answer.get("labels", answer.get("bboxes_labels"))
        pairs = zip(answer["bboxes"], labels, strict=True)
        found.objects = [Object((*box,), label or "object", CERTAIN) for box, label in pairs]
    return found


def _around(quad: Sequence[float]) -> tuple[float, float, float, float]:
    """Return the bounding box of a path of corners."""
    x, y = quad[0::2], quad[1::2]
    return min(x), min(y), max(x), max(y)


class Florence2(Family):
    inputs = ("image",)
    unread_inputs = ("text",)
    extraction = Extraction((GENERATED,), findings, "optional")
    features = (READ, INPUT_IDS, PIXELS, NEW_TOKENS, TASK, ORIGINAL_SIZES)
    parameters = READER_PARAMETERS
    options = TaskOptions
    generates = True
    reference_adapters = ("florence2:Florence2Adapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if kind_of(directory)[0] != "florence2":
            return None
        files = Florence2Files.read(directory)
        height, width = files.plan.shape
        reason = f"config.json: florence2, images of {height} × {width} in {files.num_patches} patches"
        return Recognised(reason, files.positions, {}, extracts=True, weights=(directory,))

    def longest(self, directory: Path) -> int:
        return Florence2Files.read(directory).positions


class Florence2Processor(ReaderProcessor):
    """Processor of Florence-2.

    `around` are the special tokens before and after a prompt. `longest` limits the tokens of an answer.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        files: Florence2Files,
        longest: int,
        around: tuple[str, str],
        task: str,
        runtime: Runtime,
    ) -> None:
        super().__init__(tokenizer, runtime)
        self._files, self._longest = files, min(longest, files.positions)
        self._around, self._task = around, task

    def frame(self, part: Part) -> ReadingPrompt:
        task, question = task_and_prompt(part, self._task)
        before, after = self._around
        ids = self.ids(f"{before}{question}{after}")
        if self._files.num_patches + len(ids) > self._files.positions:
            most = self._files.positions - self._files.num_patches
            raise InputError.at(
                "parameter instruction", f"the prompt has {len(ids)} tokens; the model reads at most {most}"
            )
        most = new_tokens(part, usual=1024, room=self._longest)
        return ReadingPrompt(ids, most, num_beams(part.options), NUMBERS[task.name])

    def pixels(self, picture: "Image", where: str) -> npt.NDArray[np.uint8]:
        return resized(picture, self._files.plan)

    def image_length(self, pixels: npt.NDArray[np.uint8]) -> int:
        return self._files.num_patches

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        pictures, prompts = zip(*framed, strict=True)
        return {
            **super().encode(framed),
            TASK.name: Ragged(np.array([each.number for each in prompts], np.int32)),
            **original_sizes(pictures),
        }


def tokenizer_of(files: Florence2Files) -> tokenizers.Tokenizer:
    """Load the tokenizer; raise LoadError if its file cannot be read."""
    tokenizer = open_tokenizer(files.directory)
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(token, normalized=False, special=True) for token in files.added_tokens]
    )
    return tokenizer


def task_and_prompt(part: Part, usual: str) -> tuple[ReadingTask, str]:
    """Return the task and its prompt; raise InputError if the request's parameters do not fit the task.

    If the task takes input, the instruction is that input; otherwise, the instruction is a question about a document.
    An instruction that begins with a task's name selects that task.
    """
    task, said = _task(str(part.options.get("task", usual))), (part.instruction or "").strip()
    name, closing, rest = said.partition(">")
    if f"{name}{closing}" in TASKS:
        task, said = TASKS[f"{name}{closing}"], rest.strip()
    elif said and not task.reads_input:
        task = TASKS[DOCVQA]
    if part.labels and task.name != GROUNDING:
        raise InputError.at("labels", f"only the task {GROUNDING} takes labels; leave them out for {task.name}")
    if part.labels and said:
        raise InputError.at(
            "labels", f"replace the caption of {GROUNDING}; send either labels or parameter instruction"
        )
    said = said or ", ".join(label.read for label in part.labels)
    if task.reads_input and not said:
        wanted = "labels, or parameter instruction" if task.name == GROUNDING else "parameter instruction"
        raise InputError.at("parameter task", f"{task.name} needs input; send it as {wanted}")
    if said and not task.reads_input:
        raise InputError.at("parameter instruction", f"{task.name} takes no input; leave out the text after it")
    return task, task.prompt(said)


def _task(name: str) -> ReadingTask:
    if name not in TASKS:
        raise InputError.at("parameter task", f"{name!r} is not a task of this model; give one of {', '.join(TASKS)}")
    return TASKS[name]


def load_processor(spec: ModelSpec, directory: Path) -> Florence2Processor:
    task = TaskOptions.of(spec).default_task or OCR_WITH_REGION
    if task not in TASKS:
        message = f"default_task: {task!r} is not a task of this model; give one of {', '.join(TASKS)}"
        raise LoadError(message, "unsupported")
    files = Florence2Files.read(directory)
    around = special_token(directory, "bos_token", "<s>"), special_token(directory, "eos_token", "</s>")
    return Florence2Processor(tokenizer_of(files), files, spec.max_sequence_length, around, task, spec.runtime)
