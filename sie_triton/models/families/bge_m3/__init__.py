"""BAAI/bge-m3 and its fine-tunes: dense, sparse and late interaction from the same token states."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.contents import PICKLED_LAYERS
from sie_triton.contract import ENCODE_OUTPUTS, TRUNCATION_SIDE
from sie_triton.models.families.base import TEXT_TOKENIZER, Recognised, TextFamily
from sie_triton.models.families.bge_m3.files import LAYERS, BgeM3Files, read_linear
from sie_triton.models.families.sentence_transformer import PoolingOptions
from sie_triton.models.families.shared.recognised import reason_with_file
from sie_triton.models.inputs.prompt import own_prompt


@dataclass(frozen=True)
class BgeM3Options(PoolingOptions):
    """Options of BGE-M3. `muvera_config` is the default of a profile's `runtime.muvera`."""

    muvera_config: dict[str, Any] | None = None


class BgeM3(TextFamily):
    outputs = tuple(ENCODE_OUTPUTS[name] for name in ("dense", "sparse", "multivector"))
    parameters = (TRUNCATION_SIDE,)
    score_modes = ("dense", "sparse", "colbert", "hybrid")
    options = BgeM3Options
    processor_module = TEXT_TOKENIZER
    takes_loras = True
    reference_adapters = ("bge_m3:BGEM3Adapter", "bge_m3_flash:BGEM3FlashAdapter", "bge_m3_flag:BGEM3FlagAdapter")
    files = (*(f"{name}.*" for name in LAYERS), *PICKLED_LAYERS)
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
