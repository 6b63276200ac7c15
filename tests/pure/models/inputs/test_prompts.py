"""Prompts from a request, its profile and the model's files, up to the tokens of MiniLM's tokenizer."""

from dataclasses import replace

import numpy as np
import pytest

from sie_triton.checkpoints.modules import TextFiles
from sie_triton.contract import Part
from sie_triton.contract.spec import Profile
from sie_triton.errors import InputError
from sie_triton.models.inputs.base import Processor
from sie_triton.models.inputs.prompt import Prompt, overridden, prompt_of
from sie_triton.models.inputs.tokenizer import TextTokenizer, read_tokenizer
from sie_triton.pipeline.stages.preprocess import Preprocess
from sie_triton.records.status import StatusWriter
from tests.support.family_double import NAME
from tests.support.stages import asked, run, spec

TEMPLATES = Profile(
    "templates",
    query_template="Instruct: {instruction} Query: {text}",
    document_template="passage: {text} end",
    query_instruction="find",
)
ALL = Profile("all", instruction="find: ")


@pytest.fixture
def stage(tmp_path, minilm_directory, request):
    """A warm stage; its tokenizer knows prompts that pooling leaves out."""
    changes = {"family": "bge_m3", "tasks": ("encode", "score"), "score_modes": ("dense",), "max_sequence_length": 64}
    of = spec(
        **{**changes, "weights": str(minilm_directory), "profiles": (Profile(), TEMPLATES, ALL)},
        **getattr(request, "param", {}),
    )
    made = Preprocess(of, StatusWriter(tmp_path, "m", "preprocess", 0))
    made.warm_up()
    tokenizer = made._loaded
    tokenizer.prompts, tokenizer.default_prompt = {"query": "query: ", "document": "document: "}, "usual: "
    tokenizer.include_prompt = False
    yield made
    made.close()


@pytest.mark.parametrize("profile", [Profile(), TEMPLATES])
def test_a_prompt_is_chosen_by_its_name(profile):
    prompts = {"STS": "s ", "query": "q "}
    assert prompt_of(prompts, "", Part("text", [], profile, prompt_name="STS")).around("x") == "s x"
    with pytest.raises(InputError, match=r"^parameter prompt_name: the model has no prompt 'web'; its prompts are"):
        prompt_of(prompts, "", Part("text", [], profile, prompt_name="web"))


class Plain(Processor):
    """Processor of a model without prompts."""

    def encode(self, framed, *, is_query):
        return {}


@pytest.mark.parametrize("given", [{"instruction": "find"}, {"prompt_name": "query"}])
def test_a_model_without_prompts_refuses_one(given):
    with pytest.raises(InputError, match=f"^parameter {next(iter(given))}: this model does not read one"):
        Plain().frame(Part("text", [], **given))


def test_prompts_for_documents_that_do_not_apply_are_named():
    prompts = {"query": "q ", "passage": "p "}
    (told,) = overridden(prompts, Profile())
    assert "passage" in told
    assert not [*overridden(prompts | {"document": "d "}, Profile())]
    assert not [*overridden(prompts, Profile(document_template="passage: {text}"))]


def texts_of(stage, answer):
    ids = np.split(answer["input_ids"], np.cumsum(answer["lengths"])[:-1])
    return [stage._loaded._tokenizer.decode(each.tolist()) for each in ids]


@pytest.mark.parametrize(
    ("verb", "parameters", "expected", "kept_out"),
    [
        ("encode", {}, ["document : a", "document : b c"], [3, 3]),
        ("encode", {"is_query": True}, ["query : a", "query : b c"], [3, 3]),
        ("encode", {"instruction": ""}, ["a", "b c"], [0, 0]),
        ("encode", {"profile": "all"}, ["find : a", "find : b c"], [3, 3]),
        (
            "encode",
            {"profile": "templates", "is_query": True},
            ["instruct : find query : a", "instruct : find query : b c"],
            [7, 7],  # "instruct" is two tokens
        ),
        ("score", {}, ["document : a", "document : b c", "query : who"], [3, 3, 3]),
        ("score", {"instruction": "do see: "}, ["document : a", "document : b c", "do see : who"], [3, 3, 4]),
        (
            "score",
            {"profile": "templates", "instruction": "see"},
            ["passage : a end", "passage : b c end", "instruct : see query : who"],
            [3, 3, 7],
        ),
        (
            "score",
            {"profile": "templates", "instruction": "{text}"},  # braces are characters
            ["passage : a end", "passage : b c end", "instruct : { text } query : who"],
            [3, 3, 9],
        ),
    ],
)
def test_each_text_has_the_prompt_of_its_role_and_pooling_gets_its_length(stage, verb, parameters, expected, kept_out):
    query = {"query": ["who"]} if verb == "score" else {}
    (answer,) = run(stage, [asked(verb, parameters, **query, text=["a", "b c"])])
    plain = [text.replace("[CLS] ", "").replace(" [SEP]", "") for text in texts_of(stage, answer)]
    assert plain == expected
    assert answer["prompt_tokens"].tolist() == kept_out
    assert answer["context"].num_items == 2


@pytest.mark.parametrize("parameters", [{}, {"instruction": "see: "}, {"profile": "templates"}])
def test_a_bulk_score_request_matches_several_small_ones(stage, parameters):
    texts = [f"text number {i} " + "word " * (i % 20) for i in range(300)]
    bulk = asked("score", parameters, query=["who?"], text=texts)
    (together,) = run(stage, [bulk])
    assert bulk.is_deferred
    small = run(stage, [asked("score", parameters, query=["who?"], text=texts[i : i + 50]) for i in range(0, 300, 50)])
    lengths = [each["lengths"] for each in small]
    for name in ("lengths", "prompt_tokens"):
        of_texts = np.concatenate([each[name][:-1] for each in small])
        np.testing.assert_array_equal(together[name], [*of_texts, small[0][name][-1]])
    rows = [each["input_ids"][: -length[-1]] for each, length in zip(small, lengths, strict=True)]
    query = small[0]["input_ids"][-lengths[0][-1] :]
    np.testing.assert_array_equal(together["input_ids"], np.concatenate([*rows, query]))
    assert together["context"].num_items == 300
    assert together["cost"].tolist() == [together["lengths"].sum()]


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"prompt_name": "web"}, "parameter prompt_name: the model has no prompt 'web'"),
        ({"prompt_name": "query", "instruction": "see: "}, "parameter prompt_name: cannot be combined"),
        ({"profile": "templates", "instruction": "see: "}, "parameter instruction: has no place in the template"),
    ],
)
def test_a_prompt_that_would_have_no_effect_is_refused(stage, parameters, complaint):
    (answer,) = run(stage, [asked("encode", parameters, text=["a"])])
    with pytest.raises(InputError, match=f"^{complaint}"):
        raise answer


def test_inputs_of_several_verbs_or_of_none_are_refused(stage):
    """An ensemble sends one verb's inputs, but clients can call the step directly."""
    both = asked("encode", text=["a"])
    both._tensors.update(asked("score", query=["who"], text=["a"])._tensors)
    none = asked("other", text=["a"])
    for answer in run(stage, [both, none]):
        with pytest.raises(InputError, match=r"inputs: send those of exactly one task \(encode: encode_text; score:"):
            raise answer


def test_only_the_request_with_a_text_without_tokens_is_refused(tmp_path, minilm_directory):
    """Only the request with such a text fails, whether small or bulk."""
    of = spec(family=NAME, dims={"dense": 2, "tags": 4}, weights=str(minilm_directory))
    made = Preprocess(of, StatusWriter(tmp_path, "m", "preprocess", 0))
    made.warm_up()
    small, good, bulk = run(made, [asked("encode", text=each) for each in (["a", ""], ["b"], [*["x"] * 200, ""])])
    made.close()
    assert good["letters"].tolist() == [ord("b")]
    for answer, i in ((small, 1), (bulk, 200)):
        with pytest.raises(InputError, match=rf"^text\[{i}\]: has no tokens"):
            raise answer


# --- the tokenizer


@pytest.fixture(scope="module")
def files(minilm_directory):
    return replace(TextFiles.read(minilm_directory), include_prompt=False, default_prompt="usual ")


def test_a_prompt_is_counted_without_the_special_token_behind_it(files):
    tokenizer = TextTokenizer(read_tokenizer(files, 64), files)
    assert tokenizer.prompt_tokens("") == 0
    assert tokenizer.prompt_tokens("query: ") == 3  # with [CLS] in front
    pooled = TextTokenizer(read_tokenizer(files, 64), replace(files, include_prompt=True))
    assert pooled.prompt_tokens("query: ") == 0
    features = tokenizer.finish(tokenizer.encode(["query: a", "query: b"]), Prompt("query: "))
    assert features["prompt_tokens"].values.tolist() == [3, 3]
    assert features["prompt_tokens"].lengths is None


@pytest.mark.parametrize(("instruction", "expected"), [(None, "usual who"), ("see ", "see who"), ("", "who")])
def test_a_question_begins_with_the_instruction_or_the_models_own(files, instruction, expected):
    question = TextTokenizer(read_tokenizer(files, 64), files).question("who", instruction)
    assert question.around("text") == (expected, "text")
    assert question.size == len(expected)
