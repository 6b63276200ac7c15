"""Florence-2's tasks by their published names: the prompt used in training, and the form of the answer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadingTask:
    """A task: its name and its kind of answer, as in transformers' Florence2Processor."""

    name: str
    question: str  # in which {} is replaced by the request's input
    kind: str
    label: str = ""  # of an answer that is a text

    @property
    def reads_input(self) -> bool:
        return "{}" in self.question

    def prompt(self, added: str) -> str:
        return self.question.replace("{}", added)


OCR_WITH_REGION, DOCVQA, GROUNDING = "<OCR_WITH_REGION>", "<DocVQA>", "<CAPTION_TO_PHRASE_GROUNDING>"

_ALL = (
    ReadingTask("<OCR>", "What is the text in the image?", "pure_text", "text"),
    ReadingTask(OCR_WITH_REGION, "What is the text in the image, with regions?", "ocr", "text"),
    ReadingTask("<CAPTION>", "What does the image describe?", "pure_text", "caption"),
    ReadingTask("<DETAILED_CAPTION>", "Describe in detail what is shown in the image.", "pure_text", "caption"),
    ReadingTask(
        "<MORE_DETAILED_CAPTION>", "Describe with a paragraph what is shown in the image.", "pure_text", "caption"
    ),
    ReadingTask("<OD>", "Locate the objects with category name in the image.", "description_with_bboxes"),
    ReadingTask(
        "<DENSE_REGION_CAPTION>", "Locate the objects in the image, with their descriptions.", "description_with_bboxes"
    ),
    ReadingTask("<REGION_PROPOSAL>", "Locate the region proposals in the image.", "bboxes"),
    ReadingTask(GROUNDING, "Locate the phrases in the caption: {}", "phrase_grounding"),
    ReadingTask("<REFERRING_EXPRESSION_SEGMENTATION>", "Locate {} in the image with mask", "polygons"),
    ReadingTask("<REGION_TO_SEGMENTATION>", "What is the polygon mask of region {}", "polygons"),
    ReadingTask("<OPEN_VOCABULARY_DETECTION>", "Locate {} in the image.", "description_with_bboxes_or_polygons"),
    ReadingTask("<REGION_TO_CATEGORY>", "What is the region {}?", "pure_text", "category"),
    ReadingTask("<REGION_TO_DESCRIPTION>", "What does the region {} describe?", "pure_text", "description"),
    ReadingTask("<REGION_TO_OCR>", "What text is in the region {}?", "pure_text", "text"),
    # For checkpoints trained to answer questions about documents.
    ReadingTask(DOCVQA, "<DocVQA>{}", "pure_text", "answer"),
)

TASKS = {task.name: task for task in _ALL}
NUMBERS = {name: number for number, name in enumerate(TASKS)}
