"""MUVERA and quantisation against their formulas, written out slowly."""

import numpy as np
import pytest

from sie_triton.contract import SCORE_MODES
from sie_triton.contract.spec import MuveraConfig
from sie_triton.contract.transforms import Muvera, normalize, quantize, scales, similarity, truncate
from sie_triton.contract.transforms import muvera as module

DIM = 24
CONFIGS = [
    MuveraConfig(),
    MuveraConfig(num_repetitions=20, projection_dim=8),
    MuveraConfig(num_repetitions=3, num_simhash_projections=2, final_projection_dim=None),
    MuveraConfig(num_repetitions=5, projection_dim=8, final_projection_dim=None, seed=7),
    MuveraConfig(num_repetitions=4, normalize=True),
    MuveraConfig(num_repetitions=6, final_projection_dim=None, center_tokens=True),
]


def vectors(lengths, dim=DIM, seed=0):
    made = np.random.default_rng(seed).normal(size=(sum(lengths), dim)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def encoded_slowly(config, tokens, is_query):
    """Encode one item by the definition, in float64; return also its partitions and the projections nearest zero."""
    blocks, partitions, nearest = [], [], np.inf
    dim = tokens.shape[1]
    if config.center_tokens and len(tokens):
        tokens = tokens - tokens.mean(axis=0, dtype=np.float64)
    for repetition in range(config.num_repetitions):
        seed = config.seed + repetition
        planes = np.random.default_rng(seed).normal(0, 1, (dim, config.num_simhash_projections)).astype(np.float32)
        projected = tokens.astype(np.float64) @ planes.astype(np.float64)
        nearest = min(nearest, np.abs(projected).min(initial=np.inf))
        ranks = []
        for row in projected > 0:
            rank = 0
            for bit in row:
                rank = (rank << 1) + (int(bit) ^ (rank & 1))
            ranks.append(rank)
        partitions.append(ranks)
        values = tokens.astype(np.float64)
        if config.projection_dim:
            rng = np.random.default_rng(seed)
            places = rng.integers(0, config.projection_dim, size=dim)
            signs = rng.choice([-1, 1], size=dim)
            values = np.zeros((len(tokens), config.projection_dim))
            for i in range(dim):
                values[:, places[i]] += signs[i] * tokens[:, i]
        block = np.zeros((config.num_partitions, values.shape[1]))
        for rank in set(ranks):
            members = values[np.array(ranks) == rank]
            block[rank] = members.sum(0) if is_query else members.mean(0)
        blocks.append(block.ravel())
    full = np.concatenate(blocks)
    if config.final_projection_dim:
        rng = np.random.default_rng(config.seed)
        places = rng.integers(0, config.final_projection_dim, size=len(full))
        signs = rng.choice(np.array([-1, 1], np.float32), size=len(full))
        sketch = np.zeros(config.final_projection_dim)
        np.add.at(sketch, places, signs * full)
        full = sketch
    if config.normalize and full.any():
        full = full / np.linalg.norm(full)
    return full, np.array(partitions).T, nearest


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("is_query", [True, False])
@pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda c: f"{c.num_repetitions}-{c.projection_dim}-{c.final_projection_dim}"
)
def test_muvera_is_its_definition(config, is_query, native, monkeypatch):
    if not native:
        monkeypatch.setattr(module, "library", lambda _: None)
    lengths = np.array([5, 0, 70, 1], np.int32)
    tokens = vectors(lengths)
    muvera = Muvera(config, DIM)
    encodings = muvera.encode(tokens, lengths, is_query=is_query)
    partitions = muvera.partitions(module.centred(tokens, lengths) if config.center_tokens else tokens)
    assert encodings.shape == (4, config.dim(DIM))
    start = 0
    for row, length in zip(encodings, lengths, strict=True):
        item = slice(start, start + length)
        start += length
        expected, ranks, nearest = encoded_slowly(config, tokens[item], is_query)
        # No vector is so near a plane that rounding would decide, unless it equals the mean that is subtracted.
        assert nearest > 1e-6 or (config.center_tokens and length == 1)
        if length:
            np.testing.assert_array_equal(partitions[item], ranks)
        assert np.linalg.norm(row - expected) <= 1e-5 * max(np.linalg.norm(expected), 1e-30)


ROWS = np.array(
    [
        [0.1, -0.5, 0.25, 1e-8, 0.0, 0.49, -0.3, 0.7, 0.2],
        [0.0] * 9,
        [0.3] * 9,
        [np.nan, 1, -1, 0, 0, 0, 0, 0, 0.5],
        [3e38, -3e38, 1, 0, 0, 0, 0, 0, 0],
        [np.inf, 1, -1, 0, 0, 0, 0, 0, 0],
    ],
    np.float32,
)


def test_int8():
    got = quantize(ROWS, "int8").view(np.int8)
    for row, given in zip(got, np.nan_to_num(ROWS), strict=True):
        scale = np.abs(given).max() or np.float32(1)
        assert row.tolist() == [round(float(np.float32(x / scale) * np.float32(127))) for x in given]
    assert got[1].tolist() == [0] * 9
    assert got[2].tolist() == [127] * 9
    assert got[3].tolist() == [0, 127, -127, 0, 0, 0, 0, 0, 64]
    assert got[4][:2].tolist() == [127, -127]
    assert got[5][:2].tolist() == [127, 0]


def test_uint8():
    with np.errstate(divide="raise", invalid="raise"):
        got = quantize(ROWS, "uint8")
    low, high = ROWS[0].min(), ROWS[0].max()
    assert got[0].tolist() == [round(float((x - low) / (high - low) * np.float32(255))) for x in ROWS[0]]
    assert got[1].tolist() == [0] * 9
    assert got[2].tolist() == [0] * 9
    assert got[3].tolist() == [128, 255, 0, 128, 128, 128, 128, 128, 191]
    assert got[4][:2].tolist() == [255, 0]


@pytest.mark.parametrize(
    ("dtype", "view", "row", "halves"),
    [
        ("int8", np.int8, [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5], [127, 0, 2, 2, 0, -2, -2]),
        ("uint8", np.uint8, [0, 255, 0.5, 1.5, 2.5, 254.5], [0, 255, 0, 2, 2, 254]),
    ],
)
def test_halves_are_rounded_to_the_even_one(dtype, view, row, halves):
    assert quantize(np.array([row], np.float32), dtype).view(view).tolist() == [halves]


def test_zero_rows_stay_zero_when_normalized():
    with np.errstate(all="raise"):
        unit = normalize(np.array([[0, 0], [3, 4], [0, 0]], np.float32))
    np.testing.assert_allclose(unit, [[0, 0], [0.6, 0.8], [0, 0]], rtol=1e-6)
    assert truncate(unit, 1).shape == (3, 1)


@pytest.mark.parametrize(("dtype", "view"), [("int8", np.int8), ("uint8", np.uint8)])
def test_dequantized_rows_match_within_half_a_step(dtype, view):
    """Rows, huge ones included, return within half a step, and constant rows exactly."""
    step, offset = scales(ROWS, dtype).astype(np.float64).T[:, :, None]
    back = offset + step * quantize(ROWS, dtype).view(view)
    assert np.isfinite(scales(ROWS, dtype)).all()
    given = np.nan_to_num(ROWS).astype(np.float64)
    assert (np.abs(back - given) <= 0.5001 * step).all()
    np.testing.assert_allclose(back[1:3], given[1:3], rtol=1e-6)


def test_float16_and_bits():
    np.testing.assert_array_equal(quantize(ROWS, "float16").view("<f2"), ROWS.astype(np.float16))
    bits = quantize(ROWS, "ubinary")
    assert bits.shape == (6, 2)
    assert bits[0].tolist() == [0b10110101, 0b10000000]
    assert bits[3].tolist() == [0b01000000, 0b10000000]
    np.testing.assert_array_equal(quantize(ROWS, "binary"), bits)


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint8", "binary", "ubinary"])
def test_quantizing_no_rows_gives_no_rows(dtype):
    assert len(quantize(np.zeros((0, 16), np.float32), dtype)) == 0


def rows(rng, num_tokens, num_entries):
    return {
        "dense": rng.normal(size=8).astype(np.float32),
        "sparse_indices": np.sort(rng.choice(40, num_entries, replace=False)).astype(np.int32),
        "sparse_values": rng.random(num_entries).astype(np.float32),
        "multivector": rng.normal(size=(num_tokens, 4)).astype(np.float32),
    }


@pytest.mark.parametrize("query_size", [0, 5, 3000])
def test_similarity_by_its_definition(query_size):
    """Scores equal those in float64, a text at a time; some texts are empty, and one may take several blocks."""
    rng = np.random.default_rng(3)
    query = rows(rng, query_size, min(query_size, 30))
    texts = [rows(rng, size, min(size, 30)) for size in (7, 0, 1, 700, 0)]

    def slow(text):
        cosine = query["dense"] @ text["dense"] / np.linalg.norm(query["dense"]) / np.linalg.norm(text["dense"])
        known = dict(zip(query["sparse_indices"], query["sparse_values"].astype(float), strict=True))
        pairs = zip(text["sparse_indices"], text["sparse_values"].astype(float), strict=True)
        shared = sum(known.get(index, 0.0) * value for index, value in pairs)
        products = query["multivector"].astype(float) @ text["multivector"].astype(float).T
        best = products.max(axis=1).sum() if len(text["multivector"]) and query_size else 0.0
        return {
            "dense": cosine,
            "sparse": shared,
            "maxsim": best,
            "colbert": best / max(1, query_size),
            "hybrid": 0.4 * cosine + 0.2 * shared + 0.4 * best / max(1, query_size),
        }

    for mode in SCORE_MODES:
        scores = similarity(mode, query, texts)
        assert scores.dtype == np.float32
        np.testing.assert_allclose(scores, [slow(text)[mode] for text in texts], atol=1e-5)
