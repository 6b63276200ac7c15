"""Sparse models: a weight for each token of the vocabulary."""

from pathlib import Path

from sie_triton.checkpoints.architecture import MASKED_LM, head, is_bare
from sie_triton.checkpoints.contents import CONFIG
from sie_triton.checkpoints.files import read_fields
from sie_triton.checkpoints.modules import modules_of
from sie_triton.checkpoints.sentence_transformers import SPLADE, SparseEncoderFiles
from sie_triton.contract import ENCODE_OUTPUTS, TRUNCATION_SIDE
from sie_triton.contract.tensors import INPUT_IDS, Tensor
from sie_triton.models.families.base import Recognised, TextFamily
from sie_triton.models.families.shared.recognised import doubtful, reason_with_file
from sie_triton.models.inputs.prompt import own_prompt

LOOKUP_IDS = Tensor(
    "lookup_ids", "INT32", (-1,), "[ids] distinct token ids of queries without a forward pass", "lookup_lengths", 0
)


class Splade(TextFamily):
    outputs = (ENCODE_OUTPUTS["sparse"],)
    parameters = (TRUNCATION_SIDE,)
    features = (INPUT_IDS, LOOKUP_IDS)
    takes_loras = True
    reference_adapters = (
        "splade_flash:SPLADEFlashAdapter",
        "gte_sparse_flash:GTESparseFlashAdapter",
        "sentence_transformer:SentenceTransformerSparseAdapter",
    )

    def recognise(self, directory: Path) -> Recognised | None:
        """Recognise a SPLADE model, with doubt if it is a bare masked language model."""
        is_doubtful = is_bare(directory) and head(read_fields(directory / CONFIG, required=False)) == MASKED_LM
        if not is_doubtful and SPLADE not in [name for name, _ in modules_of(directory)]:
            return None
        files = SparseEncoderFiles.read(directory)
        ways = "a sparse model (splade)", "a dense model of averaged states (sentence_transformer)"
        return Recognised(
            reason_with_file(directory, files.text, files.chain),
            files.text.lengths.longest,
            {"sparse": files.dim},
            query_prompt=own_prompt(files.text.prompts, True),
            weights=(files.text.transformer, *([files.idf] if files.idf is not None else [])),
            doubt=doubtful(files.text, *ways) if is_doubtful else "",
        )
