"""Scores with LoRA adapters, their saved heads included, equal those of peft over the same weights."""

from dataclasses import asdict

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import AutoModelForCausalLM

from benchmarks.texts import texts
from sie_triton.models.families.llm_reranker import RerankerOptions
from tests.comparison.test_causal_cross_encoder_comparison import save
from tests.support.loras import save_lora
from tests.support.models import save_causal, save_cross_encoder
from tests.support.scorers import Scorer

QUERY = "how do vines climb, and why?"
TEXTS = ["", "x", "naïve 😀 日本語", *texts(12, seed=3), " ".join(texts(20, seed=4))]
MIXED = [("", "one", "other")[i % 3] for i in range(len(TEXTS))]
LOGITS = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}

SAVED = {"task_type": "SEQ_CLS"}  # makes peft save the classifier, too
CASES = {
    # `dense` matches the pooler too, which belongs to our head.
    "bert": ({}, {"target_modules": ["query", "dense"], **SAVED}, {"target_modules": ["value", "classifier"]}),
    # The head has two layers.
    "roberta": ({}, {"target_modules": ["query"], **SAVED}, {"target_modules": ["key", "out_proj"], "use_dora": True}),
    "modernbert": (
        {"classifier_pooling": "mean"},
        {"target_modules": "all-linear", **SAVED},
        {"target_modules": ["Wo"]},
    ),
    "distilbert": ({}, {"target_modules": ["q_lin", "lin1"], **SAVED}, {"target_modules": ["v_lin"]}),
    "qwen3": ({}, {"target_modules": ["q_proj", "down_proj"], **SAVED}, {"target_modules": ["score", "v_proj"]}),
}


class Adapted(Scorer):
    """A family whose encoder has adapters."""

    def scores(self, loras):
        """Return the scores of TEXTS, computed in one batch."""
        with self.adapter.encoder.adapted([loras] * len(TEXTS) if isinstance(loras, str) else loras):
            return self(QUERY, TEXTS)

    def check(self, expected):
        """Assert peft's scores; `expected` maps adapter → scores."""
        base = self.scores("")
        close = {"atol": 2e-5 * max(map(np.std, expected.values())), "rtol": 2e-5}
        mixed = self.scores(MIXED)
        for name, scores in expected.items():
            np.testing.assert_allclose(self.scores(name), scores, **close)
            assert np.corrcoef(base, scores)[0, 1] < 0.99  # negative control: the base differs
            of_name = np.array(MIXED) == name
            np.testing.assert_allclose(mixed[of_name], scores[of_name], **close)
        np.testing.assert_allclose(mixed[::3], base[::3], **close)


@pytest.mark.parametrize("architecture", CASES)
def test_scores_are_those_of_peft(tmp_path, minilm_directory, architecture):
    settings, *configs = CASES[architecture]
    directory = save_cross_encoder(tmp_path, minilm_directory, architecture, **settings, **LOGITS)
    ours, library = Adapted("cross_encoder", directory), CrossEncoder(str(directory), device="cpu")
    base, expected = library[0].model, {}
    for name, config in zip(("one", "other"), configs, strict=True):
        library[0].model = save_lora(tmp_path / name, base, spread=0.2, **config)
        expected[name] = library.predict([(QUERY, text) for text in TEXTS])
        ours.adapter.encoder.add_lora(name, tmp_path / name)
    ours.check(expected)


def test_judgements_are_those_of_peft(tmp_path, minilm_directory):
    """Our head keeps two rows of the vocabulary layer, and the same two of its adapter."""
    ours = Adapted("llm_reranker", save_causal(tmp_path, minilm_directory), **asdict(RerankerOptions()))
    base, expected, tokens = (
        AutoModelForCausalLM.from_pretrained(tmp_path),
        {},
        ours.features(QUERY, TEXTS)["input_ids"],
    )
    words = [ours.processor._tokenizer.token_to_id(word) for word in ("0", "1")]
    configs = [
        {"target_modules": ["q_proj", "v_proj", "lm_head"], "task_type": "CAUSAL_LM", "use_dora": True},
        {"target_modules": ["down_proj"], "modules_to_save": ["lm_head"]},
    ]
    for name, config in zip(("one", "other"), configs, strict=True):
        model = save_lora(tmp_path / name, base, **config)
        items = np.split(tokens.values, np.cumsum(tokens.lengths)[:-1])
        with torch.inference_mode():
            logits = [model(input_ids=torch.tensor(item[None].astype(np.int64))).logits[0, -1] for item in items]
        expected[name] = np.array([float(each[words[1]] - each[words[0]]) for each in logits])
        ours.adapter.encoder.add_lora(name, tmp_path / name)
    ours.check(expected)


def test_judgements_of_conversations_are_those_of_peft(tmp_path, minilm_directory):
    """Our head keeps one row of the vocabulary layer."""
    directory = save(tmp_path, minilm_directory, has_no=False)
    ours, library = Adapted("causal_cross_encoder", directory), CrossEncoder(str(directory), device="cpu")
    base, expected = library[0].model, {}
    configs = [{"target_modules": ["q_proj", "lm_head"], "task_type": "CAUSAL_LM"}, {"target_modules": ["down_proj"]}]
    for name, config in zip(("one", "other"), configs, strict=True):
        library[0].model = save_lora(tmp_path / name, base, spread=0.2, **config)
        expected[name] = library.predict([(QUERY, text) for text in TEXTS], batch_size=1)
        ours.adapter.encoder.add_lora(name, tmp_path / name)
    ours.check(expected)
