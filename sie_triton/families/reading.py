"""What families have in common that answer about an image in words of their own. No torch.

image → pixels ┐
task  → prompt ┴→ model → tokens, one after another → text → findings
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tokenizers

from sie_triton.contract import Features, Parameter, ParameterValue, Part, Ragged, Rows
from sie_triton.contract.tensors import READ, Tensor
from sie_triton.errors import InputError
from sie_triton.inputs.base import Processor
from sie_triton.inputs.images import ImageFile, ImageReader
from sie_triton.inputs.pixels import packed_pixels
from sie_triton.inputs.tokenizer import packed_ids
from sie_triton.spec import Runtime

if TYPE_CHECKING:
    from PIL.Image import Image

# More than any of these models writes about one image.
MAX_NEW_TOKENS = 8192
MAX_BEAMS = 8
MAX_TASK = 100  # characters

NEW_TOKENS = Tensor("new_tokens", "INT32", (-1,), "[n] at most so many are generated of each item", "", 1)
GENERATED_LENGTHS = Tensor("generated_lengths", "INT32", (-1,), "[n] bytes of each item's text")
GENERATED = Tensor("generated", "UINT8", (-1,), "[bytes] what was generated, UTF-8", GENERATED_LENGTHS.name)

TASK_PARAMETER = Parameter(
    "task", str, max_characters=MAX_TASK, for_prompt=True, doc="what the model is to do, in its own words: <s_docvqa>"
)
NEW_TOKENS_PARAMETER = Parameter(
    "max_new_tokens",
    int,
    minimum=1,
    maximum=MAX_NEW_TOKENS,
    for_prompt=True,
    doc="an answer ends after so many tokens, or as many as the model can write",
)
BEAMS_PARAMETER = Parameter(
    "num_beams", int, minimum=1, maximum=MAX_BEAMS, doc="answers that are followed side by side; 1 where not said"
)
READER_PARAMETERS = (TASK_PARAMETER, NEW_TOKENS_PARAMETER, BEAMS_PARAMETER)


def text_of(row: Rows) -> str:
    """What was generated of one item."""
    return bytes(row[GENERATED.name]).decode()


def num_beams(options: Mapping[str, ParameterValue]) -> int:
    return int(options.get(BEAMS_PARAMETER.name, 1))


@dataclass(frozen=True, slots=True)
class Picture:
    """uint8 [height, width, 3] as the model reads it, the size that the upright image had, and what it is called."""

    pixels: npt.NDArray[np.uint8]
    height: int
    width: int
    where: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked of each image of a part; `number` is that of the task, where the family counts them."""

    ids: Sequence[int]
    new_tokens: int
    num_beams: int
    number: int = 0
    size: int = 0

    def around(self, element: Any) -> Any:
        return element, self


class ReaderProcessor(Processor):
    """Safe to call from several threads."""

    prepares = True

    def __init__(self, tokenizer: tokenizers.Tokenizer, runtime: Runtime) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._images = ImageReader(runtime)

    @abstractmethod
    def frame(self, part: Part) -> Prompt:
        """InputError names the parameter that is wrong."""

    @abstractmethod
    def pixels(self, picture: "Image", where: str) -> npt.NDArray[np.uint8]:
        """As large as the model reads it. InputError begins with `where`."""

    @abstractmethod
    def image_length(self, pixels: npt.NDArray[np.uint8]) -> int:
        """What is read of an image beside the tokens of its prompt, in what costs as much as one."""

    def about(self, picture: Picture, prompt: Prompt) -> Prompt:
        """With what depends on the image; InputError names it."""
        return prompt

    def is_slow(self, element: Any) -> bool:
        return isinstance(element, ImageFile)

    def prepare(self, element: Any) -> Any:
        if not isinstance(element, ImageFile):
            return element
        with self._images.opened(element) as picture:
            return Picture(self.pixels(picture, element.where), picture.height, picture.width, element.where)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        images = [picture.pixels for picture, _ in framed]
        prompts = [self.about(picture, prompt) for picture, prompt in framed]
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
        """Without what the tokenizer would put around it."""
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return found


def new_tokens(part: Part, usual: int, room: int) -> int:
    """How many may be generated, where `room` is what the model can write after its prompt; InputError if nothing."""
    if room < 1:
        raise InputError("parameter instruction: leaves the model no room for an answer; send a shorter one")
    return min(int(part.options.get(NEW_TOKENS_PARAMETER.name, usual)), room)
