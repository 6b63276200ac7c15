"""score: rate how relevant each item is to a query."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sie_triton.contract.arrays import Ints
from sie_triton.contract.model import Model, Part, Rows
from sie_triton.contract.outputs import SCORE_MODES
from sie_triton.contract.parameters import Parameter
from sie_triton.contract.spec import Profile
from sie_triton.contract.tensors import IMAGE, QUERY, QUERY_IMAGE, SCORES, TEXT, Tensor
from sie_triton.contract.transforms import similarity
from sie_triton.contract.verb import Options, Verb, common_parameters, item_tensors, items_of, without_empty
from sie_triton.errors import InputError

# Kind of input → tensor of the query.
QUERIES = {TEXT.name: QUERY.name, IMAGE.name: QUERY_IMAGE.name}


class Score(Verb):
    """Scores items against a query: reads both together or, if the model has score modes, compares their outputs."""

    name = "score"

    def example(self, model: Model) -> Mapping[str, Sequence[str]]:
        return {QUERY.name: ["What is it?"], TEXT.name: ["It is this.", "No."]}

    def inputs(self, kinds: Sequence[str]) -> tuple[Tensor, ...]:
        if IMAGE.name not in kinds:
            return (QUERY, *item_tensors(kinds))
        return (replace(QUERY, optional=True), QUERY_IMAGE, *item_tensors(kinds))

    def parameters(self, model: Model) -> tuple[Parameter, ...]:
        modes = model.spec.score_modes
        mode = Parameter("score_mode", str, modes, doc="how query and items are compared")
        return (*common_parameters(model), *([mode] if len(modes) > 1 else []))

    def outputs(self, model: Model) -> tuple[Tensor, ...]:
        return (SCORES,)

    def forwarded(self, model: Model) -> tuple[Tensor, ...]:
        return (SCORES,)

    def computed(self, model: Model) -> tuple[Tensor, ...]:
        types = {name for mode in model.spec.score_modes for name in SCORE_MODES[mode]}
        return model.tensors(frozenset(types)) or (SCORES,)

    def read(self, sent: Mapping[str, Sequence[Any]], given: Options, profile: Profile, model: Model) -> list[Part]:
        kinds, instruction = model.spec.inputs, self.instruction(given, profile)
        (name, items), query = items_of(sent, kinds), query_of(sent, kinds)
        options = {**profile.parameters, **given}
        if model.scores_pairs:
            return [Part(name, items, profile, None, instruction, query, options=options)]
        asking = Part(QUERY.name, [query], profile, True, instruction, options=options)
        return [Part(name, items, profile, False, profile.instruction, options=options), asking]

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
    """Return the score mode; empty if the model reads query and text together."""
    modes = model.spec.score_modes
    return str(options.get("score_mode", modes[0])) if modes else ""


def query_of(sent: Mapping[str, Sequence[Any]], kinds: Sequence[str]) -> Any:
    """Return the query of a score request: a text, or an item if the model reads several kinds.

    Raise InputError unless there is exactly one.
    """
    given = {kind: sent.get(name, ()) for kind, name in QUERIES.items()}
    for kind, elements in given.items():
        if len(elements) > 1 or not any(given.values()):
            raise InputError.at(
                QUERIES[kind],
                f"has {len(elements)} elements; send one query, and the items to score in the inputs for items",
            )
    if len(kinds) == 1:
        return given[TEXT.name][0]
    query = {kind: given[kind][0] for kind in kinds if given.get(kind)}
    return without_empty(query, QUERY.name, query.keys() == {TEXT.name})
