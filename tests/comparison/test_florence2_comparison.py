"""Comparison of Florence-2 with transformers: the same answers from the same weights and files."""

import random

import pytest
import transformers

from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.families.florence2.answers import Answers
from sie_triton.models.families.florence2.tasks import TASKS
from tests.support.pictures import of_all_kinds, pictures, upright
from tests.support.readers import POST_PROCESSING, Reader, data, save_florence2, save_original

FILES = pictures()
OCR, OD = {"task": "<OCR_WITH_REGION>"}, {"task": "<OD>"}
ANSWERS = Answers(frozenset(POST_PROCESSING["phrase_grounding"]["banned_grounding_tokens"]), 0.01)
NEEDS_INPUT = {name: {"instruction": "a cat"} if task.reads_input else {} for name, task in TASKS.items()}


@pytest.fixture(scope="module")
def directory(tmp_path_factory, minilm_directory):
    directory = tmp_path_factory.mktemp("florence2")
    save_florence2(directory, minilm_directory)
    return directory


@pytest.fixture(scope="module")
def ours(directory):
    assert family_in(directory)[0] == "florence2"
    return Reader("florence2", directory)


class Library:
    def __init__(self, directory):
        self.model = transformers.Florence2ForConditionalGeneration.from_pretrained(directory).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        images = transformers.CLIPImageProcessorPil.from_pretrained(directory)
        self.processor = transformers.Florence2Processor(images, self.tokenizer, post_processor_config=POST_PROCESSING)

    def inputs(self, file, prompt):
        image = upright(file)
        return image.size, self.processor(text=prompt, images=image, return_tensors="pt")

    def tokens(self, file, prompt, max_new_tokens=24, num_beams=1):
        size, inputs = self.inputs(file, prompt)
        inputs.pop("token_type_ids", None)
        options = {"max_new_tokens": max_new_tokens, "num_beams": num_beams, "do_sample": False}
        return size, self.model.generate(**inputs, **options)[0].tolist()

    def read(self, file, task, added="", **options):
        size, tokens = self.tokens(file, task + added, **options)
        (text,) = self.tokenizer.batch_decode([tokens])
        return self.processor.post_process_generation(text, task=task, image_size=size)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_tokens_are_those_of_the_library(ours, library, num_beams, monkeypatch):
    found = []
    monkeypatch.setattr(ours.adapter, "text", lambda tokens, *_: found.append(tokens) or '["<OCR>", ""]')
    options = {"max_new_tokens": 30, "num_beams": num_beams}
    for file in FILES:
        ours([file], **OCR, **options)
    assert found == [library.tokens(file, "<OCR_WITH_REGION>", **options)[1] for file in FILES]
    assert len({str(each) for each in found}) == len(FILES)
    assert len(set(found[0])) > 8, "it says more than one thing"


@pytest.mark.parametrize("task", TASKS)
def test_each_task_is_answered_as_the_library_does(ours, library, task):
    added = NEEDS_INPUT[task].get("instruction", "")
    found = ours(FILES[:2], task=task, max_new_tokens=24, **NEEDS_INPUT[task])
    expected = [library.read(file, task, added) for file in FILES[:2]]
    assert data(found) == expected
    if TASKS[task].kind in ("description_with_bboxes", "phrase_grounding", "bboxes"):
        assert any(each[task]["bboxes"] for each in expected)


def test_tasks_labels_and_lengths_in_one_batch_as_alone(ours, library):
    requests = [
        (FILES[:2], {**OD, "max_new_tokens": 12}),
        (FILES[1:3], {"labels": ["a cat", "two dogs"], "task": "<CAPTION_TO_PHRASE_GROUNDING>", "max_new_tokens": 12}),
        (FILES[:1], {"instruction": "What is the total?", "max_new_tokens": 9}),
        (FILES[:1], {**OD, "max_new_tokens": 12, "num_beams": 2}),
    ]
    together = ours.answers(requests)
    assert together == [ours(files, **given) for files, given in requests]
    grounded = [
        library.read(file, "<CAPTION_TO_PHRASE_GROUNDING>", "a cat, two dogs", max_new_tokens=12) for file in FILES[1:3]
    ]
    assert data(together[1]) == grounded
    assert data(together[2]) == [library.read(FILES[0], "<DocVQA>", "What is the total?", max_new_tokens=9)]


# What can be seen through lies on white here, and the library's depth of 16 bits is another: see tests of images.
SEEN_ALIKE = ("cmyk", "turned", "animated gif")


@pytest.mark.parametrize("kind", SEEN_ALIKE)
def test_an_image_of_each_kind(ours, library, kind):
    """Boxes refer to the image as displayed, rotated by its EXIF orientation."""
    file = of_all_kinds()[kind]
    assert data(ours([file], **OCR, max_new_tokens=16)) == [library.read(file, "<OCR_WITH_REGION>", max_new_tokens=16)]


def test_an_answer_is_as_long_as_asked_for_at_most(ours, library):
    short, long = (ours(FILES[:1], **OCR, max_new_tokens=most)[0] for most in (5, 8192))
    assert short["data"] == library.read(FILES[0], "<OCR_WITH_REGION>", max_new_tokens=5)
    assert long["data"] == library.read(FILES[0], "<OCR_WITH_REGION>", max_new_tokens=64)


def test_padding_behind_an_answer_is_no_part_of_it(ours):
    """An answer is padded if another of the same pass is longer."""
    ids, features = ours.processor.ids("</s><s>total</s>"), ours.batch([(FILES[:1], {"task": "<OCR>"})]).features
    assert ours.adapter.text([*ids, *ours.processor.ids("<pad><pad>")], 0, features) == '["<OCR>", "total"]'


PLACES = "<loc_1><loc_20><loc_300><loc_999>"


@pytest.mark.parametrize("task", TASKS)
def test_an_answer_of_any_text_is_parsed_at_once(task):
    """A model may write what it was not trained for: numbers that no tensor holds, or words without end."""
    places = "<loc_1>" * 7 + f"<loc_{'9' * 100}>"
    for text in (f"cat{places}<poly>{places}</poly>", "cat" * 100_000, f"{'cat' * 100_000}\n{places}", " " * 300_000):
        ANSWERS.read(TASKS[task], text, (613, 401))


@pytest.mark.parametrize("task", {task.kind: task.name for task in TASKS.values()}.values())
def test_an_answer_is_parsed_as_the_library_does(library, task):
    chosen = random.Random(0)
    parts = (
        "cat",
        " ",
        "\n",
        "x<y",
        "car" * 340,
        " " * 1010,
        "<loc_1><loc_2><loc_3>",
        "<loc_9>",
        "<sep>",
        "<poly>",
        "</poly>",
        "</s>",
    )
    for _ in range(60):  # the library takes ten milliseconds for each
        text = "".join(chosen.choices(parts, k=chosen.randrange(12)))
        answer = library.processor.post_process_generation(text, task=task, image_size=(613, 401))[task]
        assert ANSWERS.read(TASKS[task], text, (613, 401)) == answer


def test_answers_become_findings(ours, monkeypatch):
    def told(text, task, **given):
        encoded = ours.processor.ids(text)
        monkeypatch.setattr(ours.adapter, "answers", lambda pixels, *_: [encoded] * len(pixels))
        (found,) = ours(FILES[:1], task=task, **given)
        return found

    box = [0, 1, 29, 60]  # of 97 × 61
    words = told(f"total{PLACES}{PLACES}", "<OCR_WITH_REGION>")
    assert words["entities"] == []  # its corners are two: no area
    quad = "<loc_0><loc_0><loc_500><loc_0><loc_500><loc_500><loc_0><loc_500>"
    words = told(f"total{quad}", "<OCR_WITH_REGION>")
    assert words["entities"] == [{"text": "total", "label": "text", "score": 1.0, "bbox": [0, 0, 48, 30]}]
    seen = told(f"cat{PLACES}", "<OD>")
    assert seen["objects"] == [{"label": "cat", "score": 1.0, "bbox": box}]
    assert told(PLACES, "<REGION_PROPOSAL>")["objects"] == [{"label": "object", "score": 1.0, "bbox": box}]
    assert told(f"cat{PLACES}", "<OPEN_VOCABULARY_DETECTION>", instruction="a cat")["objects"] == seen["objects"]
    caption = told("car", "<CAPTION>")
    assert caption["entities"] == [{"text": "car", "label": "caption", "score": 1.0, "bbox": None}]
    answer = told("five", "<OCR>", instruction="How many?")
    assert (answer["data"], answer["entities"][0]["label"]) == ({"<DocVQA>": "five"}, "answer")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"task": "<X>"}, "parameter task: '<X>' is not a task of this model; give one of <OCR>, <OCR_WITH_REGION>"),
        ({"task": "<REGION_TO_OCR>"}, "parameter task: <REGION_TO_OCR> needs input; send it as parameter instr"),
        ({"task": "<CAPTION_TO_PHRASE_GROUNDING>"}, "needs input; send it as labels, or parameter instruction"),
        ({"labels": ["cat"]}, "labels: only the task <CAPTION_TO_PHRASE_GROUNDING> takes labels"),
        ({"instruction": "<OCR> of a cat"}, "parameter instruction: <OCR> takes no input"),
        ({"instruction": "why " * 70}, "parameter instruction: the prompt has 7. tokens; the model reads at most 59"),
    ],
)
def test_wrong_requests_get_the_allowed_values(ours, given, complaint):
    with pytest.raises(InputError, match=complaint):
        ours(FILES[:1], **given)


def test_an_instruction_may_name_its_task(ours):
    region = "<loc_1><loc_2><loc_30><loc_40>"
    named = ours(FILES[:1], task="<OD>", instruction=f"<REGION_TO_OCR>{region}", max_new_tokens=8)
    assert named == ours(FILES[:1], task="<REGION_TO_OCR>", instruction=region, max_new_tokens=8)


def test_a_model_file_may_say_the_task(directory, ours):
    assert ours(FILES[:1]) == ours(FILES[:1], **OCR)
    other = Reader("florence2", directory, options={"default_task": "<OD>"})
    assert other(FILES[:1], max_new_tokens=8) == ours(FILES[:1], **OD, max_new_tokens=8)
    with pytest.raises(LoadError, match="default_task: 'ocr' is not a task of this model; give one of <OCR>"):
        Reader("florence2", directory, options={"default_task": "ocr"})


def test_a_checkpoint_as_microsoft_saved_it(tmp_path, directory, minilm_directory, library):
    """Other names and another configuration; its tokenizer knows no places yet."""
    save_original(tmp_path, directory, minilm_directory)
    assert family_in(tmp_path)[0] == "florence2"
    ours = Reader("florence2", tmp_path)
    for task, options in (("<OD>", {"max_new_tokens": 30}), ("<DENSE_REGION_CAPTION>", {"num_beams": 2})):
        found = data(ours(FILES, task=task, **{"max_new_tokens": 24, **options}))
        assert found == [library.read(file, task, **options) for file in FILES]
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("spatial_avg_pool", "last_frame"))
    with pytest.raises(LoadError, match="image_feature_source: must be spatial_avg_pool and temporal_avg_pool"):
        family_in(tmp_path)
