"""Scores of language models with a chat template for pairs equal those of sentence-transformers' CrossEncoder."""

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules.logit_score import LogitScore

from benchmarks.texts import texts
from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.families.causal_cross_encoder import ConversationTokenizer
from tests.support.copies import update
from tests.support.models import save_causal
from tests.support.scorers import Scorer

QUERY = "how do vines climb, and why?"
LONG = " ".join(["many words"] * 200)
TEXTS = ["", "x", "  naïve 😀 日本語 ", "{{ query }} <|im_end|>", *texts(6, seed=3), LONG]
MAX_LENGTH = 96

# As of zerank-2: the query is the system's message, the text the user's; no other system message is written.
FLAT = (
    "{% for m in messages %}{% if m.role != 'system' %}"
    "<|im_start|>{{ {'query': 'system', 'document': 'user'}[m.role] }}\n{{ m.content }}<|im_end|>\n"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRUCTURED = (
    "{% for m in messages %}{{ m.role }}: {{ m.content[0].text | trim }}\n{% endfor %}"
    "{% if not add_generation_prompt %}{{ 'yes or no?' }}{% endif %}"
)
IDENTITY, SIGMOID = torch.nn.Identity(), torch.nn.Sigmoid()
GENERATING = {"chat_template": {"add_generation_prompt": True}}

# Architecture, template, what calls of it are given, whether a second token counts, activation.
MODELS = [
    ("qwen3", FLAT, GENERATING, False, IDENTITY),
    ("qwen2", FLAT, GENERATING, True, SIGMOID),
    ("gemma3", STRUCTURED, {}, True, IDENTITY),
]


def save(root, tokenizer, architecture="qwen3", template=FLAT, calls=GENERATING, has_no=True, activation=IDENTITY):
    directory = save_causal(root / "language", tokenizer, architecture)
    (directory / "chat_template.jinja").write_text(template)
    transformer = Transformer(
        str(directory),
        transformer_task="text-generation",
        processor_kwargs={"model_max_length": MAX_LENGTH},
        processing_kwargs=calls,
    )
    yes, no = transformer.tokenizer.convert_tokens_to_ids(["yes", "no"])
    score = LogitScore(yes, no if has_no else None)
    model = CrossEncoder(
        modules=[transformer, score], activation_fn=activation, prompts={"find": "Find it."}, default_prompt_name="find"
    )
    model.save(str(root / "model"), create_model_card=False)
    return root / "model"


def scorer_of(directory):
    return Scorer("causal_cross_encoder", directory, MAX_LENGTH)


@pytest.mark.parametrize(("architecture", "template", "calls", "has_no", "activation"), MODELS)
def test_scores_are_those_of_the_library(
    tmp_path, minilm_directory, architecture, template, calls, has_no, activation, monkeypatch
):
    directory = save(tmp_path, minilm_directory, architecture, template, calls, has_no, activation)
    assert family_in(directory)[0] == "causal_cross_encoder"
    scorer, library = scorer_of(directory), CrossEncoder(str(directory), device="cpu")
    assert scorer.adapter.encoder.path == "packed"
    for query, instruction in ((QUERY, None), (QUERY, ""), (LONG, "Find the botanist's answer.")):
        prompt = {} if instruction is None else {"prompt": instruction}
        expected = library.predict([(query, text) for text in TEXTS], batch_size=4, **prompt)
        together = scorer(query, TEXTS, instruction)
        alone = np.concatenate([scorer(query, [text], instruction) for text in TEXTS])
        assert query == LONG or expected.std() > 0.01  # a long query leaves no room for texts
        np.testing.assert_allclose(together, expected, rtol=1e-4, atol=2e-5)
        np.testing.assert_allclose(together, alone, rtol=1e-4, atol=2e-5)
    monkeypatch.setattr(ConversationTokenizer, "_ended", lambda self, ids, prompt: ids)
    broken = scorer(QUERY, [LONG])
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(broken, library.predict([(QUERY, LONG)]), rtol=1e-3)


def test_what_is_cut_is_said(tmp_path, minilm_directory):
    scorer = scorer_of(save(tmp_path, minilm_directory))
    features = scorer.features(QUERY, ["x", LONG])
    assert features["truncated"].values.tolist() == [False, True]
    assert features["input_ids"].lengths[1] == MAX_LENGTH


def test_an_instruction_that_leaves_no_room_is_refused(tmp_path, minilm_directory):
    scorer = scorer_of(save(tmp_path, minilm_directory, template=STRUCTURED, calls={}))
    with pytest.raises(InputError, match="parameter instruction: leaves no room"):
        scorer.features(QUERY, TEXTS, LONG)


@pytest.mark.parametrize(
    ("file", "keys", "reason"),
    [
        ("sentence_bert_config.json", {"transformer_task": "feature-extraction"}, "this family needs text-generation"),
        (
            "sentence_bert_config.json",
            {"modality_config": {"text": {"method_output_name": "logits"}}},
            "without message",
        ),
        ("sentence_bert_config.json", {"processing_kwargs": {"chat_template": {"tools": []}}}, "tools"),
        ("1_LogitScore/config.json", {"true_token_id": None}, "true_token_id is missing"),
        ("1_LogitScore/config.json", {"false_token_id": 10**9}, "false_token_id"),
        ("1_LogitScore/config.json", {"module_input_name": "scores"}, "module_input_name"),
        ("config_sentence_transformers.json", {"model_type": "SentenceTransformer"}, "supported is CrossEncoder"),
    ],
)
def test_other_layouts_are_refused_by_name(tmp_path, minilm_directory, file, keys, reason):
    update(save(tmp_path, minilm_directory) / file, **keys)
    with pytest.raises(LoadError, match=reason):
        family_in(tmp_path / "model")


def test_a_template_without_the_roles_is_refused(tmp_path, minilm_directory):
    directory = save(tmp_path, minilm_directory)
    (directory / "chat_template.jinja").write_text("{{ messages | selectattr('role', 'eq', 'query') | list }}")
    with pytest.raises(LoadError, match="does not write messages of the role document"):
        scorer_of(directory)
