"""Comparison of Donut with transformers: the same answers from the same weights and files."""

import json

import numpy as np
import pytest
import transformers

from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.families.donut import findings
from sie_triton.models.families.donut.adapter import parsed
from sie_triton.models.families.shared.readers.processor import GENERATED
from tests.support.copies import copy
from tests.support.deadlines import tokens_in
from tests.support.pictures import picture, pictures, saved, upright
from tests.support.readers import DONUT_TASKS, Reader, data, save_donut

FILES = pictures()
CORD, DOCVQA = {"task": "<s_cord-v2>"}, {"task": "<s_docvqa>"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory, minilm_directory):
    directory = tmp_path_factory.mktemp("donut")
    save_donut(directory, minilm_directory)
    return directory


@pytest.fixture(scope="module")
def ours(directory):
    assert family_in(directory)[0] == "donut"
    return Reader("donut", directory)


class Library:
    def __init__(self, directory):
        self.model = transformers.VisionEncoderDecoderModel.from_pretrained(directory).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self.images = transformers.DonutImageProcessorPil.from_pretrained(directory)
        self.processor = transformers.DonutProcessor(self.images, self.tokenizer)

    def tokens(self, file, prompt, max_new_tokens=40, num_beams=1):
        image = upright(file)
        return self.model.generate(
            self.images(image, return_tensors="pt").pixel_values,
            decoder_input_ids=self.tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids,
            max_new_tokens=max_new_tokens,
            num_beams=num_beams,
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=self.tokenizer.eos_token_id,
            bad_words_ids=[[self.tokenizer.unk_token_id]],
        )

    def written(self, *request, **options):
        (text,) = self.tokenizer.batch_decode(self.tokens(*request, **options))
        return text.replace(self.tokenizer.eos_token, "").replace(self.tokenizer.pad_token, "").strip()

    def read(self, file, prompt, **options):
        task = prompt[: prompt.index(">") + 1]
        return self.processor.token2json(self.written(file, prompt, **options).removeprefix(task).strip())


@pytest.mark.parametrize("num_beams", [1, 3])
def test_tokens_are_those_of_the_library(ours, library, num_beams, monkeypatch):
    found = []
    monkeypatch.setattr(ours.adapter, "text", lambda tokens, *_: found.append(tokens) or '["", {}]')
    options = {"max_new_tokens": 30, "num_beams": num_beams}
    for file in FILES:
        ours([file], **CORD, **options)
    assert found == [library.tokens(file, "<s_cord-v2>", **options)[0].tolist() for file in FILES]
    assert len(set(found[1])) > 8, "it says more than one thing"


def test_answers_equal_the_librarys(ours, library):
    options = {"max_new_tokens": 24}
    found = data(ours(FILES, **CORD, **options))
    assert found == [library.read(file, "<s_cord-v2>", **options) for file in FILES]
    assert len({str(each) for each in found}) == len(FILES)


def test_two_tasks_and_lengths_in_one_batch_as_alone(ours, library):
    requests = [
        (FILES[:2], {**CORD, "max_new_tokens": 12}),
        (FILES[1:3], {**DOCVQA, "instruction": "What is the total?", "max_new_tokens": 12}),
        (FILES[:1], {**CORD, "max_new_tokens": 5, "num_beams": 2}),
    ]
    together = ours.answers(requests)
    assert together == [ours(files, **given) for files, given in requests]
    question = "<s_docvqa><s_question>What is the total?</s_question><s_answer>"
    assert data(together[1]) == [library.read(file, question, max_new_tokens=12) for file in FILES[1:3]]
    assert data(together[0])[1] != data(together[1])[0]


def test_an_answer_is_as_long_as_asked_for_at_most(ours, library):
    (short,), (long,) = (ours(FILES[:1], **CORD, max_new_tokens=most) for most in (3, 8192))
    assert short["data"] == library.read(FILES[0], "<s_cord-v2>", max_new_tokens=3)
    assert long["data"] == library.read(FILES[0], "<s_cord-v2>", max_new_tokens=60)
    assert long["data"] != short["data"]
    whole, asking = (
        ours.batch([(FILES[:1], {**given, "max_new_tokens": 8192})])
        for given in (CORD, {**DOCVQA, "instruction": "Why?"})
    )
    for batch in (whole, asking):
        prompt, room = (batch.features[name].of_items.tolist() for name in ("input_ids", "new_tokens"))
        assert prompt[0] + room[0] == 61, "the last token is never read"
        assert batch.features["read"].values == [8 * 6 + 61]


def test_generation_ends_between_two_tokens(ours, monkeypatch):
    assert tokens_in(2, ours, (FILES[1:2], CORD), monkeypatch) == [3]


def told(text, task, added=("<yes/>",)):
    row = {GENERATED.name: np.frombuffer(json.dumps([task, parsed(text, added)]).encode(), np.uint8)}
    return findings([row], {}).to_response("", [])


def test_answers_become_findings():
    answer = told("<s_question>Is it?</s_question><s_answer><yes/></s_answer>", "<s_docvqa>")
    assert answer["entities"] == [{"text": "yes", "label": "answer", "score": 1.0, "bbox": None}]
    assert answer["data"] == {"question": "Is it?", "answer": "yes"}
    assert told("<s_question>Is it?", "<s_docvqa>")["entities"] == []
    kind = told("<s_class>invoice</s_class>", "<s_rvlcdip>")
    assert kind["classifications"] == [{"label": "invoice", "score": 1.0}]
    assert [(each["label"], each["text"]) for each in kind["entities"]] == [("document_class", "invoice")]
    receipt = told(
        "<s_menu><s_nm>Tea</s_nm><s_price>1</s_price><sep/><s_nm>Pie</s_nm></s_menu><s_total>3</s_total>", "<s_cord-v2>"
    )
    assert [(each["label"], each["text"]) for each in receipt["entities"]] == [
        ("menu[0].nm", "Tea"),
        ("menu[0].price", "1"),
        ("menu[1].nm", "Pie"),
        ("total", "3"),
    ]
    two = told("<s_answer>a</s_answer><sep/><s_answer>b</s_answer>", "<s_docvqa>")
    assert [each["text"] for each in two["entities"]] == ["a", "b"]


def test_wrong_requests_get_the_allowed_values(ours):
    tasks = ", ".join(sorted(DONUT_TASKS))
    with pytest.raises(InputError, match=f"parameter task: '<s_x>' is not a task of this model; give one of {tasks}"):
        ours(FILES[:1], task="<s_x>")
    with pytest.raises(InputError, match="parameter task: is missing; give one of"):
        ours(FILES[:1])
    with pytest.raises(InputError, match="parameter instruction: leaves the model no room"):
        ours(FILES[:1], **DOCVQA, instruction="why " * 60)
    with pytest.raises(InputError, match=r"image\[0\]: has 400 × 10 pixels"):
        ours([saved(picture(400, 10))], **CORD)
    for name, value in {"max_new_tokens": 0, "num_beams": 9}.items():
        with pytest.raises(InputError, match=f"parameter {name}: {value} is not allowed; give an integer from 1 to"):
            next(each for each in ours.model.parameters if each.name == name).check(value)


def test_records_within_too_many_records_are_one_text():
    keys = range(2000)
    text = "".join(f"<s_{key}>" for key in keys) + "x" + "".join(f"</s_{key}>" for key in reversed(keys))
    assert parsed(text, ()) == {"text_sequence": text}


def test_a_checkpoint_of_one_task_needs_none(tmp_path, ours, directory):
    for path in directory.iterdir():
        text = path.read_bytes()
        for gone in ("docvqa", "rvlcdip"):
            if path.suffix == ".json":
                text = text.replace(f"<s_{gone}>".encode(), f"<x_{gone}>".encode())
        (tmp_path / path.name).write_bytes(text)
    assert Reader("donut", tmp_path)(FILES[:1]) == ours(FILES[:1], **CORD)
    asked = Reader("donut", tmp_path, options={"default_task": "<s_synthdog>"})(FILES[:1])
    assert asked == ours(FILES[:1], task="<s_synthdog>")


def test_unsupported_checkpoints_are_refused(tmp_path, directory):
    copy(directory, tmp_path)
    with pytest.raises(LoadError, match="default_task: '<s_x>' is not a task of this model; give one of <s_cord-v2>"):
        Reader("donut", tmp_path, options={"default_task": "<s_x>"})
    transformers.DonutImageProcessorPil(do_pad=False).save_pretrained(tmp_path)
    with pytest.raises(LoadError, match="do_pad false cannot be served"):
        family_in(tmp_path)
