"""BAAI/bge-m3 and its fine-tunes: dense, sparse and late interaction from the same token states."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sie_triton.checkpoints.files import Fields, has_file, only_pickled, read_fields
from sie_triton.checkpoints.modules import TextFiles, hidden_size, modules_of, saved_settings
from sie_triton.checkpoints.sentence_transformers import SentenceTransformerFiles
from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.contract import ENCODE_OUTPUTS, TRUNCATION_SIDE
from sie_triton.errors import LoadError
from sie_triton.models.families.base import Recognised, TextFamily
from sie_triton.models.families.sentence_transformer import PoolingOptions, reason_with_file
from sie_triton.models.families.shared.token_pooling import TOKEN_POOLING
from sie_triton.models.inputs.prompt import own_prompt

if TYPE_CHECKING:
    import torch


# Files beside config.json. The server converts .pt files before it reads them.
LAYERS = ("sparse_linear", "colbert_linear")

# Tokens without meaning of their own, and their XLM-RoBERTa names, used if the tokenizer's file has none.
SPECIAL_TOKENS = {"cls_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


@dataclass(frozen=True, slots=True)
class BgeM3Files:
    """Files of a BGE-M3 model."""

    dense: SentenceTransformerFiles
    vocab_size: int
    hidden_size: int  # of the states that the linear layers take
    special_ids: tuple[int, ...]  # have weight 0 in sparse outputs
    sparse_linear: Path
    colbert_linear: Path

    @classmethod
    def read(cls, directory: Path) -> "BgeM3Files":
        """Read the files; raise LoadError naming the file or module that cannot be used."""
        dense = SentenceTransformerFiles.read(directory)
        if saved_settings(directory).has("truncate_dim"):
            raise LoadError(f"{directory}: truncate_dim cannot be served beside the other outputs", "unsupported")
        if len(modules_of(directory)) == 1:
            # FlagEmbedding saves fine-tunes without modules.
            dense = replace(dense, pooling=("cls",), normalize=True, is_declared=True)
        sparse, colbert = (_layer_file(directory, name) for name in LAYERS)
        return cls(
            dense=dense,
            vocab_size=dense.text.config.integer("vocab_size", least=1),
            hidden_size=hidden_size(dense.text.config),
            special_ids=_special_ids(dense.text.transformer),
            sparse_linear=sparse,
            colbert_linear=colbert,
        )

    @property
    def text(self) -> TextFiles:
        return self.dense.text


def read_linear(path: Path, in_features: int, out_features: int | None = None) -> "torch.nn.Linear":
    """Read the `weight` and `bias` of a layer, as float32 on the CPU.

    `out_features` None takes the number that the file has. Raises LoadError naming the file if its content is not such
    a layer.
    """
    import torch
    from safetensors.torch import load_file

    try:
        weights = load_file(path)
        linear = torch.nn.Linear(in_features, out_features or weights["bias"].numel())
        linear.load_state_dict(weights)
    except Exception as exc:  # the file may hold anything
        outputs = "" if out_features is None else f", {out_features} out"
        raise LoadError(f"{path} does not hold a linear layer ({in_features} in{outputs})", "corrupt") from exc
    return linear


def _layer_file(directory: Path, name: str) -> Path:
    path = directory / f"{name}.safetensors"
    if has_file(path):
        return path
    if has_file(path.with_suffix(".pt")):
        raise only_pickled(str(directory), [f"{name}.pt"])
    raise LoadError(f"{path.name} is missing in {directory}", "not found")


def _special_ids(transformer: Path) -> tuple[int, ...]:
    names = {special_token(transformer, role, name) for role, name in SPECIAL_TOKENS.items()}
    path = transformer / "tokenizer.json"
    added = read_fields(path).values.get("added_tokens") or []
    if not isinstance(added, list):
        raise LoadError(f"{path}: added_tokens: must be a list", "corrupt")
    tokens = [Fields.of(f"{path}: added_tokens", each) for each in added]
    return tuple(token.integer("id") for token in tokens if token.text("content") in names)


@dataclass(frozen=True)
class BgeM3Options(PoolingOptions):
    """Options of BGE-M3. `muvera_config` is the default of a profile's `runtime.muvera`."""

    muvera_config: dict[str, Any] | None = None


class BgeM3(TextFamily):
    outputs = tuple(ENCODE_OUTPUTS[name] for name in ("dense", "sparse", "multivector"))
    parameters = (TRUNCATION_SIDE, *TOKEN_POOLING)
    score_modes = ("dense", "sparse", "colbert", "hybrid")
    options = BgeM3Options
    processor_module = "sie_triton.models.inputs.text_processor"
    takes_loras = True
    reference_adapters = ("bge_m3:BGEM3Adapter", "bge_m3_flash:BGEM3FlashAdapter", "bge_m3_flag:BGEM3FlagAdapter")
    files = tuple(f"{name}.*" for name in LAYERS)
    recognises_quickly = False

    def recognise(self, directory: Path) -> Recognised | None:
        if not any(path for name in LAYERS for path in directory.glob(f"{name}.*")):
            return None
        files = BgeM3Files.read(directory)
        dims = {
            "dense": files.dense.dim,
            "sparse": files.vocab_size,
            "multivector": read_linear(files.colbert_linear, files.hidden_size).out_features,
        }
        return Recognised(
            f"{files.sparse_linear.name} and {files.colbert_linear.name}; "
            f"{reason_with_file(directory, files.text, files.dense.chain)}",
            files.text.max_sequence_length,
            dims,
            scores=True,
            normalize=files.dense.normalize,
            options={"pooling": files.dense.pooling[0]} if len(files.dense.pooling) == 1 else {},
            query_prompt=own_prompt(files.text.prompts, True),
            weights=(files.text.transformer, *(layer.directory for layer in files.dense.dense)),
        )
