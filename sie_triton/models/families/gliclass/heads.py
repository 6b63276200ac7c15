"""GLiClass's heads: states of rows → a logit for each of their labels. Torch.

Attribute names are those of gliclass's checkpoints. Labels of all rows stand one after another; `rows` gives the row of
each.
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers.activations import ACT2FN

ACTIVATIONS = ACT2FN

# Constants of gliclass's scorers, which config.json does not change.
MLP_SIZE = 256
HOPFIELD_BETA = 4

# [tokens, d] → [d].
POOLINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "first": lambda states: states[0],
    "last": lambda states: states[-1],
    "avg": lambda states: states.mean(0),
    "max": lambda states: states.amax(0),
    "sum": lambda states: states.sum(0),
    "rms": lambda states: states.pow(2).mean(0).sqrt(),
    "abs_max": lambda states: states.abs().amax(0),
    "abs_avg": lambda states: states.abs().mean(0),
}


class Projector(nn.Module):
    def __init__(self, width: int, size: int, activation: str) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = nn.Linear(width, size), nn.Linear(size, width)
        self._activation = ACT2FN[activation]

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.linear_2(self._activation(self.linear_1(states)))
        return projected


class Scorer(nn.Module):
    """Scorer of labels: texts [rows, d], labels [k, d], rows int64 [k] → [k]."""

    def __init__(self, size: int) -> None:
        super().__init__()

    def forward(self, texts: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return (texts[rows] * labels).sum(-1)


class WeightedDot(Scorer):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.proj_text, self.proj_label = nn.Linear(size, 2 * size), nn.Linear(size, 2 * size)
        self.out_mlp = nn.Sequential(nn.Linear(3 * size, 4 * size), nn.Identity(), nn.ReLU(), nn.Linear(4 * size, 1))

    def forward(self, texts: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        text, text_gate = self.proj_text(texts)[rows].chunk(2, -1)
        label, label_gate = self.proj_label(labels).chunk(2, -1)
        scores: torch.Tensor = self.out_mlp(torch.cat([text, label, text_gate * label_gate], -1))[:, 0]
        return scores


class Mlp(Scorer):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.mlp = three_layers(2 * size)

    def forward(self, texts: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.mlp(torch.cat([texts[rows], labels], -1))[:, 0]
        return scores


class Hopfield(Scorer):
    """A scorer in which the labels of a row compete for its text."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(size, size, bias=False) for _ in range(3))
        self.mlp = three_layers(size)

    def forward(self, texts: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        weights = HOPFIELD_BETA * (self.q_proj(labels) * self.k_proj(texts)[rows]).sum(-1)
        counts = torch.bincount(rows, minlength=len(texts)).tolist()
        shares = torch.cat([of_row.softmax(0) for of_row in weights.split(counts)])
        scores: torch.Tensor = self.mlp(labels + shares[:, None] * self.v_proj(texts)[rows])[:, 0]
        return scores


def three_layers(width: int) -> nn.Sequential:
    middle = MLP_SIZE // 2
    return nn.Sequential(
        nn.Linear(width, MLP_SIZE), nn.ReLU(), nn.Linear(MLP_SIZE, middle), nn.ReLU(), nn.Linear(middle, 1)
    )


SCORERS: dict[str, type[Scorer]] = {"simple": Scorer, "weighted-dot": WeightedDot, "mlp": Mlp, "hopfield": Hopfield}
