"""Base of families that generate an answer about an image. No torch.

image → pixels ┐
task  → prompt ┴→ model → tokens, one after another → text → findings
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from sie_triton.contract import Features, Parameter, ParameterValue, Part, Ragged, Rows
from sie_triton.contract.spec import Runtime
from sie_triton.contract.tensors import READ, Tensor
from sie_triton.errors import InputError
from sie_triton.models.families.base import Options
from sie_triton.models.families.shared.images import ImageProcessor, PreparedImage
from sie_triton.models.inputs.pixels import packed_pixels
from sie_triton.models.inputs.tokenizer import packed_ids

# More than any of these models generates for one image.
MAX_NEW_TOKENS = 8192
MAX_BEAMS = 8

# In characters. Models may read more, but other requests wait while a prompt is tokenized.
MAX_INSTRUCTION = 16_384

NEW_TOKENS = Tensor("new_tokens", "INT32", (-1,), "[n] maximum number of tokens to generate for each item", "", 1)
GENERATED = Tensor("generated", "UINT8", (-1,), "[bytes] the generated texts, UTF-8", "generated_lengths")

TASK_PARAMETER = Parameter(
    "task",
    str,
    max_characters=100,
    for_prompt=True,
    doc="task by the model's own name, such as `<s_docvqa>` or `<OCR>`",
)
NEW_TOKENS_PARAMETER = Parameter(
    "max_new_tokens",
    int,
    minimum=1,
    maximum=MAX_NEW_TOKENS,
    for_prompt=True,
    doc="most tokens to generate; the model's own limit may be lower",
)
BEAMS_PARAMETER = Parameter("num_beams", int, minimum=1, maximum=MAX_BEAMS, doc="beams of beam search; default 1")
READER_PARAMETERS = (TASK_PARAMETER, NEW_TOKENS_PARAMETER, BEAMS_PARAMETER)


# Generated words have no score.
CERTAIN = 1.0


@dataclass(frozen=True)
class TaskOptions(Options):
    """Options of models with named tasks."""

    default_task: str = ""  # of a request that names none; empty is the usual one


def text_of(row: Rows) -> str:
    return bytes(row[GENERATED.name]).decode()


def check_instruction(part: Part) -> None:
    """Raise InputError if the instruction is too long to tokenize."""
    if (length := len(part.instruction or "")) > MAX_INSTRUCTION:
        problem = f"has {length} characters; at most {MAX_INSTRUCTION} are allowed"
        raise InputError.at("parameter instruction", problem)


def num_beams(options: Mapping[str, ParameterValue]) -> int:
    return int(options.get(BEAMS_PARAMETER.name, 1))


@dataclass(frozen=True, slots=True)
class ReadingPrompt:
    """The prompt for each image of a part. `number` is that of the task, in families that number their tasks."""

    ids: Sequence[int]
    new_tokens: int
    num_beams: int
    number: int = 0
    size: int = 0

    def around(self, element: Any) -> Any:
        return element, self


class ReaderProcessor(ImageProcessor):
    """Base of processors for images with prompts. Thread-safe."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, runtime: Runtime) -> None:
        super().__init__(runtime)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer

    @abstractmethod
    def frame(self, part: Part) -> ReadingPrompt:
        """Return the prompt of a part; raise InputError naming the parameter that is wrong."""

    @abstractmethod
    def image_length(self, pixels: npt.NDArray[np.uint8]) -> int:
        """Return the cost of an image, without its prompt, in units of a token."""

    def complete_prompt(self, picture: PreparedImage, prompt: ReadingPrompt) -> ReadingPrompt:
        """Return the prompt with the parts that depend on the image; raise InputError naming the image."""
        return prompt

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        images = [picture.pixels for picture, _ in framed]
        prompts = [self.complete_prompt(picture, prompt) for picture, prompt in framed]
        read = [
            self.image_length(image) + len(each.ids) + each.num_beams * each.new_tokens
            for image, each in zip(images, prompts, strict=True)
        ]
        return {
            READ.name: Ragged(np.array(read, np.int32)),
            **packed_ids([each.ids for each in prompts]),
            **packed_pixels(images),
            NEW_TOKENS.name: Ragged(np.array([each.new_tokens for each in prompts], np.int32)),
        }

    def ids(self, text: str) -> list[int]:
        """Tokenize without the tokenizer's special tokens around the text."""
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return found


def new_tokens(part: Part, usual: int, room: int) -> int:
    """Return the maximum number of tokens to generate.

    `usual` is the default; `room` is how many tokens the model can generate after its prompt. Raises InputError if that
    is less than one.
    """
    if room < 1:
        raise InputError.at("parameter instruction", "leaves the model no room for an answer; send a shorter one")
    return min(int(part.options.get(NEW_TOKENS_PARAMETER.name, usual)), room)
