"""Scores of pairs by a family without a server."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.contract import Features
from tests.support.items import Served


class Scorer(Served):
    """A family's processor and adapter; `options` are those of the model file."""

    def __init__(self, family: str, directory: Path, max_length: int = 512, **options: Any) -> None:
        given = {"inputs": ("text",), "dims": {}, "tasks": ("score",), "max_sequence_length": max_length}
        super().__init__(family, directory, **given, options=options)

    def features(self, query: str, texts: Sequence[str], instruction: str | None = None) -> Features:
        question = self.processor.question(query, instruction)
        return self.processor.encode([question.around(text) for text in texts])

    def __call__(self, query: str, texts: Sequence[str], instruction: str | None = None) -> np.ndarray:
        sent = {"query": [query.encode()], "text": [text.encode() for text in texts]}
        (answer,) = self.together("score", [(sent, {} if instruction is None else {"instruction": instruction})])
        return answer["scores"]
