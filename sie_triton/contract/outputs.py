"""Output types, which requests select by name, and the tensors of each."""

from collections.abc import Mapping
from dataclasses import dataclass

from sie_triton.contract.tensors import (
    DENSE,
    DENSE_QUANTIZED,
    DENSE_SCALES,
    MULTIVECTOR,
    MULTIVECTOR_LENGTHS,
    MULTIVECTOR_QUANTIZED,
    MULTIVECTOR_SCALES,
    MUVERA,
    MUVERA_QUANTIZED,
    MUVERA_SCALES,
    SPARSE_INDICES,
    SPARSE_LENGTHS,
    SPARSE_VALUES,
    Tensor,
)


@dataclass(frozen=True, slots=True)
class Output:
    """An output type of encode."""

    name: str
    tensors: tuple[Tensor, ...]
    made_of: str = ""  # output type that postprocess computes it from; empty: the forward pass computes it
    quantized: Tensor | None = None  # vectors in fewer bits
    # If the model file asks for it: decodes an entry q of int8 and uint8 as offset + step · q
    scales: Tensor | None = None


ENCODE_OUTPUTS: Mapping[str, Output] = {
    each.name: each
    for each in (
        Output("dense", (DENSE,), quantized=DENSE_QUANTIZED, scales=DENSE_SCALES),
        Output("sparse", (SPARSE_INDICES, SPARSE_VALUES, SPARSE_LENGTHS)),
        Output(
            "multivector",
            (MULTIVECTOR, MULTIVECTOR_LENGTHS),
            quantized=MULTIVECTOR_QUANTIZED,
            scales=MULTIVECTOR_SCALES,
        ),
        Output("muvera", (MUVERA,), made_of="multivector", quantized=MUVERA_QUANTIZED, scales=MUVERA_SCALES),
    )
}

OUTPUT_DTYPES = ("float32", "float16", "int8", "uint8", "binary", "ubinary")
SCALED_DTYPES = ("int8", "uint8")

# Score mode → the output types of query and text that it compares; see transforms.similarity.
SCORE_MODES: Mapping[str, tuple[str, ...]] = {
    "dense": ("dense",),
    "sparse": ("sparse",),
    "colbert": ("multivector",),
    "hybrid": ("dense", "sparse", "multivector"),
    "maxsim": ("multivector",),
}
