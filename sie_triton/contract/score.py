"""score: how relevant each item is to a query."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sie_triton.contract.model import Ints, Model, Part, Rows
from sie_triton.contract.outputs import SCORE_MODES
from sie_triton.contract.parameters import Parameter
from sie_triton.contract.tensors import ITEMS, QUERY, SCORES, TEXT, Tensor
from sie_triton.contract.verb import Options, Verb, common_parameters
from sie_triton.errors import InputError
from sie_triton.spec import Profile
from sie_triton.transforms import similarity


class Score(Verb):
    """Query and text are read together, or, where the model has score modes, their outputs are compared."""

    name = "score"

    def example(self, model: Model) -> Mapping[str, Sequence[str]]:
        return {QUERY.name: ["What is it?"], TEXT.name: ["It is this.", "No."]}

    def inputs(self, kinds: Sequence[str]) -> tuple[Tensor, ...]:
        return (QUERY, *(ITEMS[kind] for kind in kinds))

    def parameters(self, model: Model) -> tuple[Parameter, ...]:
        modes = model.spec.score_modes
        mode = Parameter("score_mode", str, modes, doc="what the score is made of, where the model has several")
        return (*common_parameters(model), *([mode] if len(modes) > 1 else []))

    def outputs(self, model: Model) -> tuple[Tensor, ...]:
        return (SCORES,)

    def forwarded(self, model: Model) -> tuple[Tensor, ...]:
        return (SCORES,)

    def computed(self, model: Model) -> tuple[Tensor, ...]:
        types = {name for mode in model.spec.score_modes for name in SCORE_MODES[mode]}
        return model.tensors(frozenset(types)) or (SCORES,)

    def read(self, sent: Mapping[str, Sequence[Any]], given: Options, profile: Profile, model: Model) -> list[Part]:
        _, tensor = self.inputs(model.spec.inputs)
        query, items = only(sent[QUERY.name]), sent[tensor.name]
        own = profile.instruction
        asked = given.get("instruction", own)
        instruction = None if asked is None else str(asked)
        if model.scores_pairs:
            return [Part(tensor.name, items, profile, None, instruction, query)]
        return [Part(tensor.name, items, profile, False, own), Part(QUERY.name, [query], profile, True, instruction)]

    def needed(self, model: Model, options: Options) -> frozenset[str]:
        mode = _mode(model, options)
        return frozenset(SCORE_MODES[mode] if mode else [SCORES.name])

    def sent(self, model: Model, options: Options) -> tuple[Tensor, ...]:
        return (SCORES,)

    def collect(self, model: Model, options: Options, rows: Sequence[Rows], num_pieces: Ints) -> Rows:
        mode = _mode(model, options)
        if not mode:
            return {SCORES.name: np.array([row[SCORES.name] for row in rows], np.float32)}
        *texts, query = rows
        return {SCORES.name: similarity(mode, query, texts)}

    def is_query(self, options: Options, num_elements: int, num_items: int) -> list[bool]:
        return [False] * num_items + [True] * (num_elements - num_items)


def _mode(model: Model, options: Options) -> str:
    """Empty where query and text are read together."""
    modes = model.spec.score_modes
    return str(options.get("score_mode", modes[0])) if modes else ""


def only(queries: Sequence[str]) -> str:
    """The one query of a request to score."""
    if len(queries) != 1:
        raise InputError(f"query: has {len(queries)} elements; send one, and its texts as text")
    return queries[0]
