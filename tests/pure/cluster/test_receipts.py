"""Receipts that a sidecar leaves in its directory."""

import asyncio
from contextlib import ExitStack

import pytest
from nats.errors import OutboundBufferLimitError

from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.sidecar.deliveries import FILE, PLACE_BYTES, Receipts, give_back
from tests.support.queues import Queue


def receipt(number: int) -> str:
    return f"$JS.ACK.SIE_WORK_default.t__m.1.{number}.{number}.1700000000000000000.0"


def test_what_is_in_progress_is_left_to_the_next_one(tmp_path):
    first = Receipts(tmp_path)
    assert first.left == []
    with first.kept(receipt(1)):
        with first.kept(receipt(2)):
            pass
        with first.kept(receipt(3)):
            assert sorted(Receipts(tmp_path).left) == [receipt(1), receipt(3)]
    assert Receipts(tmp_path).left == []  # the one in between has taken them


@pytest.mark.parametrize(("ago_s", "is_given_back"), [(0.0, True), (4.5, False), (-1e6, False), (float("nan"), False)])
def test_only_what_is_still_this_workers_is_given_back(tmp_path, ago_s, is_given_back):
    """The queue has given it to another worker meanwhile, from which a receipt would take it away."""
    first, queue = Receipts(tmp_path), Queue()
    with first.kept(receipt(1)):
        second = Receipts(tmp_path)
        second.left_at -= ago_s
        asyncio.run(second.give_back(queue, SidecarLimits()))  # type: ignore[arg-type]
    assert queue.published == [(receipt(1), b"-NAK")] * is_given_back


def test_a_receipt_that_cannot_be_sent_holds_up_no_other_one():
    sent = []

    class Client:
        async def publish(self, subject: str, data: bytes) -> None:
            if subject == receipt(2):
                raise OutboundBufferLimitError
            sent.append(subject)

    asyncio.run(give_back(Client(), [receipt(1), receipt(2), receipt(3)]))  # type: ignore[arg-type]
    assert sent == [receipt(1), receipt(3)]


def test_places_are_used_again_and_too_many_receipts_are_not_kept(tmp_path):
    receipts = Receipts(tmp_path, num_places=2)
    for number in range(3):
        with receipts.kept(receipt(number)):
            pass
    with ExitStack() as stack:
        for number in range(3):
            stack.enter_context(receipts.kept(receipt(number)))
        assert len(Receipts(tmp_path).left) == 2


def test_a_receipt_that_is_too_long_is_not_kept(tmp_path):
    with Receipts(tmp_path).kept("x" * (PLACE_BYTES + 1)):
        assert Receipts(tmp_path).left == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 5000,
        b"x" + receipt(1).encode().rjust(PLACE_BYTES, b"\0"),
        b"$JS.ACK.SIE_WORK_default.t__m".ljust(PLACE_BYTES, b"\0"),
        b"sie.work.default.t__m".ljust(PLACE_BYTES, b"\0"),
        bytes(1025 * PLACE_BYTES) + receipt(1).encode(),
    ],
    ids=["empty", "no text", "no place", "cut off", "another subject", "behind the last place"],
)
def test_a_damaged_file_has_no_receipts(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    receipts = Receipts(tmp_path)
    assert receipts.left == []
    with receipts.kept(receipt(1)):
        assert Receipts(tmp_path).left == [receipt(1)]


def test_a_sidecar_starts_without_space_for_the_file(tmp_path, caplog):
    receipts = Receipts(tmp_path / "missing")
    with receipts.kept(receipt(1)):
        pass
    assert "cannot be written" in caplog.text
