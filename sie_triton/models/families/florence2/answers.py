"""Florence-2's output → texts, boxes and polygons in pixels, by the parser of transformers' Florence2Processor."""

import re
from types import SimpleNamespace
from typing import Any

from transformers.models.florence2.processing_florence2 import Florence2PostProcessor, Florence2Processor

from sie_triton.models.families.florence2.tasks import TASKS, ReadingTask

# What words are followed by that the library's patterns keep. From each letter of others they search on to their end.
CORNERS = re.compile(r"(?:<loc_\d+>){8,}")  # of words that were read: each corner has an x and a y
BOXED = re.compile(r"([^<]{1000,}+)((?:<loc_\d+>){4,})?")
OUTLINED = re.compile(r"([^<]{1000,}+)((?:<loc_\d+>|<sep>|</?poly>){4,})?")


class Answers:
    """Parser of answers. Drops `banned` phrases, and words on less than `least_area`, a share of the image."""

    def __init__(self, banned: frozenset[str] = frozenset(), least_area: float = 0.0) -> None:
        kinds = {name: task.kind for name, task in TASKS.items()}
        settings: dict[str, dict[str, Any]] = {kind: {} for kind in kinds.values()}
        settings["ocr"] = {"AREA_THRESHOLD": least_area}
        settings["phrase_grounding"] = {"banned_grounding_tokens": banned}
        # All that the library's parser reads of its processor and its tokenizer, for answers that are texts.
        parser = Florence2PostProcessor(settings, SimpleNamespace(all_special_tokens=()))  # type: ignore[no-untyped-call]
        self._processor: Any = SimpleNamespace(tasks_answer_post_processing_type=kinds, post_processor=parser)

    def read(self, task: ReadingTask, text: str, size: tuple[int, int]) -> Any:
        """Return a text, or lists of places and of labels by name; `size` is width and height of the image."""
        # No number may be too large for a tensor.
        text = re.sub(r"(<loc_\d{6})\d+", r"\1", text)
        if task.kind != "pure_text":
            text = text.replace("<s>", "").replace("</s>", "").replace("<pad>", "")
        if task.kind == "ocr":
            text = "\n".join(map(_up_to_its_last_corners, text.split("\n")))
        elif task.kind not in ("pure_text", "bboxes", "polygons"):
            is_outlined = task.kind.endswith("or_polygons") and "<poly>" in text
            text = (OUTLINED if is_outlined else BOXED).sub(_shortened_unless_placed, text)
        answer = Florence2Processor.post_process_generation(self._processor, text, task=task.name, image_size=size)
        return answer[task.name]


def _up_to_its_last_corners(line: str) -> str:
    return line[: max((match.end() for match in CORNERS.finditer(line)), default=0)]


def _shortened_unless_placed(match: re.Match[str]) -> str:
    words, places = match.groups()
    return (words.lstrip() or " ") + places if places else words[:32]  # with the end of a place, "loc_9>"
