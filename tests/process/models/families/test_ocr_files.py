"""Checkpoints of families that read pages: accepted configurations, and those refused by name."""

import json
from types import SimpleNamespace

import pytest
import torch
import transformers

from sie_triton.contract import Part
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.families import family
from sie_triton.models.families.glm_ocr import TASKS
from sie_triton.models.families.lighton_ocr import LightOnFiles
from sie_triton.models.families.shared.ocr.tasks import OcrTasks
from tests.support import ocr
from tests.support.copies import copy
from tests.support.ocr import Library, asked
from tests.support.pictures import picture, pictures, upright
from tests.support.pictures import saved as saved_picture
from tests.support.readers import Reader
from tests.support.stages import spec

pytestmark = pytest.mark.usefixtures("conversations_written_here")

FILES = pictures()[:2]
USUAL = {"max_new_tokens": 12}
PROCESSOR = "processor_config"


@pytest.fixture(scope="module")
def saved(tmp_path_factory, minilm_directory):
    made = {name: tmp_path_factory.mktemp(name) for name in ocr.SAVE}
    for each, directory in made.items():
        ocr.SAVE[each](directory, minilm_directory)
    return made


@pytest.fixture
def changed(saved, tmp_path):
    """Make a directory of a family in which a file has other keys and values."""
    return lambda name, file="", **keys: copy(saved[name], tmp_path, file and f"{file}.json", **keys)


def same_answers(name, directory, other):
    return Reader(name, directory)(FILES, **USUAL) == Reader(name, other)(FILES, **USUAL)


def test_the_second_generation_of_lighton_calls_itself_mistral3(saved, changed):
    directory = changed("lighton_ocr", "config", model_type="mistral3", image_token_index=5)
    assert family_in(directory)[0] == "lighton_ocr"
    assert same_answers("lighton_ocr", directory, saved["lighton_ocr"])
    with_mistral = changed("lighton_ocr", "config", model_type="mistral3", text_config__model_type="mistral")
    assert family("lighton_ocr").recognise(with_mistral) is None


def test_paddle_may_have_its_language_model_beside_its_tower(saved, changed):
    """The published files have this form."""
    directory = changed("paddleocr_vl")
    path = directory / "config.json"
    said = json.loads(path.read_text())
    tower = {**said["vision_config"], "model_type": "paddleocr_vl", "temporal_patch_size": 2}
    text = said.pop("text_config")
    path.write_text(json.dumps({**text, **said, "vision_config": tower}))
    assert same_answers("paddleocr_vl", directory, saved["paddleocr_vl"])


def test_a_bos_token_in_the_chat_template_is_not_repeated(changed):
    """The beginning is not repeated."""
    directory = changed("paddleocr_vl")
    path = directory / "chat_template.jinja"
    path.write_text("{{ bos_token }}" + path.read_text())
    (features,) = (Reader("paddleocr_vl", directory).batch([(FILES[:1], {})]).features,)
    talk = asked("OCR:")
    talk[0]["content"][0]["image"] = upright(FILES[0])
    said = ocr.paddle_processor(directory).apply_chat_template(talk, add_generation_prompt=True, tokenize=True)
    assert features["input_ids"].values.tolist() == said[0]


def test_tasks_are_chosen_by_name_or_by_their_prompt(saved):
    ours = Reader("paddleocr_vl", saved["paddleocr_vl"])
    library = Library(saved["paddleocr_vl"], transformers.PaddleOCRVLForConditionalGeneration, ocr.paddle_processor)
    for task, words, label in (("seal", "Seal Recognition:", "seal"), ("table", "Table Recognition:", "markdown")):
        found = ours(FILES, task=task, **USUAL)
        assert found == ours(FILES, task=words, **USUAL)
        assert [each["data"] for each in found] == [library.read(file, asked(words), **USUAL) for file in FILES]
        assert {line["label"] for each in found for line in each["entities"]} == {label}
    usual = Reader("paddleocr_vl", saved["paddleocr_vl"], options={"default_task": "seal"})
    assert usual(FILES, **USUAL) == ours(FILES, task="seal", **USUAL)


def test_the_instruction_overrides_the_tasks_prompt():
    def words(tasks, **given):
        return tasks.task_and_prompt(Part("image", [], **given))[1]

    plain, told = OcrTasks(TASKS, "table"), OcrTasks(TASKS, "ocr", "Read!")
    assert words(plain) == words(told, options={"task": "table"}) == "Table Recognition:"
    assert words(told) == "Read!"
    assert words(told, instruction="Why?") == words(plain, instruction="Why?", options={"task": "ocr"}) == "Why?"
    with pytest.raises(InputError, match="parameter task: 'x' is not a task of this model; give one of ocr, "):
        words(plain, options={"task": "x"})


def test_lighton_reads_a_page_without_a_system_prompt(saved):
    ours = Reader("lighton_ocr", saved["lighton_ocr"], options={"system_prompt": ""})
    library = Library(saved["lighton_ocr"], transformers.LightOnOcrForConditionalGeneration, ocr.lighton_processor)
    found = [each["data"] for each in ours(FILES, **USUAL)]
    assert found == [library.read(file, asked(), **USUAL) for file in FILES]


def test_lightons_tower_is_shown_each_page_alone_and_without_a_mask(saved, monkeypatch):
    """A mask of all patches by all patches would take gigabytes."""
    ours, seen = Reader("lighton_ocr", saved["lighton_ocr"]), []
    layer = ours.adapter.encoder._model.model.vision_encoder.tower.transformer.layers[0]
    forward = layer.forward
    monkeypatch.setattr(
        layer,
        "forward",
        lambda states, mask, **more: seen.append((states.shape[1], mask)) or forward(states, mask, **more),
    )
    batch = ours.batch([(FILES, USUAL)])
    ours.adapter.forward(batch)
    assert seen == [(height * width // 16, None) for height, width in batch.features["image_sizes"].values.tolist()]


def test_patches_that_do_not_fill_a_token_are_dropped(saved, changed):
    """Sides are multiples of a patch, and two patches become one token."""
    directory = changed("lighton_ocr", "processor_config", image_processor__patch_size=4)
    assert LightOnFiles.read(directory).counts(12, 20) == (15, 2)
    ours = Reader("lighton_ocr", directory)
    library = Library(directory, transformers.LightOnOcrForConditionalGeneration, ocr.lighton_processor)
    system = ocr.asked(system="You are an OCR engine. Return the markdown representation of the document.")
    assert [each["data"] for each in ours(FILES, **USUAL)] == [library.read(file, system, **USUAL) for file in FILES]
    small = saved_picture(picture(4, 4))
    with pytest.raises(InputError, match=r"image\[0\]: has 4 × 4 pixels, too few for the model to read; send a l"):
        ours([small])


@pytest.mark.parametrize(
    ("name", "file", "key", "value", "said"),
    [
        ("lighton_ocr", PROCESSOR, "patch_size", 7, r"processor_config\.json: patch_size is 7, but"),
        ("lighton_ocr", PROCESSOR, "spatial_merge_size", 3, "spatial_merge_size is 3, but .* reads 2"),
        ("lighton_ocr", PROCESSOR, "image_processor__patch_size", 6, r"vision_config: patch_size 4:"),
        ("lighton_ocr", PROCESSOR, "image_processor__do_center_crop", True, "do_center_crop true"),
        ("lighton_ocr", PROCESSOR, "image_processor__size", {"height": 5}, "longest_edge or height and width"),
        ("glm_ocr", "preprocessor_config", "temporal_patch_size", 1, "temporal_patch_size is 2, but .* makes 1"),
        ("glm_ocr", "preprocessor_config", "do_resize", False, "do_resize false cannot be served"),
        ("glm_ocr", "config", "image_token_id", None, r"image_token_id: must be a whole .*given None"),
        ("paddleocr_vl", PROCESSOR, "image_processor__temporal_patch_size", 2, "temporal_patch_size"),
        ("paddleocr_vl", "config", "image_token_id", 7, r"chat_template\.jinja: must write the token 7"),
        ("glm_ocr", "tokenizer_config", "chat_template", "{% if %}", r"tokenizer_config\.json: cannot be read"),
    ],
)
def test_unsupported_checkpoints_are_refused(changed, name, file, key, value, said):
    directory = changed(name, file, **{key: value})
    if file == "tokenizer_config":
        (directory / "chat_template.jinja").unlink()
    with pytest.raises(LoadError, match=said):
        Reader(name, directory)


@pytest.mark.parametrize("pad", [10**9, -1, 1.5])
def test_an_invalid_padding_token_is_refused(changed, pad):
    """A padding token outside the vocabulary would end the process on a GPU."""
    directory = changed("glm_ocr", "generation_config", pad_token_id=pad)
    with pytest.raises(LoadError, match=r"generation_config\.json: pad_token_id, or else eos_token_id: must be one of"):
        Reader("glm_ocr", directory)
    without = changed("glm_ocr", "generation_config", pad_token_id=None, eos_token_id=[])
    assert Reader("glm_ocr", without).adapter.encoder._pad == 0


def test_an_unknown_default_task_is_refused(saved):
    for name in ("glm_ocr", "paddleocr_vl"):
        with pytest.raises(LoadError, match="default_task: 'x' is not a task of this model; give one of ocr, table"):
            Reader(name, saved[name], options={"default_task": "x"})


def test_float16_is_never_computed_in():
    def dtype(precision, dtype):
        runtime = SimpleNamespace(precision=precision, attention_backend="auto")
        engine = TorchEngine(spec(runtime=runtime), "cpu", Measurements())
        engine.dtype = dtype
        engine.avoid_float16()
        return engine.dtype

    assert dtype("", torch.float16) is torch.bfloat16
    assert dtype("float32", torch.float32) is torch.float32
    with pytest.raises(LoadError, match=r"float16 cannot be served: .*; write compute_precision: bfloat16 into"):
        dtype("float16", torch.float16)
