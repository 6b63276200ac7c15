"""Donut: documents read without OCR (Kim et al., 2022).

page → resized, padded → Swin transformer ┐
task, question → tokens → decoder ────────┴→ tokens → JSON → data, entities
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tokenizers

from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.checkpoints.image_processor import ImagePlan, image_fields, resample, scaling
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.page_models import kind_of
from sie_triton.checkpoints.resizing import EXACT, Resizing, with_shortest_edge
from sie_triton.contract import Class, Extraction, Findings, Line, ParameterValue, Part, Rows
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.contract.tensors import INPUT_IDS, PIXELS, READ
from sie_triton.errors import InputError, LoadError
from sie_triton.models.families.base import Family, Recognised
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
from sie_triton.models.inputs.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image

# Task tokens of pretraining.
PRETRAINING = ("<s_iitcdip>", "<s_synthdog>")

START = re.compile(r"<s_([^<>]+)>")


@dataclass(frozen=True, slots=True)
class DonutFiles:
    """Files of a Donut model."""

    directory: Path
    plan: ImagePlan
    is_aligned: bool  # pages are first rotated to the orientation of `plan.shape`
    num_patches: int  # of each page
    positions: int  # maximum number of tokens of the decoder

    @classmethod
    def read(cls, directory: Path) -> "DonutFiles":
        config = read_fields(directory / "config.json")
        encoder, decoder = config.fields("encoder"), config.fields("decoder")
        decoder.integer("d_model", 1024, least=1, most=LIMITS.max_width)
        decoder.integer("decoder_layers", 4, least=1, most=LIMITS.max_layers)
        depths = encoder.values.get("depths", [2, 2, 6, 2])
        if not isinstance(depths, list) or not 1 <= len(depths) <= 8:
            raise encoder.corrupt("depths: must be a list of 1 to 8 numbers")
        plan, is_aligned = page_plan(directory)
        stride = encoder.integer("patch_size", 4, least=1, most=LIMITS.max_image_side) * 2 ** (len(depths) - 1)
        height, width = plan.shape
        return cls(
            directory,
            plan,
            is_aligned,
            -(-height // stride) * -(-width // stride),
            decoder.integer("max_position_embeddings", 1024, least=2),
        )


def is_donut(directory: Path) -> bool:
    if kind_of(directory)[0] != "vision-encoder-decoder":
        return False
    encoder = read_fields(directory / "config.json").values.get("encoder")
    return isinstance(encoder, dict) and encoder.get("model_type") == "donut-swin"


def tasks_of(tokens: Iterable[str]) -> tuple[str, ...]:
    """Return the added tokens that begin an answer.

    The others open a field, and each of them has a closing token.

    >>> tasks_of(["<s_docvqa>", "<s_answer>", "</s_answer>", "<yes/>"])
    ('<s_docvqa>',)
    """
    known = set(tokens)
    found = [token for token in known if (name := START.fullmatch(token)) and f"</s_{name[1]}>" not in known]
    return tuple(sorted(found))


def page_plan(directory: Path) -> tuple[ImagePlan, bool]:
    """Read the preprocessing, and whether pages are rotated first; raise LoadError if it cannot be served."""
    fields = image_fields(directory, "DonutImageProcessor", ("do_resize", "do_thumbnail", "do_pad"))
    if fields.flag("do_center_crop", False):
        raise fields.unserved("do_center_crop true cannot be served")
    if resample(fields) == 0:
        message = "resample 0 cannot be served: the library shrinks with another filter then"
        raise fields.unserved(f"{message}; supported are 1 to 5")
    size = fields.values["size"]
    # In older files, `size` is a list of width and height.
    turned = Fields(fields.where, {**fields.values, "size": size[::-1] if isinstance(size, list) else size})
    plan = ImagePlan(Resizing.read(turned, (EXACT,)), resample(fields), None, **scaling(fields))
    return plan, fields.flag("do_align_long_axis", False)


def findings(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    """Return an answer, a document's class, or each value with its path in the generated JSON."""
    (row,) = rows
    task, data = json.loads(text_of(row))
    if task == "<s_docvqa>":
        return Findings(data=data, lines=[_line(text, "answer") for text in _values_of(data, "answer")])
    if task == "<s_rvlcdip>":
        names = list(_values_of(data, "class"))
        lines = [_line(name, "document_class") for name in names]
        return Findings(data=data, lines=lines, classifications=[Class(name, CERTAIN) for name in names])
    return Findings(data=data, lines=[_line(text, path) for path, text in values(data)])


def values(data: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each value.

    >>> list(values({"menu": [{"nm": "Tea"}, {"nm": "Pie"}], "total": {"price": "5"}}))
    [('menu[0].nm', 'Tea'), ('menu[1].nm', 'Pie'), ('total.price', '5')]
    """
    if isinstance(data, str):
        yield path, data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from values(value, f"{path}.{key}" if path else key)
    else:
        for i, value in enumerate(data):
            yield from values(value, f"{path}[{i}]")


def _values_of(data: Any, key: str) -> Iterator[str]:
    """Yield the texts under `key` that are not empty."""
    for record in data if isinstance(data, list) else [data]:
        yield from (text for _, text in values(record.get(key, "")) if text)


def _line(text: str, label: str) -> Line:
    return Line(text, None, label, CERTAIN)


class Donut(Family):
    inputs = ("image",)
    extraction = Extraction((GENERATED,), findings)
    features = (READ, INPUT_IDS, PIXELS, NEW_TOKENS)
    parameters = READER_PARAMETERS
    options = TaskOptions
    generates = True
    reference_adapters = ("donut:DonutAdapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if not is_donut(directory):
            return None
        files = DonutFiles.read(directory)
        height, width = files.plan.shape
        reason = f"config.json: donut, pages of {height} × {width}, answers of up to {files.positions} tokens"
        return Recognised(reason, files.positions, {}, extracts=True, weights=(directory,))

    def longest(self, directory: Path) -> int:
        return DonutFiles.read(directory).positions


QUESTION = ("<s_question>", "</s_question>", "<s_answer>")

# Maximum aspect ratio. It limits memory, since an image is first resized until its shorter side is that of the page.
MAX_ASPECT = 20


class DonutProcessor(ReaderProcessor):
    """Processor of Donut. `longest` limits the tokens of prompt and answer together."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, files: DonutFiles, longest: int, task: str, runtime: Runtime
    ) -> None:
        super().__init__(tokenizer, runtime)
        self._files, self._longest = files, min(longest, files.positions)
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        self._added, self._tasks = frozenset(added), tasks_of(added)
        if task and task not in self._added:
            message = f"default_task: {task!r} is not a task of this model; give one of {', '.join(self._tasks)}"
            raise LoadError(message, "unsupported")
        trained_for = [each for each in self._tasks if each not in PRETRAINING]
        self._task = task or (trained_for[0] if len(trained_for) == 1 else "")

    def frame(self, part: Part) -> ReadingPrompt:
        ids = self.ids(self._task_prompt(part))
        # The model never reads the last token that it generates.
        most = new_tokens(part, usual=512, room=self._longest + 1 - len(ids))
        return ReadingPrompt(ids, most, num_beams(part.options))

    def pixels(self, picture: "Image", where: str) -> npt.NDArray[np.uint8]:
        width, height = picture.size
        if max(width, height) > MAX_ASPECT * min(width, height):
            raise InputError.at(
                where, f"has {width} × {height} pixels; the longer side may be at most {MAX_ASPECT} times the shorter"
            )
        return page(picture, self._files)

    def image_length(self, pixels: npt.NDArray[np.uint8]) -> int:
        return self._files.num_patches

    def _task_prompt(self, part: Part) -> str:
        task = str(part.options.get("task", self._task))
        if task not in self._added or not START.fullmatch(task):
            given = f"{task!r} is not a task of this model" if task else "is missing"
            raise InputError.at(
                "parameter task", f"{given}; give one of {', '.join(self._tasks) or 'its tokens <s_…>'}"
            )
        if not part.instruction:
            return task
        if not self._added.issuperset(QUESTION):
            raise InputError.at("parameter instruction", "this model does not take questions; leave it out")
        before, after, answer = QUESTION
        return f"{task}{before}{part.instruction}{after}{answer}"


def page(picture: "Image", files: DonutFiles) -> npt.NDArray[np.uint8]:
    """Return uint8 [height, width, 3]: enlarged to fill the page, shrunk to fit it, padded with black."""
    from PIL import Image

    (height, width), resample = files.plan.shape, files.plan.resample
    if files.is_aligned and (height - width) * (picture.height - picture.width) < 0:
        picture = picture.transpose(Image.Transpose.ROTATE_270)
    made = with_shortest_edge(picture.height, picture.width, min(height, width))
    picture = picture.resize(made[::-1], resample=resample)
    shown = thumbnail(*made, height, width)
    if shown != made:
        picture = picture.resize(shown[::-1], resample=resample)
    pixels = np.zeros((height, width, 3), np.uint8)
    top, left = (height - shown[0]) // 2, (width - shown[1]) // 2
    pixels[top : top + shown[0], left : left + shown[1]] = np.asarray(picture)
    return pixels


def thumbnail(height: int, width: int, most_height: int, most_width: int) -> tuple[int, int]:
    """Return the largest size within the limits, with the same aspect ratio; never larger than the image.

    >>> thumbnail(300, 100, 200, 100), thumbnail(100, 300, 200, 100), thumbnail(100, 100, 200, 100)
    ((200, 66), (33, 100), (100, 100))
    """
    fitting_height, fitting_width = min(height, most_height), min(width, most_width)
    if height > width:
        fitting_width = int(width * fitting_height / height)
    elif width > height:
        fitting_height = int(height * fitting_width / width)
    return fitting_height, fitting_width


def load_processor(spec: ModelSpec, directory: Path) -> DonutProcessor:
    files, tokenizer = DonutFiles.read(directory), open_tokenizer(directory)
    return DonutProcessor(tokenizer, files, spec.max_sequence_length, TaskOptions.of(spec).default_task, spec.runtime)
