"""Florence-2's tasks by their published names: the prompt used in training, and the form of the answer."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "words", "boxes", "unnamed boxes", "phrases", "polygons", "boxes or polygons"]


@dataclass(frozen=True, slots=True)
class ReadingTask:
    """A task. {} in `question` is replaced by the request's input. `label` is that of an answer that is a text."""

    name: str
    question: str
    kind: Kind
    label: str = ""

    @property
    def reads_input(self) -> bool:
        return "{}" in self.question

    def prompt(self, added: str) -> str:
        return self.question.replace("{}", added)


OCR_WITH_REGION, DOCVQA, GROUNDING = "<OCR_WITH_REGION>", "<DocVQA>", "<CAPTION_TO_PHRASE_GROUNDING>"

_ALL = (
    ReadingTask("<OCR>", "What is the text in the image?", "text", "text"),
    ReadingTask(OCR_WITH_REGION, "What is the text in the image, with regions?", "words", "text"),
    ReadingTask("<CAPTION>", "What does the image describe?", "text", "caption"),
    ReadingTask("<DETAILED_CAPTION>", "Describe in detail what is shown in the image.", "text", "caption"),
    ReadingTask("<MORE_DETAILED_CAPTION>", "Describe with a paragraph what is shown in the image.", "text", "caption"),
    ReadingTask("<OD>", "Locate the objects with category name in the image.", "boxes"),
    ReadingTask("<DENSE_REGION_CAPTION>", "Locate the objects in the image, with their descriptions.", "boxes"),
    ReadingTask("<REGION_PROPOSAL>", "Locate the region proposals in the image.", "unnamed boxes"),
    ReadingTask(GROUNDING, "Locate the phrases in the caption: {}", "phrases"),
    ReadingTask("<REFERRING_EXPRESSION_SEGMENTATION>", "Locate {} in the image with mask", "polygons"),
    ReadingTask("<REGION_TO_SEGMENTATION>", "What is the polygon mask of region {}", "polygons"),
    ReadingTask("<OPEN_VOCABULARY_DETECTION>", "Locate {} in the image.", "boxes or polygons"),
    ReadingTask("<REGION_TO_CATEGORY>", "What is the region {}?", "text", "category"),
    ReadingTask("<REGION_TO_DESCRIPTION>", "What does the region {} describe?", "text", "description"),
    ReadingTask("<REGION_TO_OCR>", "What text is in the region {}?", "text", "text"),
    # For checkpoints trained to answer questions about documents.
    ReadingTask(DOCVQA, "<DocVQA>{}", "text", "answer"),
)

TASKS = {task.name: task for task in _ALL}
NUMBERS = {name: number for number, name in enumerate(TASKS)}
