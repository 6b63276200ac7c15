"""A step accepts data from the step before it only, by a seal."""

from sie_triton.pipeline.stages.seal import SEAL_BYTES, Seal


def test_a_seal_is_of_its_bytes_and_their_sender(tmp_path):
    seal = Seal(tmp_path)
    of_a = seal.of(b"bytes", b"a")
    assert len(of_a) == SEAL_BYTES
    assert seal.is_of(of_a, b"bytes", b"a")
    assert not seal.is_of(of_a, b"byteS", b"a")
    assert not seal.is_of(of_a, b"bytes", b"b")
    assert not seal.is_of(bytes(SEAL_BYTES), b"bytes", b"a")
    assert not seal.is_of(of_a[:-1], b"bytes", b"a")


def test_processes_of_one_directory_share_a_key_that_only_this_user_can_read(tmp_path, own_keys):
    first, again = Seal(tmp_path), Seal(tmp_path)
    (tmp_path / "other").mkdir()
    of_first = first.of(b"bytes", b"a")
    assert again.is_of(of_first, b"bytes", b"a")
    assert not Seal(tmp_path / "other").is_of(of_first, b"bytes", b"a")
    assert (tmp_path / "seal.key").stat().st_mode & 0o077 == 0
