"""A small reranker with a pruning head, of fixed-seed weights, and an independent version of what SIE's adapter
computes.
"""

from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import save_file

from tests.support.models import save_cross_encoder, save_tokenizer

SIZE = 24


def save_pruner(root: Path, tokenizer: Path, architecture: str = "xlm-roberta") -> Path:
    """Save a pruner. Two separators stand between its texts, as XLM-RoBERTa has them."""
    directory = save_cross_encoder(root, tokenizer, architecture)
    with_separators = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    special = [(name, with_separators.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    with_separators.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] [SEP] $B [SEP]", special_tokens=special
    )
    (root / "separators").mkdir()
    with_separators.save(str(root / "separators" / "tokenizer.json"))
    save_tokenizer(directory, root / "separators", model_input_names=["input_ids", "attention_mask"])
    save_file(layers(), directory / "best.safetensors")
    return directory


def layers() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    sizes = {"classifier.0": (SIZE, 64), "classifier.3": (1, SIZE)}
    weights = {f"{name}.weight": 3 * torch.randn(shape) / shape[1] ** 0.5 for name, shape in sizes.items()}
    return {**weights, **{f"{name}.bias": 0.1 * torch.randn(shape[0]) for name, shape in sizes.items()}}


class Pruner:
    """Reference pruner for one passage at a time: a score, and (start, end, label, mean score) of each span."""

    def __init__(self, directory: Path) -> None:
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self._model = transformers.AutoModelForSequenceClassification.from_pretrained(directory).eval()
        self._head = torch.nn.Sequential(torch.nn.Linear(64, SIZE), torch.nn.GELU(), torch.nn.Linear(SIZE, 1))
        weights = layers()
        self._head.load_state_dict({name.split(".", 1)[1].replace("3.", "2."): w for name, w in weights.items()})

    @torch.inference_mode()
    def __call__(self, query: str, passage: str, prune: float = 0.6, highlight: float = 0.9) -> tuple[float, list[Any]]:
        inputs = self._tokenizer([query], [passage], return_tensors="pt", truncation=True, max_length=512)
        output = self._model(**inputs, output_hidden_states=True)
        scores = self._head(output.hidden_states[-1][0])[:, 0].sigmoid().tolist()
        ids = inputs["input_ids"][0].tolist()
        start = [i for i, token in enumerate(ids) if token == self._tokenizer.sep_token_id][1] + 1
        offsets = self._tokenizer(passage, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        spans: list[Any] = []
        for score, (first, end) in zip(scores[start:-1], offsets, strict=False):
            label = "highlight" if score >= highlight else "kept" if score >= prune else "pruned"
            if spans and spans[-1][2] == label and first <= spans[-1][1] + 1:
                spans[-1][1] = end
                spans[-1][3].append(score)
            else:
                spans.append([first, end, label, [score]])
        found = [(first, end, label, sum(scores) / len(scores)) for first, end, label, scores in spans]
        return float(output.logits[0, 0].sigmoid()), found
