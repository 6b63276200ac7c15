"""The forward pass of LLM rerankers: a causal language model's logits of yes and no for the next token."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from sie_triton.checkpoints.modules import TextFiles
from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, SCORES
from sie_triton.engines.torch.encoder import TorchEncoder
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.heads import TokenHead, last, states_at
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.llm_reranker import RerankerOptions
from sie_triton.models.families.llm_reranker.processor import judgement_ids
from sie_triton.models.families.shared.token_batch import tokens


class RerankerAdapter(Adapter):
    """LLM reranker adapter. `head` gives two logits for each token, that of no and that of yes."""

    encoder: TorchEncoder

    def __init__(self, encoder: TorchEncoder, head: TokenHead, score_mode: str) -> None:
        super().__init__(encoder, limits={INPUT_IDS.name: encoder.vocab_size - 1})
        self._head = head
        self._is_probability = score_mode == "log_softmax"

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        input_ids, lengths = tokens(batch)
        places = last(lengths)
        states = states_at(self.encoder.hidden_states(input_ids, lengths, extra_indices=[places]), places)
        with self.encoder.loras.over([1] * len(lengths)):
            no, yes = self._head(states).float().unbind(-1)
        scores = torch.sigmoid(yes - no) if self._is_probability else yes - no
        return {SCORES.name: scores.cpu().numpy()}


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> RerankerAdapter:
    options = RerankerOptions.of(spec)
    files = TextFiles.read(directory)
    model = engine.load(files.transformer, AutoModelForCausalLM)
    ids = judgement_ids(options, files)
    kept = keep_tokens(model, ids)
    head = TokenHead(model)
    encoder = engine.encoder(head.encoder)
    encoder.loras.model.heads.append(model)
    encoder.loras.model.kept[kept] = ids
    engine.settle(encoder)
    return RerankerAdapter(encoder, head, options.score_mode)


def keep_tokens(model: torch.nn.Module, ids: list[int]) -> str:
    """Restrict the logits of `model` to these tokens; return the name of the new output layer."""
    whole = model.get_output_embeddings()  # type: ignore[operator]  # a PreTrainedModel
    part = torch.nn.Linear(whole.in_features, len(ids), bias=whole.bias is not None).to(whole.weight)
    part.weight.data = whole.weight[ids].detach().clone()
    if whole.bias is not None:
        part.bias.data = whole.bias[ids].detach().clone()
    model.set_output_embeddings(part)  # type: ignore[operator]
    names = [name for name, module in model.named_modules() if module is part]
    return str(names[0])
