"""Judgements of causal language models equal those of transformers for the model card's prompt."""

from dataclasses import asdict

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.texts import texts
from sie_triton.errors import LoadError
from sie_triton.models.families.llm_reranker import RerankerOptions
from tests.support.models import save_causal
from tests.support.scorers import Scorer

QUERY = "how do vines climb, and why?"
TEXTS = ["", "x", "naïve 😀 日本語", "say {query} or <|im_end|>", *texts(8, seed=3)]
QWEN3 = RerankerOptions("yes", "no", "qwen3", "log_softmax")
MXBAI = RerankerOptions()


def reranker_of(directory, config, max_length=512):
    return Scorer("llm_reranker", directory, max_length, **asdict(config))


def qwen3(query, text, instruction):
    """Return the whole prompt as one string; these tests truncate nothing."""
    task = instruction or "Given a web search query, retrieve relevant passages that answer the query"
    return (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {text}"
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def mxbai(query, text, instruction):
    return (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        f"<|im_start|>user\n{f'instruction: {instruction}' + chr(10) if instruction else ''}query: {query}\n"
        f"document: {text}\nYou are a search relevance expert who evaluates how well documents match search queries. "
        "For each query-document pair, carefully analyze the semantic relationship between them, then provide your "
        "binary relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@torch.inference_mode()
def logits(directory, questions, words):
    """Return the logits of the token after each question: float64 [questions, words]."""
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(directory)
    wanted = tokenizer.convert_tokens_to_ids(list(words))
    rows = []
    for question in questions:
        ids = tokenizer(question, add_special_tokens=False, return_tensors="pt")["input_ids"]
        rows.append(model(input_ids=ids).logits[0, -1, wanted].double().numpy())
    return np.array(rows)


@pytest.mark.parametrize("instruction", [None, "Find the botanist's answer"])
@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_the_probability_of_yes(tmp_path, minilm_directory, architecture, instruction):
    directory = save_causal(tmp_path, minilm_directory, architecture)
    no, yes = logits(directory, [qwen3(QUERY, text, instruction) for text in TEXTS], ("no", "yes")).T
    reranker = reranker_of(directory, QWEN3)
    assert reranker.adapter.encoder.path == "packed"
    scores = reranker(QUERY, TEXTS, instruction)
    assert np.std(yes - no) > 0.2
    np.testing.assert_allclose(scores, np.exp(yes) / (np.exp(yes) + np.exp(no)), atol=2e-5)
    np.testing.assert_allclose(scores, np.concatenate([reranker(QUERY, [t], instruction) for t in TEXTS]), atol=2e-5)


@pytest.mark.parametrize("instruction", [None, "Find the botanist's answer"])
def test_the_difference_of_one_and_zero(tmp_path, minilm_directory, instruction):
    directory = save_causal(tmp_path, minilm_directory, "qwen2")
    no, yes = logits(directory, [mxbai(QUERY, text, instruction) for text in TEXTS], ("0", "1")).T
    scores = reranker_of(directory, MXBAI)(QUERY, TEXTS, instruction)
    np.testing.assert_allclose(scores, yes - no, atol=1e-4 * np.std(yes - no), rtol=1e-5)


@pytest.mark.parametrize("config", [QWEN3, MXBAI])
def test_long_inputs_lose_the_end_of_their_text(tmp_path, minilm_directory, config):
    directory = save_causal(tmp_path, minilm_directory, "qwen3")
    reranker = reranker_of(directory, config, max_length=200)
    long = " ".join(texts(40, seed=8))
    whole, cut = (reranker.features(QUERY, [text])["input_ids"] for text in ("x", long))
    assert cut.lengths[0] == 200 > whole.lengths[0]
    # The prompt before and after the text is complete.
    after = len(reranker.processor._after)
    np.testing.assert_array_equal(cut.values[-after:], whole.values[-after:])
    before = len(whole.values) - after - 1
    np.testing.assert_array_equal(cut.values[:before], whole.values[:before])
    assert reranker.features(long, [long])["input_ids"].lengths[0] <= 200


def test_a_limit_without_room_is_refused(tmp_path, minilm_directory):
    directory = save_causal(tmp_path, minilm_directory, "qwen3")
    with pytest.raises(LoadError, match="max_sequence_length 64 leaves no room for query and text"):
        reranker_of(directory, QWEN3, max_length=64)
