"""Qwen3-VL-Reranker's forward pass: logits of yes and no for the token after query and document."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.contract import Batch, Features, Rows
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import SCORES
from sie_triton.engines.torch.encoder import num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.heads import last, states_at
from sie_triton.engines.torch.multimodal import LanguageModel
from sie_triton.engines.torch.patch_tower import PatchTower
from sie_triton.errors import LoadError
from sie_triton.models.families.qwen3_vl_embedding import Qwen3VLEmbedding, plan_of
from sie_triton.models.families.qwen3_vl_reranker import PAIR_SIZES, load_processor
from sie_triton.models.families.shared.judge import keep_tokens
from sie_triton.models.families.shared.pages.patch_adapter import PatchAdapter, parts_of
from sie_triton.models.families.shared.pages.processor import whole_tokenizer
from sie_triton.models.families.shared.token_batch import tokens

ANSWERS = ("no", "yes")
HEAD = "lm_head"


class Qwen3VLRerankerAdapter(PatchAdapter):
    """Qwen3-VL-Reranker adapter. `head` gives two logits, that of no and that of yes."""

    def __init__(
        self, encoder: LanguageModel, vision: PatchTower, head: torch.nn.Module, files: PageFiles, page: Features
    ) -> None:
        super().__init__(encoder, vision, files, page, num_images=2)
        self._head = torch.nn.ModuleDict({HEAD: head})
        encoder.loras.model.heads.append(self._head)
        self.weights_bytes += num_bytes(head)

    def sizes(self, batch: Batch) -> Ints:
        sizes: Ints = batch.features[PAIR_SIZES.name].values.reshape(-1, 2, 2)
        return sizes

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        _, lengths = tokens(batch)
        states = states_at(self.hidden_states(batch), last(lengths))
        with self.encoder.loras.over([1] * len(lengths)):
            no, yes = self._head[HEAD](states).float().unbind(-1)
        return {SCORES.name: torch.sigmoid(yes - no).cpu().numpy()}


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> Qwen3VLRerankerAdapter:
    files = Qwen3VLEmbedding.read(directory)
    plan, page = plan_of(files), load_processor(spec, directory).page()
    model: Any = engine.load(files.directory, AutoModelForImageTextToText)
    ids = answers(files)
    keep_tokens(model, ids)
    encoder, vision = parts_of(model.model, plan, engine)
    encoder.loras.model.kept[HEAD] = ids
    return Qwen3VLRerankerAdapter(encoder, vision, model.get_output_embeddings(), files, page)


def answers(files: PageFiles) -> list[int]:
    """Return the tokens of no and of yes."""
    tokenizer = whole_tokenizer(files.directory)
    known = tokenizer.get_vocab()
    if not known.keys() >= set(ANSWERS):
        raise LoadError(
            f"the tokenizer in {files.directory} must have the tokens {' and '.join(ANSWERS)}", "unsupported"
        )
    return [known[word] for word in ANSWERS]
