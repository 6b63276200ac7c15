"""A long text is cut before it is tokenized: the tokens that are read stay the same, and memory is bounded."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from sie_triton.models.inputs import cutting
from sie_triton.models.inputs.cutting import encoded, kept
from sie_triton.models.inputs.text import Unreadable

LENGTH = 16
TRAINED_ON = Path(__file__).read_text() + Path(cutting.__file__).read_text() + "日本語の文章。これは長い。" * 9
GPT_2 = r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def trained(model, trainer, normalizer=None, pre_tokenizer=None) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(model)
    if normalizer is not None:
        made.normalizer = normalizer
    if pre_tokenizer is not None:
        made.pre_tokenizer = pre_tokenizer
    made.train_from_iterator(TRAINED_ON.splitlines(), trainer)
    opening, closing = (made.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    special = [("[CLS]", opening), ("[SEP]", closing)]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=special
    )
    made.enable_truncation(LENGTH)
    return made


SPECIAL = ["[UNK]", "[CLS]", "[SEP]"]


def byte_level(pattern: str) -> tokenizers.Tokenizer:
    words = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    steps = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return trained(models.BPE(), trainer, normalizers.NFC(), steps)


def of_each_type() -> dict[str, tokenizers.Tokenizer]:
    pieces = trainers.UnigramTrainer(vocab_size=500, special_tokens=SPECIAL, unk_token="[UNK]", show_progress=False)
    merges = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False)
    words = trainers.WordPieceTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False)
    spaces = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    clean = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    padded = trained(
        models.WordPiece(unk_token="[UNK]"), words, normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    )
    padded.enable_padding(length=LENGTH)
    return {
        "WordPiece": trained(
            models.WordPiece(unk_token="[UNK]"), words, normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        ),
        "WordPiece, filled up": padded,
        "Unigram": trained(models.Unigram(), pieces, clean, pre_tokenizers.Metaspace()),
        "BPE of bytes, GPT-2": byte_level(GPT_2),
        "BPE of bytes, Qwen": byte_level(QWEN),
        "BPE of a whole text": trained(models.BPE(unk_token="[UNK]", fuse_unk=True), merges, spaces),
    }


TOKENIZERS = of_each_type()
NUM = 12_000

LONG = {
    "words": "the tokens of a text are those that it has. " * 400,
    "lines": "a text,\n\n  and its next line...\r\n" * 600,
    "no spaces": "日本語の文章。これは長い。" * 1200,
    "one word": "tokenizers" * 1800,
    "one letter": "a" * NUM,
    "words of 101 and 99 letters": ("a" * 101 + " " + "b" * 99 + " ") * 100,
    "a long word behind a few": "a few words " + "x" * NUM + " and more",
    "spaces first": " " * 9_000 + "the text " * 1000,
    "spaces between": ("the" + " " * 700) * 30,
    "accents": "e\u0301a\u0308" * 5_000,
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈" * 1200,
    "special tokens": "[SEP][CLS] text " * 1000,
    "symbols": "?!.,;:" * 2_000,
}


@pytest.fixture(params=["right", "left"], autouse=True)
def side(request):
    """The side on which all TOKENIZERS cut."""
    for tokenizer in TOKENIZERS.values():
        tokenizer.enable_truncation(LENGTH, direction=request.param)
    return request.param


@pytest.mark.parametrize("text", LONG)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_cutting_a_long_text_early_keeps_its_tokens(kind, text):
    tokenizer = TOKENIZERS[kind]
    cut, whole = encoded(tokenizer, [LONG[text]])[0], tokenizer.encode(LONG[text])
    assert cut.ids == whole.ids
    assert cut.attention_mask == whole.attention_mask
    assert bool(cut.overflowing) == bool(whole.overflowing)


def test_words_of_any_kind_cut_anywhere():
    rng = np.random.default_rng(0)
    alphabet = [*"aabcdeetho .,  \n'", "the", " tokens", "日本", "é", "\u0301", "👩", "[SEP]", "\u200b", "ﬁ"]
    for _ in range(12):
        text = "".join(rng.choice(alphabet, rng.integers(2_300, 12_000)))
        for kind, tokenizer in TOKENIZERS.items():
            assert encoded(tokenizer, [text])[0].ids == tokenizer.encode(text).ids, kind


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_pairs(kind):
    tokenizer = TOKENIZERS[kind]
    for first, second in (("who?", LONG["words"]), (LONG["no spaces"], "it"), ("who is it? " * 9, LONG["lines"])):
        assert encoded(tokenizer, [(first, second)])[0].ids == tokenizer.encode(first, second).ids


def test_a_text_that_makes_too_few_tokens_is_refused():
    tokenizer = TOKENIZERS["WordPiece"]
    for text in ("a" + " " * 600_000 + "b", "x" * 600_000):
        with pytest.raises(Unreadable, match=r"has 600.* characters, of which 500000 make fewer than 272 tok"):
            kept(tokenizer, text, LENGTH)
    assert kept(tokenizer, "x" * 500_000, LENGTH) == "x" * 500_000


PROGRAM = """
import sys
import tokenizers
from sie_triton.models.inputs.cutting import encoded

def memory(field):
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith(field))

tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
tokenizer.no_padding()
tokenizer.enable_truncation(256)
text = "a word of a text, " * 1_000_000
before = memory("VmRSS")
assert len(encoded(tokenizer, [text])[0].ids) == 256
print(memory("VmHWM") - before)
"""


def test_memory_does_not_grow_with_the_text(minilm_directory):
    """18 million characters; whole they take 4 GB."""
    command = [sys.executable, "-c", PROGRAM, str(minilm_directory / "tokenizer.json")]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd())
    assert not run.returncode, run.stderr
    assert float(run.stdout) < 100
