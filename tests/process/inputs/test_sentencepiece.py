"""Tokenizers made from spm.model equal those of transformers' own converter."""

import struct
from types import SimpleNamespace

import pytest
from transformers.convert_slow_tokenizer import DebertaV2Converter, import_protobuf

from sie_triton.errors import LoadError
from sie_triton.inputs.tokenizer import open_tokenizer

SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
WORDS = (
    "▁ada",
    "▁lo",
    "ve",
    "lace",
    "▁",
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "i",
    "l",
    "▁fi",
    "sh",
    "s",
    "h",
    ".",
    ",",
    "▁A",
    "日",
)
TEXTS = [["ada", "lovelace", "fish", "."], ["ﬁsh", "日本", "[MASK]", "<own>"], [" a  b ", "x,ada"], ["place of birth"]]


def ligature() -> bytes:
    """Return SentencePiece's normalizer map from ﬁ to fi: a double array of its bytes, and the replacement."""
    units, at = [0] * 2048, 0
    for byte, offset in zip("ﬁ".encode(), (256, 512, 1024), strict=True):
        at ^= byte
        units[at] = offset << 10 | byte
        node, at = at, at ^ offset
    units[node] |= 1 << 8
    units[at] = 1 << 31
    return struct.pack("<I2048I", 4 * 2048, *units) + b"fi\0"


def save(path, charsmap=b"", **trainer):
    made = import_protobuf().ModelProto()
    for i, text in enumerate((*SPECIAL, "<own>", *WORDS)):
        kind = {0: 3, 1: 3, 2: 3, 3: 2, 4: 4}.get(i, 1)
        made.pieces.add(piece=text, score=0.0 if i < 5 else -float(i), type=kind)
    for name, value in {"unk_id": 3, "model_type": 1, **trainer}.items():
        setattr(made.trainer_spec, name, value)
    made.normalizer_spec.precompiled_charsmap = charsmap
    path.write_bytes(made.SerializeToString())
    return made


@pytest.mark.parametrize("charsmap", [b"", ligature()])
@pytest.mark.parametrize("settings", [{}, {"do_lower_case": True}, {"split_by_punct": True}])
def test_tokens_are_those_of_the_library(tmp_path, charsmap, settings):
    save(tmp_path / "spm.model", charsmap)
    (tmp_path / "tokenizer_config.json").write_text(str(settings).replace("'", '"').replace("True", "true"))
    ours = open_tokenizer(tmp_path)
    given = {"do_lower_case": False, "split_by_punct": False, "add_prefix_space": True, **settings}
    slow = SimpleNamespace(
        vocab_file=str(tmp_path / "spm.model"), convert_tokens_to_ids=(*SPECIAL,).index, legacy=True, **given
    )
    theirs = DebertaV2Converter(slow).converted()
    theirs.add_special_tokens(["[MASK]"])
    assert ours.get_vocab() == theirs.get_vocab()
    for words in TEXTS:
        mine, expected = (each.encode(words, is_pretokenized=True) for each in (ours, theirs))
        assert (mine.ids, mine.word_ids) == (expected.ids, expected.word_ids)
        assert ours.encode(" ".join(words)).ids == theirs.encode(" ".join(words)).ids
    assert ("▁fi" in ours.encode(["ﬁsh"], is_pretokenized=True).tokens) == bool(charsmap)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "unk_id is not the id of a piece"),
        (b"\x0a\xff\xff\x03ab", "is truncated"),
        (b"version https://git-lfs", "cannot be read"),
        (b"\x0a", "cannot be read"),
        (b"\x08\t\x0a\x00", "cannot be read"),  # a piece that is a number
        (b"\x12\x04\x1a\x02\x08\x01", "cannot be read|is not a unigram model"),  # a kind of model that is no number
        (b"\xff" * 20, "is not a Protocol Buffers message"),
    ],
)
def test_invalid_sentencepiece_files_are_refused(tmp_path, content, said):
    (tmp_path / "spm.model").write_bytes(content)
    with pytest.raises(LoadError, match=f"spm.model: .*{said}"):
        open_tokenizer(tmp_path)


def test_unsupported_sentencepiece_models_are_refused(tmp_path):
    save(tmp_path / "spm.model", model_type=2)
    with pytest.raises(LoadError, match="is not a unigram model"):
        open_tokenizer(tmp_path)
    made = save(tmp_path / "spm.model")
    made.pieces[1].piece = "<s>"
    (tmp_path / "spm.model").write_bytes(made.SerializeToString())
    with pytest.raises(LoadError, match=r"has no \[CLS\] and \[SEP\]"):
        open_tokenizer(tmp_path)
    (tmp_path / "spm.model").unlink()
    with pytest.raises(LoadError, match="is missing in"):
        open_tokenizer(tmp_path)
