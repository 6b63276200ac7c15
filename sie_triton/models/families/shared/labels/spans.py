"""Results of a forward pass that finds spans: one piece after another."""

from sie_triton.contract.tensors import Tensor

SPAN_LENGTHS = Tensor("span_lengths", "INT32", (-1,), "[pieces] spans per piece")
SPANS = Tensor("spans", "INT32", (-1, 3), "[spans, 3] start and end in the text, label", SPAN_LENGTHS.name)
SPAN_SCORES = Tensor("span_scores", "FP32", (-1,), "[spans]", SPAN_LENGTHS.name)
