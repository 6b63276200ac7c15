"""Every output of encode through the whole server, by every client."""

import asyncio

import numpy as np
import pytest
import tritonclient.http as triton
from sentence_transformers import MultiVectorEncoder, SparseEncoder
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling

from benchmarks.texts import texts
from sie_triton import AsyncSIEClient, SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.contract.spec import MuveraConfig
from sie_triton.contract.transforms import Muvera, quantize
from sie_triton.errors import InputError
from tests.conftest import BGE_M3, COLBERT, CROSS_ENCODER, MINILM, MUVERA, RERANKER, SPLADE

TEXTS = ["", "Stop. Look, listen!", *texts(10, seed=5)]
VIEWS = {"float16": "<f2", "int8": "i1", "uint8": "u1", "binary": "i1", "ubinary": "u1"}


def directory_of(server, name):
    return str(server.settings.models_dir.parent / name / "model")


@pytest.mark.parametrize("is_query", [True, False])
def test_sparse(client, server, is_query):
    reference = SparseEncoder(directory_of(server, "splade"), device="cpu")
    expected = (reference.encode_query if is_query else reference.encode_document)(TEXTS).to_dense().numpy()
    results = client.encode(SPLADE, TEXTS, is_query=is_query)
    for result, row in zip(results, expected, strict=True):
        assert set(result) == {"sparse", "token_count", "timing"}
        indices, values = result["sparse"]["indices"], result["sparse"]["values"]
        dense = np.zeros_like(row)
        dense[indices] = values
        np.testing.assert_allclose(dense, row, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_query", [True, False])
def test_multivector_and_muvera(client, server, is_query):
    reference = MultiVectorEncoder(directory_of(server, "colbert"), device="cpu")
    expected = (reference.encode_query if is_query else reference.encode_document)(TEXTS)
    results = client.encode(COLBERT, TEXTS, is_query=is_query)
    muvera = Muvera(MuveraConfig(**MUVERA), 32)
    for result, rows in zip(results, expected, strict=True):
        np.testing.assert_allclose(result["multivector"], rows.numpy(), atol=2e-5)
        lengths = np.array([len(result["multivector"])], np.int32)
        (encoded,) = muvera.encode(result["multivector"], lengths, is_query=is_query)
        np.testing.assert_allclose(result["muvera"], encoded, atol=1e-5)


def test_fewer_vectors_of_documents(client, server):
    reference = MultiVectorEncoder(directory_of(server, "colbert"), device="cpu")
    text, options = TEXTS[-1], {"pool_factor": 2}
    pooled = client.encode(COLBERT, text, options=options)
    expected = reference.encode_document(text, token_pooling=HierarchicalTokenPooling(2)).numpy()
    assert pooled["multivector"].shape == expected.shape
    np.testing.assert_allclose(np.sort(pooled["multivector"], 0), np.sort(expected, 0), atol=2e-5)
    whole, same = (client.encode(COLBERT, text, is_query=True, options=each)["multivector"] for each in ({}, options))
    assert whole.shape == same.shape


def test_three_outputs_of_one_forward_pass(client, server):
    before = server.status(BGE_M3)["num_items"]
    (result,) = client.encode(BGE_M3, ["vines climb"])
    assert server.status(BGE_M3)["num_items"] == before + 1
    assert set(result) == {"dense", "sparse", "multivector", "token_count", "timing"}
    assert len(result["multivector"]) == result["token_count"] - 1
    for name in ("dense", "sparse", "multivector"):
        (alone,) = client.encode(BGE_M3, ["vines climb"], output_types=[name])
        ours, theirs = (r[name]["values"] if name == "sparse" else r[name] for r in (result, alone))
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_the_request_overrides_the_profiles_output_types(client):
    assert set(client.encode(BGE_M3, "a", profile="sparse")) == {"sparse", "token_count", "timing"}
    over = client.encode(BGE_M3, "a", profile="sparse", output_types=["dense"])
    assert set(over) == {"dense", "token_count", "timing"}
    with pytest.raises(InputError, match="profile: 'nope' is not allowed; give one of default, asking, sparse"):
        client.encode(BGE_M3, "a", profile="nope")


@pytest.mark.parametrize("dtype", VIEWS)
def test_quantised(client, dtype):
    for model, names in ((MINILM, ["dense"]), (COLBERT, ["multivector", "muvera"])):
        plain, small = client.encode(model, TEXTS), client.encode(model, TEXTS, output_dtype=dtype)
        for name in names:
            for given, row in zip(plain, small, strict=True):
                rows, got = np.atleast_2d(given[name]), np.atleast_2d(row[name])
                assert got.dtype == np.dtype(VIEWS[dtype])
                exact = quantize(rows, dtype).view(VIEWS[dtype])
                assert exact.any()
                assert got.shape == exact.shape
                assert share_that_differs(got, exact, dtype) < 0.01


def share_that_differs(got, exact, dtype):
    """Share of values that differ by more than the last bits. Passes in other company may round one step apart, and
    change the sign of values near zero.
    """
    if dtype == "float16":
        return np.mean(~np.isclose(got.astype(np.float32), exact.astype(np.float32), rtol=2**-10, atol=1e-5))
    if dtype in ("binary", "ubinary"):
        return np.unpackbits((got ^ exact).view(np.uint8)).mean()
    return np.mean(np.abs(got.astype(np.int32) - exact) > 1)


def test_scales_where_the_model_file_declares_them(client):
    for model, name in ((BGE_M3, "dense"), (COLBERT, "multivector"), (COLBERT, "muvera")):
        plain = client.encode(model, TEXTS, output_types=[name])
        small = client.encode(model, TEXTS, output_types=[name], output_dtype="uint8")
        for given, row in zip(plain, small, strict=True):
            assert set(row) == {name, f"{name}_scales", "token_count", "timing"}
            step, offset = np.moveaxis(row[f"{name}_scales"], -1, 0)[..., None]
            assert (np.abs(offset + step * row[name] - given[name]) <= 0.51 * step + 1e-5).all()
    assert "dense_scales" not in client.encode(MINILM, "a", output_dtype="uint8")
    assert "dense_scales" not in client.encode(BGE_M3, "a", output_dtype="float16")


def test_dimensions_are_cut_normalised_and_then_quantised(client):
    (plain,) = client.encode(MINILM, ["a"])
    (small,) = client.encode(MINILM, ["a"], output_dtype="int8", options={"dimensions": 128})
    cut = plain["dense"][:128] / np.linalg.norm(plain["dense"][:128])
    assert np.abs(small["dense"] - quantize(cut[None], "int8").view(np.int8)[0].astype(int)).max() <= 1


def test_raw_tensors_of_unrequested_outputs_are_empty(server):
    with triton.InferenceServerClient(server.http) as client:
        text = triton.InferInput("text", [1], "BYTES")
        text.set_data_from_numpy(np.array([b"a"], object))
        parameters = {"output_types": "muvera", "output_dtype": "int8"}
        response = client.infer(triton_name(COLBERT), [text], parameters=parameters)
    shapes = {name: response.as_numpy(name).shape for name in ("multivector", "multivector_lengths", "muvera")}
    assert shapes == {"multivector": (0, 0), "multivector_lengths": (0,), "muvera": (0, 0)}
    assert response.as_numpy("muvera_quantized").shape == (1, 512)


def test_mixed_traffic_of_all_outputs(server):
    kinds = [
        (MINILM, {}),
        (MINILM, {"output_dtype": "int8"}),
        (SPLADE, {}),
        (SPLADE, {"is_query": True}),
        (COLBERT, {"is_query": True}),
        (COLBERT, {"output_types": ["muvera"]}),
        (COLBERT, {"output_dtype": "float16"}),
        (BGE_M3, {}),
        (BGE_M3, {"output_types": ["sparse"]}),
    ]
    scored, few = [CROSS_ENCODER, RERANKER, COLBERT, BGE_M3], TEXTS[:4]
    work = [(model, text, options) for text in few for model, options in kinds]

    async def ask() -> list:
        async with AsyncSIEClient(server.grpc) as client:
            places = asyncio.Semaphore(32)

            async def encode(model, text, options):
                async with places:
                    return await client.encode(model, text, **options)

            async def score(model, query):
                async with places:
                    return await client.score(model, query, TEXTS)

            encoded = asyncio.gather(*(encode(*each) for each in work))
            ranked = asyncio.gather(*(score(model, query) for query in few for model in scored))
            return await encoded, await ranked

    encoded, ranked = asyncio.run(ask())
    with SIEClient(server.grpc) as client:
        alone = [client.encode(model, text, **options) for model, text, options in work]
        for mixed, (query, model) in zip(ranked, [(q, m) for q in few for m in scored], strict=True):
            both = (client.score(model, query, TEXTS), mixed)
            first, second = ({each["item_id"]: each["score"] for each in result["scores"]} for result in both)
            assert first == pytest.approx(second, rel=1e-3, abs=1e-4)
    for single, mixed in zip(alone, encoded, strict=True):
        assert set(single) == set(mixed)
        for name in set(single) - {"timing", "token_count", "truncated", "sparse"}:
            assert single[name].shape == mixed[name].shape
            difference = np.abs(single[name].astype(np.float32) - mixed[name].astype(np.float32))
            assert difference.max() <= (1 if single[name].dtype == np.int8 else 2e-3)
        if "sparse" in single:
            assert set(single["sparse"]["indices"]) ^ set(mixed["sparse"]["indices"]) == set()
            np.testing.assert_allclose(single["sparse"]["values"], mixed["sparse"]["values"], rtol=1e-4, atol=1e-5)
