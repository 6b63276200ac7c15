"""Small tokenizers of several kinds, saved as their users would save them, beside a config.json."""

import json
from pathlib import Path

import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

from tests.support.models import save_qwen2_tokenizer
from tests.support.tokens import TEXTS
from tests.support.towers import save_clip_tokenizer, save_gemma_tokenizer


def save_bert(directory: Path, minilm: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        (directory / name).write_text((minilm / name).read_text())
    (directory / "config.json").write_text('{"model_type": "bert"}')


def save_roberta(directory: Path, minilm: Path) -> None:
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=alphabet)
    )
    learned = json.loads(bpe.to_str())["model"]
    made = transformers.RobertaTokenizer(vocab=learned["vocab"], merges=list(map(tuple, learned["merges"])))
    made.save_pretrained(directory)
    (directory / "config.json").write_text('{"model_type": "roberta"}')


def save_xlm_roberta(directory: Path, minilm: Path) -> None:
    special = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    unigram = tokenizers.Tokenizer(models.Unigram())
    unigram.pre_tokenizer, unigram.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    unigram.train_from_iterator(TEXTS, trainers.UnigramTrainer(vocab_size=300, unk_token="<unk>"))
    pieces = [tuple(each) for each in json.loads(unigram.to_str())["model"]["vocab"] if each[0] != "<unk>"]
    made = transformers.XLMRobertaTokenizer(vocab=[*special, *pieces, ("<mask>", 0.0)])
    made.save_pretrained(directory)
    (directory / "config.json").write_text('{"model_type": "xlm-roberta"}')


def save_qwen2(directory: Path, minilm: Path) -> None:
    save_qwen2_tokenizer(directory)
    (directory / "config.json").write_text('{"model_type": "qwen2"}')


def save_gemma(directory: Path, minilm: Path) -> None:
    save_gemma_tokenizer(directory, transformers.GemmaTokenizer)
    (directory / "config.json").write_text('{"model_type": "gemma"}')


def save_clip(directory: Path, minilm: Path) -> None:
    save_clip_tokenizer(directory)
    (directory / "config.json").write_text('{"model_type": "clip"}')


KINDS = {
    "bert": save_bert,
    "roberta": save_roberta,
    "xlm-roberta": save_xlm_roberta,
    "qwen2": save_qwen2,
    "gemma": save_gemma,
    "clip": save_clip,
}
