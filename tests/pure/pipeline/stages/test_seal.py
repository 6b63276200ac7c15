"""A step accepts data from the step before it only, by a seal."""

from sie_triton.pipeline.stages.message import Seal


def test_processes_of_one_directory_share_a_key_that_only_this_user_can_read(tmp_path, own_keys):
    first, again = Seal(tmp_path), Seal(tmp_path)
    (tmp_path / "other").mkdir()
    of_first = first.of(b"bytes", b"a")
    assert again.is_of(of_first, b"bytes", b"a")
    assert not Seal(tmp_path / "other").is_of(of_first, b"bytes", b"a")
    assert (tmp_path / "seal.key").stat().st_mode & 0o077 == 0
