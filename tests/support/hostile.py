"""Broken model directories, by name of the fault."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.models import save_bert, save_bge_m3, save_cross_encoder, save_pylate, save_splade, save_stanford

Spoil = Callable[[Path], None]

# In a place for a whole number.
NOT_NUMBERS: tuple[Any, ...] = ("x", [], {}, True, 1.5, -1, float("nan"), float("inf"), 10**30)
JSON_FILES = ("config.json", "modules.json", "1_Pooling/config.json", "2_Dense/config.json")
OPTIONAL_JSON_FILES = ("sentence_bert_config.json", "config_sentence_transformers.json", "tokenizer_config.json")
CONTENTS = {
    "empty": b"",
    "cut off": b'{"hidden_size": 6',
    "null": b"null",
    "a number": b"5",
    "a list of numbers": b"[5, null]",
    "an object of nothing we know": b'{"type": 7}',
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "nested too deeply": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a number of 5,000 digits": b'{"a": ' + b"9" * 5000 + b"}",
}
# What is accepted, as nothing is read from there.
HARMLESS = (
    "dense: config.json is an object of nothing we know",
    *(f"roberta: 1_Pooling/config.json has embedding_dimension {value!r}" for value in ("x", -1)),
)


def bases(root: Path, tokenizer: Path) -> dict[str, Path]:
    """Save one valid directory of each kind."""
    return {
        "dense": save_bert(root / "dense", tokenizer, dense=24),
        "roberta": save_bert(root / "roberta", tokenizer, "roberta"),
        "splade": save_splade(root / "splade", tokenizer, idf=True),
        "pylate": save_pylate(root / "pylate", tokenizer),
        "stanford": save_stanford(root / "stanford", tokenizer, {"dim": 32}),
        "bge_m3": save_bge_m3(root / "bge_m3", tokenizer, 32),
        "cross_encoder": save_cross_encoder(root / "cross_encoder", tokenizer),
    }


def copied(base: Path, target: Path) -> Path:
    """Copy the directory with hard links; spoiled files are replaced, never written into."""
    shutil.copytree(base, target, copy_function=os.link)
    return target


def put(name: str, content: bytes) -> Spoil:
    def spoil(directory: Path) -> None:
        (directory / name).unlink(missing_ok=True)
        (directory / name).write_bytes(content)

    return spoil


def changed(name: str, **keys: Any) -> Spoil:
    def spoil(directory: Path) -> None:
        path = directory / name
        known = json.loads(path.read_text()) if path.exists() else {}
        put(name, json.dumps({**known, **keys}).encode())(directory)

    return spoil


def without(name: str) -> Spoil:
    return lambda directory: (directory / name).unlink()


def instead(name: str, make: Callable[[Path], object]) -> Spoil:
    """Replace the file."""

    def spoil(directory: Path) -> None:
        (directory / name).unlink(missing_ok=True)
        make(directory / name)

    return spoil


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def module(path: Any, kind: Any = "sentence_transformers.models.Transformer") -> Spoil:
    return put("modules.json", json.dumps([{"idx": 0, "name": "0", "path": path, "type": kind}]).encode())


def contents() -> Iterator[tuple[str, str, Spoil]]:
    """Yield every fault of config.json, and one of each other file: all are read by one function."""
    name = "config.json"
    for what, content in CONTENTS.items():
        yield "dense", f"{name} is {what}", put(name, content)
    yield "dense", f"{name} is missing", without(name)
    yield "dense", f"{name} is a directory", instead(name, Path.mkdir)
    yield "dense", f"{name} is a dangling link", instead(name, link_to("nowhere"))
    yield "dense", f"{name} is a link to itself", instead(name, link_to(name))
    yield "dense", f"{name} is a pipe", instead(name, os.mkfifo)
    yield "dense", f"{name} is a device", instead(name, link_to("/dev/zero"))
    yield "dense", f"{name} is huge", instead(name, huge)
    for name in (*JSON_FILES[1:], *OPTIONAL_JSON_FILES):
        yield "dense", f"{name} is cut off", put(name, CONTENTS["cut off"])
        yield "dense", f"{name} is a list of numbers", put(name, CONTENTS["a list of numbers"])
        yield "dense", f"{name} is a dangling link", instead(name, link_to("nowhere"))
    for name in JSON_FILES[2:]:
        yield "dense", f"{name} is missing", without(name)


def numbers() -> Iterator[tuple[str, str, Spoil]]:
    places = (
        ("dense", "config.json", "max_position_embeddings"),
        ("dense", "config.json", "num_hidden_layers"),
        ("dense", "sentence_bert_config.json", "max_seq_length"),
        ("dense", "2_Dense/config.json", "out_features"),
        ("dense", "2_Dense/config.json", "in_features"),
        ("roberta", "config.json", "hidden_size"),
        ("roberta", "config.json", "pad_token_id"),
        ("roberta", "1_Pooling/config.json", "embedding_dimension"),
        ("pylate", "config_sentence_transformers.json", "query_length"),
        ("pylate", "config_sentence_transformers.json", "document_length"),
        ("stanford", "artifact.metadata", "query_maxlen"),
        ("stanford", "artifact.metadata", "doc_maxlen"),
        ("cross_encoder", "config.json", "id2label"),
    )
    for base, name, key in places:
        for value in NOT_NUMBERS if key == "max_position_embeddings" else ("x", -1):
            yield base, f"{name} has {key} {value!r}", changed(name, **{key: value})
    yield "splade", "vocab_size 'x'", _everywhere("config.json", vocab_size="x")
    prompts = {"query": "x" * 20_001}
    yield "dense", "a prompt of 20,001 characters", changed("config_sentence_transformers.json", prompts=prompts)
    yield "dense", "200,000 layers", changed("config.json", num_hidden_layers=200_000)
    yield "roberta", "as many positions as padding takes", changed("config.json", max_position_embeddings=2)


def _pickled(directory: Path) -> None:
    (directory / "sparse_linear.safetensors").rename(directory / "sparse_linear.pt")


def _everywhere(name: str, **keys: Any) -> Spoil:
    def spoil(directory: Path) -> None:
        for path in directory.rglob(name):
            if "model_type" in json.loads(path.read_text()):
                changed(str(path.relative_to(directory)), **keys)(directory)

    return spoil


def types() -> Iterator[tuple[str, str, Spoil]]:
    places: tuple[tuple[str, str, str, tuple[Any, ...]], ...] = (
        ("dense", "config.json", "model_type", (5, [], {})),
        ("cross_encoder", "config.json", "architectures", (5, [5], {})),
        ("dense", "1_Pooling/config.json", "pooling_mode", (5, [5], {}, "middle", [], ["mean", "first"])),
        ("dense", "1_Pooling/config.json", "include_prompt", ("no", 5, [])),
        ("dense", "2_Dense/config.json", "bias", ("no", 5)),
        ("dense", "2_Dense/config.json", "activation_function", (5, [])),
        ("dense", "2_Dense/config.json", "module_input_name", (["a"], {}, "token_embeddings")),
        ("dense", "2_Dense/config.json", "use_residual", (True, "no")),
        ("dense", "sentence_bert_config.json", "do_lower_case", ("no", [])),
        ("dense", "config_sentence_transformers.json", "prompts", (5, ["a"], {"query": 5}, "query: ")),
        ("dense", "config_sentence_transformers.json", "default_prompt_name", ([], {}, 5)),
        ("dense", "tokenizer_config.json", "model_max_length", ("x", [], -1, float("nan"))),
        ("pylate", "config_sentence_transformers.json", "model_type", (5, [])),
        ("splade", "router_config.json", "types", (5, [], {}, {"document_0_Transformer": 5})),
        ("splade", "router_config.json", "structure", (5, [], {}, {"document": 5}, {"document": ["no"]})),
        ("pylate", "config_sentence_transformers.json", "query_expansion", (False, 5, {}, {"length": "x"})),
        ("pylate", "config_sentence_transformers.json", "query_prefix", (5, [])),
        ("pylate", "config_sentence_transformers.json", "skiplist_words", (5, [5], {})),
        ("stanford", "artifact.metadata", "query_token_id", (5, [])),
        ("stanford", "artifact.metadata", "mask_punctuation", ("no", [])),
        ("cross_encoder", "tokenizer_config.json", "model_input_names", (5, [5], {})),
        ("cross_encoder", "config_sentence_transformers.json", "activation_fn", (5, [])),
        ("bge_m3", "tokenizer_config.json", "cls_token", (5, [], {"a": 1})),
        ("bge_m3", "tokenizer.json", "added_tokens", (5, {"a": 1}, [5], [{"id": "x", "content": "[CLS]"}], [{}])),
    )
    for base, name, key, values in places:
        for value in values:
            yield base, f"{name} has {key} {value!r}", changed(name, **{key: value})
    for name in ("sparse_linear.safetensors", "colbert_linear.safetensors"):
        yield "bge_m3", f"{name} is missing", without(name)
    yield "bge_m3", "colbert_linear.safetensors is text", put("colbert_linear.safetensors", b"weights")
    yield "bge_m3", "sparse_linear is a pickle", _pickled


def paths() -> Iterator[tuple[str, str, Spoil]]:
    for path in ("../..", "/etc", "a/../../b", "a\0b", "\ud800", 5, None, [], "x" * 5000):
        yield "dense", f"modules.json has path {str(path)[:20]!r}", module(path)
    for kind in (5, None, [], "", "Transformer2", "Router", "LogitScore"):
        yield "dense", f"modules.json has type {kind!r}", module("", kind)
    yield "dense", "modules.json is an empty list", put("modules.json", b"[]")
    two = json.dumps([{"path": "", "type": "Transformer"}] * 2).encode()
    yield "dense", "modules.json has two transformers", put("modules.json", two)


def broken_weights() -> Iterator[tuple[str, str, Spoil]]:
    """Yield faults that show when the weights or the tokenizer are read."""
    huge = (2**60).to_bytes(8, "little") + b"{}"
    header = b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'
    for base, name in (("dense", "model.safetensors"), ("dense", "2_Dense/model.safetensors")):
        yield base, f"{name} is empty", put(name, b"")
        yield base, f"{name} has a header of 2^60 bytes", put(name, huge)
        yield base, f"{name} is text", put(name, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
        yield base, f"{name} is cut off", put(name, len(header).to_bytes(8, "little") + header + b"1")
        yield base, f"{name} has other weights", put(name, len(header).to_bytes(8, "little") + header + b"1" * 36)
        yield base, f"{name} is a directory", instead(name, Path.mkdir)
        yield base, f"{name} is a dangling link", instead(name, link_to("nowhere"))
        yield base, f"{name} is a pipe", instead(name, os.mkfifo)
        yield base, f"{name} is a device", instead(name, link_to("/dev/zero"))
        yield base, f"{name} has a header of 80 MB", put(name, (80 << 20).to_bytes(8, "little") + b" " * (81 << 20))
        yield base, f"{name} is missing", without(name)
    for key, value in (
        ("model_type", "nothing"),
        ("num_attention_heads", 0),
        ("num_attention_heads", 7),
        ("num_attention_heads", "x"),
        ("num_attention_heads", -4),
        ("intermediate_size", 127),
        ("intermediate_size", 10**15),
        ("intermediate_size", -1),
        ("hidden_act", "nothing"),
        ("hidden_act", 5),
        ("vocab_size", 99),
        ("layer_norm_eps", "x"),
        ("hidden_size", 32),
        ("max_position_embeddings", 256),
    ):
        yield "dense", f"config.json has {key} {value!r}", changed("config.json", **{key: value})
    for key, value in (
        ("in_features", 32),
        ("out_features", 999_999),
        ("in_features", 999_999),
        ("bias", False),
        ("activation_function", "torch.nn.Linear"),
        ("activation_function", "torch.nn.nothing.At"),
        ("activation_function", "torch.nn.functional.relu"),
        ("activation_function", "os.system"),
        ("activation_function", ""),
    ):
        yield "dense", f"2_Dense/config.json has {key} {value!r}", changed("2_Dense/config.json", **{key: value})
    yield "dense", "no weights at all", without("model.safetensors")
    yield "splade", "the weights of queries are missing", _without_static
    yield (
        "cross_encoder",
        "an activation that is none",
        changed("config_sentence_transformers.json", activation_fn="torch.nn.modules.activation.Nothing"),
    )


def _without_static(directory: Path) -> None:
    static = next(path for path in directory.rglob("model.safetensors") if "Static" in str(path))
    put(str(static.relative_to(directory)), b"")(directory)


def broken_tokenizers() -> Iterator[tuple[str, str, Spoil]]:
    for what, content in {**CONTENTS, "{}": b"{}"}.items():
        yield "dense", f"tokenizer.json is {what}", put("tokenizer.json", content)
    yield "dense", "tokenizer.json is missing", without("tokenizer.json")
    yield "dense", "tokenizer.json is a directory", instead("tokenizer.json", Path.mkdir)
    yield "dense", "tokenizer.json is a dangling link", instead("tokenizer.json", link_to("nowhere"))
    yield "dense", "tokenizer.json is a pipe", instead("tokenizer.json", os.mkfifo)
    yield "dense", "tokenizer.json is a device", instead("tokenizer.json", link_to("/dev/zero"))
    yield "dense", "tokenizer.json is huge", instead("tokenizer.json", huge)
    for key, value in (("model", {"type": "BPE"}), ("model", 5), ("version", "9.0"), ("post_processor", 5)):
        yield "dense", f"tokenizer.json has {key} {value!r}", changed("tokenizer.json", **{key: value})
    steps = [{"type": "Replace", "pattern": {"String": a}, "content": b * 100} for a, b in ("ab", "bc", "cd", "de")]
    growing = changed("tokenizer.json", normalizer={"type": "Sequence", "normalizers": steps})
    yield "dense", "tokenizer.json makes gigabytes of a letter", growing
    unknown = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[NO]", "type_id": 0}}], "pair": []}
    template = {**unknown, "special_tokens": {}}
    yield (
        "dense",
        "tokenizer.json puts a token around texts that it has not",
        changed("tokenizer.json", post_processor=template),
    )
