"""A pass on a GPU: one upload, one download, and no synchronisation in between."""

import functools

import numpy as np
import pytest
import torch

from sie_triton.engines.torch.attention import Segments
from sie_triton.engines.torch.cuda_graphs import CapturedPasses
from sie_triton.engines.torch.transfers import Indices, downloaded
from tests.support.gpu_passes import FAMILIES, LENGTHS, PACKED, batch_of, dense, modules_of, run, splade
from tests.support.pretended_gpu import DEVICE, OnDevice, PretendedGpu

CPU = torch.device("cpu")

# Only the GPU knows the number of non-zero entries.
COUNTED_THERE = {"splade": ("usd", {"nonzero": 1})}

BATCHES = {
    "items": batch_of(),
    "one item": batch_of([17]),
    "prompts": batch_of(prompt=2),
    "long prompts": batch_of(prompt=20),
}


def assert_alike(found, expected):
    assert found.keys() == expected.keys()
    for name, rows in found.items():
        assert rows.dtype == expected[name].dtype
        np.testing.assert_allclose(rows, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_pass_waits_for_its_download_alone(name, batch):
    make, batch = FAMILIES[name], BATCHES[batch]
    rows, book = run(make, batch)
    order, waits = COUNTED_THERE.get(name, ("ud", {}))
    assert (book.order, dict(book.waits), book.uploads) == (order, waits, [False])
    assert_alike(rows, make(None, 2).forward(batch))


@pytest.mark.parametrize("architecture", PACKED)
def test_every_architecture_uploads_and_downloads_once(architecture):
    _, book = run(functools.partial(dense, architecture=architecture), batch_of())
    assert (book.order, book.uploads) == ("ud", [False])


def test_rows_that_are_padded_are_uploaded_together():
    """The library checks once per group whether the mask hides anything."""
    rows, book = run(functools.partial(dense, path="padded"), batch_of())
    assert (book.uploads, book.downloads) == ([False], 1)
    assert book.waits == {"_local_scalar_dense": 4}
    assert_alike(rows, dense(None, 2, path="padded").forward(batch_of()))


def test_query_lookup_tables_are_read_on_the_gpu():
    """Every other item is a query, encoded by a table lookup on the GPU."""

    def with_table(gpu, layers):
        adapter = splade(gpu, layers)
        idf = torch.rand(adapter.encoder.vocab_size, generator=torch.Generator().manual_seed(0))
        adapter._idf = idf if gpu is None else OnDevice(idf)
        return adapter

    rows, book = run(with_table, batch_of())
    assert (book.order, book.uploads) == ("usd", [False])
    assert_alike(rows, with_table(None, 2).forward(batch_of()))


def test_a_recorded_pass_uploads_and_downloads_once():
    gpu, batch = PretendedGpu(), batch_of()
    adapter = dense(gpu, 2, "weightedmean")
    with gpu.holding(*modules_of(adapter)):
        adapter.encoder.graph = CapturedPasses(adapter.encoder, lambda: lambda run: run)
        adapter.encoder.graph.max_tokens = 256
        adapter.forward(batch)
        book = gpu.opened()
        rows = adapter.forward(batch)
    assert (book.order, book.uploads) == ("ud", [False])
    assert "varlen" not in book.kernels
    assert_alike(rows, dense(None, 2, "weightedmean").forward(batch))


@pytest.mark.parametrize("device", [CPU, DEVICE], ids=str)
def test_kernels_get_bounds_and_keys(device):
    segments = Segments.of(LENGTHS, (5, 1, 30, 17, 2))
    gpu = PretendedGpu()
    with gpu:
        offsets, keys = segments.offsets(device), segments.num_keys(device)
        assert segments.offsets(device) is offsets
        found = [each.cpu() for each in (offsets, keys)]
    assert [each.tolist() for each in found] == [[0, 5, 6, 46, 63, 80], [5, 1, 30, 17, 2]]
    assert {each.dtype for each in found} == {torch.int32}
    assert gpu.book.uploads == [False] * (device == DEVICE)


def test_arrays_of_all_types_and_shapes_travel_together():
    arrays = [
        np.arange(3, dtype=np.int32),
        np.arange(6, dtype=np.int64).reshape(2, 3)[:, ::2],
        np.empty(0, np.int64),
        np.array([True, False, True]),
        np.array([7], np.int64),
    ]
    gpu = PretendedGpu()
    with gpu:
        some, others, none = Indices(*arrays[:2]), Indices(*arrays[2:]), Indices()
        Indices.upload([some, others, none], DEVICE)
        there = [*some.on(DEVICE), *others.on(DEVICE), *none.on(DEVICE)]
        assert all(isinstance(each, OnDevice) for each in there)
        found = [each.cpu().numpy() for each in there]
    assert gpu.book.uploads == [False]
    for array, came in zip(arrays, found, strict=True):
        assert came.dtype == array.dtype
        assert came.tolist() == array.tolist()


def test_numbers_of_both_types_come_back_together():
    tensors = torch.arange(6.0).reshape(2, 3).T, torch.arange(3, dtype=torch.int32), torch.empty(0, 4)
    gpu = PretendedGpu()
    with gpu:
        found = downloaded(*(tensor.to(DEVICE) for tensor in tensors))
    assert gpu.book.downloads == 1
    for tensor, came, here in zip(tensors, found, downloaded(*tensors), strict=True):
        np.testing.assert_array_equal(came, here, strict=True)
        assert came.tolist() == tensor.tolist()
