"""Tensors of passages whose tokens are scored one by one."""

from sie_triton.contract.tensors import Tensor

PASSAGE_LENGTHS = Tensor("passage_lengths", "INT32", (-1,), "[pieces] passage tokens per piece")
PASSAGE = Tensor(
    "passage",
    "INT32",
    (-1, 4),
    "[tokens, 4] index in the piece, index in the passage, start and end in the text",
    PASSAGE_LENGTHS.name,
    0,
)
KEEP_SCORES = Tensor("keep_scores", "FP32", (-1,), "[tokens] scores of the passage tokens", PASSAGE_LENGTHS.name)
