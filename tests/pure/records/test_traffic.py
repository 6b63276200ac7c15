"""Traffic records: what a stage counts is what another process reads."""

import numpy as np
import pytest

from sie_triton.contract import VERBS as VERBS_OF_CONTRACT
from sie_triton.errors import BusyError, InputError, LoadError, SIEError
from sie_triton.records.status import StatusWriter, map_record
from sie_triton.records.traffic import (
    BATCH_ITEMS,
    HISTOGRAMS,
    LATENCY,
    MAX_VALUE,
    MS,
    VERBS,
    Traffic,
    quantile,
)


class OwnError(SIEError):
    """An error of somebody else's family."""

    kind = "own"


@pytest.fixture
def written(tmp_path):
    status = StatusWriter(tmp_path, "m", "postprocess", 0)
    return status.traffic, status._path


def total_of(path):
    traffic = Traffic()
    traffic.add(map_record(path))
    return traffic


def test_every_verb_has_a_row():
    assert {*VERBS} == {*VERBS_OF_CONTRACT}


@pytest.mark.parametrize("histogram", HISTOGRAMS, ids=lambda each: each.name)
def test_a_value_at_a_limit_belongs_to_the_bucket_below(written, histogram):
    writer, path = written
    for value in (histogram.limits[2], histogram.limits[2] + 1, 10 * histogram.limits[-1]):
        writer.observe({histogram: value}, "score" if histogram.of_verbs else "")
    ((verb, counts, total),) = total_of(path).rows(histogram)
    assert verb == ("score" if histogram.of_verbs else "encode")
    assert np.flatnonzero(counts).tolist() == [2, 3, len(histogram.bounds)]
    assert total == pytest.approx((2 * histogram.limits[2] + 1 + 10 * histogram.limits[-1]) / histogram.unit)


def test_verbs_are_told_apart_and_summed(written):
    writer, path = written
    writer.observe({LATENCY: 3 * MS}, "encode")
    writer.observe({LATENCY: 5 * MS}, "extract")
    traffic = total_of(path)
    assert [(verb, total) for verb, _, total in traffic.rows(LATENCY)] == [("encode", 0.003), ("extract", 0.005)]
    assert traffic.num_requests == 2
    traffic.add(map_record(path))
    assert traffic.num_requests == 4
    assert list(traffic.rows(BATCH_ITEMS)) == []


def test_errors_are_counted_by_kind(written):
    writer, path = written
    for error in (InputError("a"), InputError("b"), BusyError(), LoadError("", "gated"), OwnError()):
        writer.fail(error)
    assert total_of(path).errors == {"input": 2, "busy": 1, "load.gated": 1, "internal": 1}


def test_a_record_is_readable_after_its_file_is_gone(written):
    writer, path = written
    record = map_record(path)
    path.unlink()
    writer.observe({LATENCY: MS}, "encode")
    assert record[LATENCY.name].sum() == 1


@pytest.mark.parametrize("content", [b"", b"x" * 10, bytes(100_000)])
def test_other_files_are_not_records(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises((ValueError, OSError)):
        map_record(tmp_path / "a")


def test_quantiles_are_within_the_bucket_of_the_true_one():
    values = np.random.default_rng(0).lognormal(-4, 1, 10_000)
    counts = np.bincount(np.searchsorted(LATENCY.bounds, values), minlength=len(LATENCY.bounds) + 1)
    for share in (0.01, 0.5, 0.9, 0.99):
        found, true = quantile(counts.tolist(), LATENCY.bounds, share), np.quantile(values, share)
        bucket = np.searchsorted(LATENCY.bounds, true)
        assert LATENCY.bounds[bucket - 1] <= found <= LATENCY.bounds[bucket]


def test_values_that_no_record_can_hold_are_counted_as_the_largest(written):
    writer, path = written
    for value in (10**30, -(10**30), MAX_VALUE):
        writer.observe({LATENCY: value}, "encode")
    assert total_of(path).sums(LATENCY).tolist() == [2 * MAX_VALUE, 0, 0]
