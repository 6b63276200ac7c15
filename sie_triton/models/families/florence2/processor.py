"""An image and a task → Florence-2's input: pixels, and the prompt of the task."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tokenizers

from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.contract import Features, Part, Ragged
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.errors import InputError, LoadError
from sie_triton.models.families.florence2 import TASK, Florence2Files
from sie_triton.models.families.florence2.tasks import DOCVQA, GROUNDING, NUMBERS, OCR_WITH_REGION, TASKS, ReadingTask
from sie_triton.models.families.shared.images import original_sizes
from sie_triton.models.families.shared.readers.processor import (
    ReaderProcessor,
    ReadingPrompt,
    TaskOptions,
    new_tokens,
    num_beams,
)
from sie_triton.models.inputs.pixels import resized
from sie_triton.models.inputs.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image


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
