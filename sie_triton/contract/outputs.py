"""What requests may ask for by name: output types, and the tensors that each comes in."""

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
    """One output type. `made_of` names the one that it is made of after the forward pass, if it is not from there.

    Of vectors, `quantized` holds the rows in fewer bits, and `scales`, where the model file asks for them, what an
    entry q of int8 and uint8 stands for: offset + step · q.
    """

    name: str
    tensors: tuple[Tensor, ...]
    made_of: str = ""
    quantized: Tensor | None = None
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

# Ways to score a query's outputs against those of texts → what they are made of; see transforms.similarity.
SCORE_MODES: Mapping[str, tuple[str, ...]] = {
    "dense": ("dense",),
    "sparse": ("sparse",),
    "colbert": ("multivector",),
    "hybrid": ("dense", "sparse", "multivector"),
    "maxsim": ("multivector",),
}
