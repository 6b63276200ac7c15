"""Scores with LoRA adapters, their saved heads included, equal those of peft over the same weights."""

from dataclasses import asdict

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import AutoModelForCausalLM

from benchmarks.texts import texts
from sie_triton.models.families import load_processor
from sie_triton.models.families.llm_reranker import RerankerOptions
from tests.comparison.test_causal_cross_encoder_comparison import save
from tests.support.loading import Tokens, load_adapter, token_batch, with_tokenizers
from tests.support.loras import save_lora
from tests.support.models import save_causal, save_cross_encoder
from tests.support.stages import spec

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


class Scorer:
    """Our adapter and tokenizer without a server."""

    def __init__(self, family, directory, **options):
        self.spec = spec(family=family, dims={}, tasks=("score",), max_sequence_length=512, options=options)
        directory = with_tokenizers(self.spec, directory)
        self.tokenizer = load_processor(self.spec, directory)
        self.adapter = load_adapter(self.spec, directory)

    def tokens(self):
        question = self.tokenizer.question(QUERY, None)
        return Tokens.of(self.tokenizer.encode([question.around(text) for text in TEXTS]))

    def __call__(self, loras):
        """Return the scores of TEXTS, computed in one batch."""
        tokens = self.tokens()
        batch = token_batch(tokens.input_ids, tokens.lengths, type_ids=tokens.type_ids)
        with self.adapter.encoder.adapted([loras] * len(TEXTS) if isinstance(loras, str) else loras):
            return self.adapter.forward(batch)["scores"]

    def check(self, expected):
        """Assert peft's scores; `expected` maps adapter → scores."""
        base = self("")
        close = {"atol": 2e-5 * max(map(np.std, expected.values())), "rtol": 2e-5}
        mixed = self(MIXED)
        for name, scores in expected.items():
            np.testing.assert_allclose(self(name), scores, **close)
            assert np.corrcoef(base, scores)[0, 1] < 0.99  # negative control: the base differs
            of_name = np.array(MIXED) == name
            np.testing.assert_allclose(mixed[of_name], scores[of_name], **close)
        np.testing.assert_allclose(mixed[::3], base[::3], **close)


@pytest.mark.parametrize("architecture", CASES)
def test_scores_are_those_of_peft(tmp_path, minilm_directory, architecture):
    settings, *configs = CASES[architecture]
    directory = save_cross_encoder(tmp_path, minilm_directory, architecture, **settings, **LOGITS)
    ours, library = Scorer("cross_encoder", directory), CrossEncoder(str(directory), device="cpu")
    base, expected = library[0].model, {}
    for name, config in zip(("one", "other"), configs, strict=True):
        library[0].model = save_lora(tmp_path / name, base, spread=0.2, **config)
        expected[name] = library.predict([(QUERY, text) for text in TEXTS])
        ours.adapter.encoder.add_lora(name, tmp_path / name)
    ours.check(expected)


def test_judgements_are_those_of_peft(tmp_path, minilm_directory):
    """Our head keeps two rows of the vocabulary layer, and the same two of its adapter."""
    ours = Scorer("llm_reranker", save_causal(tmp_path, minilm_directory), **asdict(RerankerOptions()))
    base, expected, tokens = AutoModelForCausalLM.from_pretrained(tmp_path), {}, ours.tokens()
    words = [ours.tokenizer._tokenizer.token_to_id(word) for word in ("0", "1")]
    configs = [
        {"target_modules": ["q_proj", "v_proj", "lm_head"], "task_type": "CAUSAL_LM", "use_dora": True},
        {"target_modules": ["down_proj"], "modules_to_save": ["lm_head"]},
    ]
    for name, config in zip(("one", "other"), configs, strict=True):
        model = save_lora(tmp_path / name, base, **config)
        items = np.split(tokens.input_ids, np.cumsum(tokens.lengths)[:-1])
        with torch.inference_mode():
            logits = [model(input_ids=torch.tensor(item[None].astype(np.int64))).logits[0, -1] for item in items]
        expected[name] = np.array([float(each[words[1]] - each[words[0]]) for each in logits])
        ours.adapter.encoder.add_lora(name, tmp_path / name)
    ours.check(expected)


def test_judgements_of_conversations_are_those_of_peft(tmp_path, minilm_directory):
    """Our head keeps one row of the vocabulary layer."""
    directory = save(tmp_path, minilm_directory, has_no=False)
    ours, library = Scorer("causal_cross_encoder", directory), CrossEncoder(str(directory), device="cpu")
    base, expected = library[0].model, {}
    configs = [{"target_modules": ["q_proj", "lm_head"], "task_type": "CAUSAL_LM"}, {"target_modules": ["down_proj"]}]
    for name, config in zip(("one", "other"), configs, strict=True):
        library[0].model = save_lora(tmp_path / name, base, spread=0.2, **config)
        expected[name] = library.predict([(QUERY, text) for text in TEXTS], batch_size=1)
        ours.adapter.encoder.add_lora(name, tmp_path / name)
    ours.check(expected)
