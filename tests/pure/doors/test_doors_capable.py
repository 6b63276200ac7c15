"""The default model of requests that name none; Triton is a double."""

import asyncio
from types import SimpleNamespace

import pytest

from sie_triton.client.failures import NotServed
from sie_triton.contract.spec import ModelSpec
from sie_triton.doors.failures import Failure
from sie_triton.doors.model_choice import DENSE_VECTORS, SCORES, SPARSE_VECTORS, Capable
from sie_triton.errors import Unreachable
from sie_triton.settings import Settings


def spec(model, *tasks, inputs=("text",), **dims):
    return ModelSpec(model, "there", "family", dims, 512, 1024, inputs=inputs, tasks=tasks)


EMBEDDER, OTHER = spec("a/embedder", "encode", dense=8), spec("a/other", "encode", dense=8, sparse=100)
RERANKER, PICTURES = spec("a/reranker", "score"), spec("a/pictures", "encode", inputs=("image",), dense=8)


class Triton:
    """Backend of a door that serves these models, and the door's knowledge of it."""

    grpc_port = 0

    def __init__(self, *specs):
        self._specs, self.is_away = {spec.model: spec for spec in specs}, False
        self.num_looks = 0

    async def names(self):
        self.num_looks += 1
        return [*self._specs]

    async def specs(self):
        return [*self._specs.values()]

    async def specs_of(self, names):
        return [await self.spec(name) for name in names if name in self._specs or self.is_away]

    async def spec(self, model):
        if self.is_away:
            raise Unreachable("nobody answers")
        if model not in self._specs:
            raise NotServed("unknown model")
        return self._specs[model]


def models_of(triton, *whats, named=""):
    able = Capable(SimpleNamespace(backend=triton, served=triton, settings=Settings(door_tei_model=named)))

    async def found():
        return [(await able.spec(what)).model for what in whats]

    return asyncio.run(found())


def test_the_only_capable_model_is_chosen():
    assert models_of(Triton(EMBEDDER, RERANKER, PICTURES), DENSE_VECTORS, SCORES) == ["a/embedder", "a/reranker"]


def test_the_first_capable_model_of_the_setting_is_chosen():
    triton = Triton(EMBEDDER, OTHER, RERANKER)
    assert models_of(triton, DENSE_VECTORS, SPARSE_VECTORS, named="a/reranker,a/other,a/embedder") == [
        "a/other",
        "a/other",
    ]


@pytest.mark.parametrize(
    ("what", "named", "message"),
    [
        (DENSE_VECTORS, "", "several models return dense vectors: a/embedder, a/other; set SIE_DOOR_TEI_MODEL"),
        (SCORES, "", "no served model returns scores"),
        (SCORES, "a/embedder,a/gone", "SIE_DOOR_TEI_MODEL: none of a/embedder, a/gone is served and returns scores"),
    ],
)
def test_an_ambiguous_model_is_refused_with_the_setting_to_set(what, named, message):
    with pytest.raises(Failure, match=f"^{message}"):
        models_of(Triton(EMBEDDER, OTHER), what, named=named)


def test_several_models_of_the_first_kind_do_not_leave_its_requests_to_another_kind():
    """The route without a name, /info and the tokenizer's routes take the same model, or name the same problem."""
    triton = Triton(EMBEDDER, OTHER, RERANKER)
    able = Capable(SimpleNamespace(backend=triton, served=triton, settings=Settings()))
    with pytest.raises(Failure, match="several models return dense vectors"):
        asyncio.run(able.default())


def test_one_look_at_the_served_models_finds_the_kind_of_result():
    triton = Triton(PICTURES, RERANKER)
    able = Capable(SimpleNamespace(backend=triton, served=triton, settings=Settings()))
    assert asyncio.run(able.default()) == (SCORES, RERANKER)
    assert triton.num_looks == 1


def test_an_unreachable_triton_is_not_reported_as_a_missing_model():
    triton = Triton(EMBEDDER)
    triton.is_away = True
    with pytest.raises(Unreachable):
        models_of(triton, DENSE_VECTORS)
