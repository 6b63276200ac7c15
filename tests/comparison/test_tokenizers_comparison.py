"""Tokenizers as stages read them beside those of transformers, for directories in layouts that people have.

A case from a bug report is a line in LAYOUTS: the kind of tokenizer, and the change of its files. It is compared on
texts in several scripts, alone and as pairs, whole and cut.
"""

import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from tokenizers import normalizers
from transformers.convert_slow_tokenizer import DebertaV2Converter, import_protobuf

from sie_triton.checkpoints.modules import tokenizer_kwargs
from sie_triton.errors import LoadError
from sie_triton.models.inputs.cutting import encoded
from sie_triton.models.inputs.tokenizer import open_tokenizer, truncating
from sie_triton.pipeline.stages.tokenizer_files import overlay
from sie_triton.pipeline.worker.tokenizer import write_tokenizer
from tests.support.tokenizers import KINDS
from tests.support.tokens import LENGTH, TEXTS, compare, library

# SentencePiece's map that changes no character: the size of its trie, the trie, and the texts to put in place.
CHARACTER_MAP = (1024).to_bytes(4, "little") + bytes(1024) + b"a\0"


def ligature() -> bytes:
    """Return the map from ﬁ to fi: a double array of its bytes, and the replacement."""
    units, at = [0] * 2048, 0
    for byte, offset in zip("ﬁ".encode(), (256, 512, 1024), strict=True):
        at ^= byte
        units[at] = offset << 10 | byte
        node, at = at, at ^ offset
    units[node] |= 1 << 8
    units[at] = 1 << 31
    return struct.pack("<I2048I", 4 * 2048, *units) + b"fi\0"


Change = dict[str, Any]

MODULES = [{"type": "sentence_transformers.models.Transformer", "path": ""}]


def token(content: str, **changes: bool) -> dict[str, Any]:
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"content": content, **usual, **changes}


# File → keys to set; None removes a key, or the file. A function changes the object.
LAYOUTS: dict[str, tuple[str, Change]] = {
    "accents are kept": ("bert", {"tokenizer_config.json": {"strip_accents": False}}),
    "upper case is kept": ("bert", {"tokenizer_config.json": {"do_lower_case": False}}),
    "Chinese words are whole": ("bert", {"tokenizer_config.json": {"tokenize_chinese_chars": False}}),
    "a space first": ("roberta", {"tokenizer_config.json": {"add_prefix_space": True}}),
    "a token of the prompt": ("bert", {"tokenizer_config.json": {"added_tokens_decoder": {"30522": token("[QRY]")}}}),
    "a token in added_tokens.json": ("bert", {"added_tokens.json": {"[QRY]": 30522}}),
    "a special token by name": ("bert", {"special_tokens_map.json": {"additional_special_tokens": ["[QRY]"]}}),
    "another mask": ("roberta", {"tokenizer_config.json": {"mask_token": "[MASK]"}}),
    "special tokens are text": ("xlm-roberta", {"tokenizer_config.json": {"split_special_tokens": True}}),
    "cut on the left": ("bert", {"tokenizer_config.json": {"truncation_side": "left"}}),
    "cut on the left, byte by byte": ("roberta", {"tokenizer_config.json": {"truncation_side": "left"}}),
    "cut on the left, pieces": ("xlm-roberta", {"tokenizer_config.json": {"truncation_side": "left"}}),
    "a direction in tokenizer.json": (
        "qwen2",
        {
            "tokenizer.json": {
                "truncation": {"max_length": 9, "stride": 0, "strategy": "LongestFirst", "direction": "Left"}
            }
        },
    ),
    "no tokenizer.json": ("bert", {"tokenizer.json": None}),
    "no tokenizer_config.json": ("bert", {"tokenizer_config.json": None}),
    "neither, and cased": ("bert", {"tokenizer.json": None, "tokenizer_config.json": {"do_lower_case": False}}),
    "two files of CLIP": ("clip", {}),
    "nothing but tokenizer.json": (
        "gemma",
        {"tokenizer_config.json": None, "special_tokens_map.json": None, "config.json": None},
    ),
    "another class": ("roberta", {"tokenizer_config.json": {"tokenizer_class": "GPT2TokenizerFast"}}),
    "the generic class": ("gemma", {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}}),
    "arguments of the module": (
        "bert",
        {
            "modules.json": MODULES,
            "sentence_bert_config.json": {"tokenizer_args": {"strip_accents": False, "truncation_side": "left"}},
        },
    ),
    "an unknown type of model": ("bert", {"config.json": {"model_type": "custom_bert"}}),
}


def changed(directory: Path, change: Change) -> None:
    for name, keys in change.items():
        path = directory / name
        if keys is None:
            path.unlink(missing_ok=True)
            continue
        if isinstance(keys, list):
            path.write_text(json.dumps(keys))
            continue
        values = json.loads(path.read_text()) if path.exists() else {}
        values |= keys
        path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


@pytest.mark.parametrize("name", LAYOUTS)
def test_tokens_are_those_of_the_library(name, tmp_path, minilm_directory):
    kind, change = LAYOUTS[name]
    directory = tmp_path / "model"
    directory.mkdir()
    KINDS[kind](directory, minilm_directory)
    changed(directory, change)
    compare(directory, tmp_path)


STEPS = ({"type": "Replace", "pattern": {"String": a}, "content": b * 100} for a, b in ("ab", "bc", "cd", "de"))
GROWING = {"type": "Sequence", "normalizers": list(STEPS)}
NO_CLASS: Change = {"config.json": {"model_type": "custom"}, "tokenizer_config.json": {"tokenizer_class": None}}
SLOW, GIVING_UP = (
    {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    for pattern in ("x*x*(?<=y)", "x*x*x*(?<=y)")
)
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
REPEATING = {"type": "TemplateProcessing", "single": [TEXT] * 9, "pair": [], "special_tokens": {}}

REFUSED: dict[str, tuple[str, Change, str]] = {
    "a class of Python only": ("bert", {"tokenizer_config.json": {"tokenizer_class": "ByT5Tokenizer"}}, "unsupported"),
    "a class of the repository": (
        "bert",
        {
            "config.json": {"model_type": "custom"},
            "tokenizer_config.json": {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}},
        },
        "unsupported",
    ),
    "no class at all": ("bert", {"tokenizer_config.json": {"tokenizer_class": "AutoModel"}}, "corrupt"),
    "a token that is no text": ("bert", {"tokenizer_config.json": {"added_tokens_decoder": {"5": 7}}}, "corrupt"),
    "a vocabulary that is no list": ("clip", {"vocab.json": {"a": "b"}}, "corrupt"),
    "normalizers that make gigabytes of a letter": ("bert", {"tokenizer.json": {"normalizer": GROWING}}, "unsupported"),
    "texts that are repeated": ("bert", {"tokenizer.json": {"post_processor": REPEATING}}, "unsupported"),
    "a pattern that takes cubic time": ("bert", {"tokenizer.json": {"pre_tokenizer": SLOW}, **NO_CLASS}, "unsupported"),
    "a pattern that gives up": ("bert", {"tokenizer.json": {"pre_tokenizer": GIVING_UP}, **NO_CLASS}, "corrupt"),
    "no JSON": ("bert", {"tokenizer.json": {"model": float("nan")}}, "corrupt"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_library_cannot_load_is_refused_once_it_is_opened(name, tmp_path, minilm_directory):
    kind, change, reason = REFUSED[name]
    directory = tmp_path / "model"
    directory.mkdir()
    KINDS[kind](directory, minilm_directory)
    changed(directory, change)
    made = overlay(directory, tmp_path, write_tokenizer)
    with pytest.raises(LoadError) as error:
        open_tokenizer(made)
    assert (error.value.reason, str(tmp_path) in str(error.value)) == (reason, False)


def test_what_tokenizer_json_cannot_say_is_noticed(tmp_path, minilm_directory, monkeypatch):
    """As of a class that changes texts, or ids, in Python."""

    class Shouting(transformers.BertTokenizer):
        def _encode_plus(self, text, *arguments, **options):
            return super()._encode_plus([each.replace("x", "y") for each in text], *arguments, **options)

    KINDS["bert"](tmp_path, minilm_directory)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", Shouting.from_pretrained)
    with pytest.raises(LoadError) as error:
        open_tokenizer(overlay(tmp_path, tmp_path / "cache", write_tokenizer))
    assert error.value.reason == "unsupported"


OWN_CODE = {"auto_map": {"AutoTokenizer": ["own.Own", None]}}


@pytest.mark.parametrize(
    ("kind", "change", "is_added"),
    [
        ("gemma", {"tokenizer_class": "GemmaTokenizer"}, True),
        ("gemma", {"tokenizer_class": "PreTrainedTokenizerFast"}, False),
        ("qwen2", OWN_CODE, True),
        ("qwen2", {}, False),
    ],
)
def test_the_end_token_that_authors_ask_for(kind, change, is_added, tmp_path, minilm_directory):
    """transformers 5 ignores add_eos_token beside a tokenizer.json; transformers 4 obeyed it in some classes, and so
    does code in a model's repository.
    """
    KINDS[kind](tmp_path, minilm_directory)
    backend = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**backend, "post_processor": None}))
    end = library(tmp_path).eos_token
    changed(tmp_path, {"tokenizer_config.json": {**change, "add_eos_token": True, "add_bos_token": False}})
    ours = open_tokenizer(overlay(tmp_path, tmp_path / "cache", write_tokenizer))
    number = ours.token_to_id(end)
    assert [ours.encode(text).ids[-1:] == [number] for text in TEXTS[:3]] == [is_added] * 3
    if is_added:
        assert ours.encode("a", "b").ids[-1] == number


def test_the_end_token_that_a_model_file_asks_for(tmp_path, minilm_directory):
    KINDS["qwen2"](tmp_path, minilm_directory)
    plain = library(tmp_path)
    made = overlay(tmp_path, tmp_path / "cache", write_tokenizer, append_eos=True)
    ours = truncating(open_tokenizer(made), LENGTH)
    assert [each.ids[-1] for each in encoded(ours, TEXTS)] == [plain.eos_token_id] * len(TEXTS)
    pair = open_tokenizer(made).encode("a", "b")
    assert pair.ids == [*plain("a", "b")["input_ids"], plain.eos_token_id]


def test_a_character_map_that_the_library_drops_is_kept(tmp_path, minilm_directory):
    """DeBERTa's models were trained with the map in tokenizer.json; its class in transformers 5 has none."""
    pieces = [("[PAD]", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[UNK]", 0.0), ("▁", -1.0), ("a", -1.0), ("▁a", -1.5)]
    made = transformers.DebertaV2Tokenizer(vocab=pieces)
    made.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')
    own = made.backend_tokenizer
    own.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Precompiled(CHARACTER_MAP)])
    own.save(str(tmp_path / "tokenizer.json"))
    assert "Precompiled" not in repr(library(tmp_path).backend_tokenizer.normalizer)
    assert "Precompiled" in repr(open_tokenizer(overlay(tmp_path, tmp_path / "cache", write_tokenizer)).normalizer)


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": True}, {"split_by_punct": True}])
def test_debertas_file_is_read_with_its_character_map(settings, tmp_path):
    """As by transformers' converter, which transformers 4 used."""
    proto = import_protobuf().ModelProto()
    for i, piece in enumerate(("[PAD]", "[CLS]", "[SEP]", "[UNK]", "<own>", *"▁abcdefi.,A", "▁fi", "sh", "日")):
        proto.pieces.add(piece=piece, score=-float(max(0, i - 4)), type={0: 3, 1: 3, 2: 3, 3: 2, 4: 4}.get(i, 1))
    proto.trainer_spec.unk_id, proto.trainer_spec.model_type = 3, 1
    proto.normalizer_spec.precompiled_charsmap = ligature()
    (tmp_path / "spm.model").write_bytes(proto.SerializeToString())
    changed(tmp_path, {"tokenizer_config.json": {"tokenizer_class": "DebertaV2Tokenizer", **settings}})
    ours = open_tokenizer(overlay(tmp_path, tmp_path / "cache", write_tokenizer))
    given = {"do_lower_case": False, "split_by_punct": False, "add_prefix_space": True, "legacy": True, **settings}
    names = {"[CLS]": 1, "[SEP]": 2}
    slow = SimpleNamespace(vocab_file=str(tmp_path / "spm.model"), convert_tokens_to_ids=names.get, **given)
    theirs = DebertaV2Converter(slow).converted()
    theirs.add_special_tokens(["[MASK]"])
    for text in (*TEXTS, "ﬁsh A,b <own> [MASK]"):
        assert ours.encode(text).ids == theirs.encode(text).ids
        assert ours.encode(text, "a ﬁ").ids == theirs.encode(text, "a ﬁ").ids
    assert "▁fi" in ours.encode("ﬁ").tokens


def test_tokens_are_those_of_an_older_library(tmp_path, minilm_directory):
    """transformers 5.0, the oldest that this package accepts, in a process of its own."""
    for name, (kind, change) in LAYOUTS.items():
        (tmp_path / name).mkdir()
        KINDS[kind](tmp_path / name, minilm_directory)
        changed(tmp_path / name, change)
    older = Path(sys.prefix) / "apart" / "transformers"
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.tokens", *map(str, tmp_path.iterdir())],
        env={**os.environ, "PYTHONPATH": str(older)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout.startswith("5.0."), run.stderr[-2000:]


def drawn(seed: int) -> tuple[str, Change]:
    """Return a kind of tokenizer and one to four changes of its files, drawn from `seed`."""
    rng = random.Random(seed)
    flag = lambda: rng.random() < 0.5  # noqa: E731
    added = token(
        rng.choice(["[QRY]", "who", "lorem", "日本"]),
        **{key: flag() for key in ("single_word", "lstrip", "rstrip", "normalized", "special")},
    )
    settings = {
        "strip_accents": rng.choice([True, False, None]),
        "do_lower_case": flag(),
        "tokenize_chinese_chars": flag(),
        "add_prefix_space": flag(),
        "truncation_side": rng.choice(["left", "right"]),
        "split_special_tokens": flag(),
        "added_tokens_decoder": {"40000": added},
        "additional_special_tokens": ["[QRY]", "is"],
        "extra_special_tokens": {"query_token": "who"},
        "cls_token": "[CLS]",
        "sep_token": "</s>",
        "pad_token": "<|endoftext|>",
        "unk_token": "[UNK]",
        "model_max_length": 7,
        "tokenizer_class": rng.choice(["PreTrainedTokenizerFast", "BertTokenizerFast", "GPT2Tokenizer", None]),
    }
    files: Change = {
        "tokenizer_config.json": {key: settings[key] for key in rng.sample(sorted(settings), rng.randint(1, 3))}
    }
    more = {
        "added_tokens.json": {"lorem": 40001},
        "special_tokens_map.json": {"mask_token": token("[MASK]", lstrip=flag())},
        "sentence_bert_config.json": {"tokenizer_args": {"truncation_side": "left", "do_lower_case": flag()}},
        "config.json": {"model_type": rng.choice(["bert", "roberta", "custom"])},
    }
    name = rng.choice(sorted(more))
    if flag():
        files |= {name: more[name], "modules.json": MODULES}
    return rng.choice(sorted(KINDS)), files


def compared(seed: int, tmp_path: Path, minilm: Path) -> str:
    """Compare a drawn directory; return "equal", or "refused" if both libraries refuse it."""
    kind, change = drawn(seed)
    directory = tmp_path / f"model-{seed}"
    directory.mkdir()
    KINDS[kind](directory, minilm)
    changed(directory, change)
    try:
        library(directory, **tokenizer_kwargs(directory, directory))("a")
    except BaseException:
        with pytest.raises(LoadError):
            open_tokenizer(overlay(directory, tmp_path, write_tokenizer))
        return "refused"
    compare(directory, tmp_path)
    return "equal"


@pytest.mark.parametrize("seed", range(20))
def test_directories_drawn_at_random(seed, tmp_path, minilm_directory):
    assert compared(seed, tmp_path, minilm_directory) in ("equal", "refused")
