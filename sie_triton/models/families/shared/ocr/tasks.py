"""Page readers with named tasks, whose images are cut into patches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract import Part
from sie_triton.contract.spec import ModelSpec
from sie_triton.errors import InputError, LoadError
from sie_triton.models.families.shared.ocr.prompt import OcrProcessor, Sizes
from sie_triton.models.families.shared.readers.processor import TASK_PARAMETER
from sie_triton.models.inputs.chat_template import Message


@dataclass(frozen=True, slots=True)
class PatchFiles:
    """Files of a page reader. `size` maps height and width of an image to those that the model reads."""

    files: PageFiles
    plan: PatchPlan
    size: Callable[[int, int, PatchPlan], tuple[int, int]]

    @property
    def sizes(self) -> Sizes:
        return Sizes(lambda height, width: self.size(height, width, self.plan), self.counts, self.plan.resample)

    def counts(self, height: int, width: int) -> tuple[int, int]:
        """Return the number of patches and of tokens in a resized image."""
        return self.plan.num_patches(height, width), self.plan.num_tokens(height, width)


@dataclass(frozen=True, slots=True)
class OcrTasks:
    """Tasks of a model."""

    prompts: Mapping[str, str]  # name of a task → its prompt
    usual: str  # the default task
    default_prompt: str = ""  # replaces that of the default task; empty: none

    def check(self) -> "OcrTasks":
        """Raise LoadError if the default task is unknown."""
        if self.usual not in self.names:
            raise LoadError(f"default_task: {self._unknown(self.usual)}", "unsupported")
        return self

    @property
    def names(self) -> Mapping[str, str]:
        """The names of tasks and their prompts, which may be used as names, → names of tasks."""
        return {each: name for name, words in self.prompts.items() for each in (name, words)}

    def task_and_prompt(self, part: Part) -> tuple[str, str]:
        """Return the task's name, and the instruction or else the task's prompt; raise InputError if unknown."""
        given = part.options.get(TASK_PARAMETER.name)
        called = self.usual if given is None else str(given)
        if called not in self.names:
            raise InputError.at("parameter task", self._unknown(called))
        name = self.names[called]
        words = self.default_prompt if self.default_prompt and given is None else self.prompts[name]
        return name, part.instruction or words

    def _unknown(self, name: str) -> str:
        return f"{name!r} is not a task of this model; give one of {', '.join(self.prompts)}"


class TaskProcessor(OcrProcessor):
    """Processor whose task numbers are positions in `tasks.prompts`."""

    def __init__(self, of: PatchFiles, tasks: OcrTasks, usual_tokens: int, spec: ModelSpec) -> None:
        self._tasks, self._numbers = tasks.check(), {name: i for i, name in enumerate(tasks.prompts)}
        super().__init__(of.files, of.sizes, usual_tokens, spec)

    def conversation(self, part: Part) -> tuple[Sequence[Message], int]:
        name, words = self._tasks.task_and_prompt(part)
        content = [{"type": "image"}, {"type": "text", "text": words}]
        return [{"role": "user", "content": content}], self._numbers[name]
