"""A page and a task → Donut's input: pixels as DonutImageProcessor makes them, and the decoder's first tokens."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import tokenizers

from sie_triton.checkpoints.resizing import with_shortest_edge
from sie_triton.contract import Part
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.errors import InputError, LoadError
from sie_triton.models.families.donut import PRETRAINING, START, DonutFiles, tasks_of
from sie_triton.models.families.shared.readers.processor import (
    ReaderProcessor,
    ReadingPrompt,
    TaskOptions,
    new_tokens,
    num_beams,
)
from sie_triton.models.inputs.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image

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
