import os

import pytest

from sie_triton.system.host.files import write_atomically


def test_a_reader_that_has_a_file_open_keeps_its_old_content(tmp_path):
    path = tmp_path / "record"
    write_atomically(path, "old", mode=0o600)
    with path.open() as file:
        write_atomically(path, b"new", mode=0o600)
        assert (file.read(), path.read_text(), path.stat().st_mode & 0o777) == ("old", "new", 0o600)


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "record"
    write_atomically(path, "old")
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: os.close(-1))
    with pytest.raises(OSError, match="Bad file descriptor"):
        write_atomically(path, "new")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]
