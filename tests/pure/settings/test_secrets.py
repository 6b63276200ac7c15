"""Secrets in files, which change while a server runs."""

import os

import pytest

from sie_triton.settings.secrets import checked, secret, tokens


def test_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("old")
    given = f"first, {checked(f'@{path}')}"
    assert tokens(given) == ("first", "old")
    path.write_text("new\nold\n")
    assert tokens(given) == ("first", "new", "old")


def test_a_link_that_points_elsewhere_is_read_again(tmp_path):
    """Kubernetes replaces a link to the directory of a mounted Secret; sizes and times may be equal."""
    link = tmp_path / "..data"
    for word in ("one", "two"):
        (tmp_path / word).mkdir()
        (tmp_path / word / "token").write_text(word)
        os.utime(tmp_path / word / "token", (1, 1))
    link.symlink_to("one")
    given = checked(f"@{link}/token")
    assert secret(given) == "one"
    (tmp_path / "new").symlink_to("two")
    (tmp_path / "new").rename(link)
    assert secret(given) == "two"


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff"])
def test_a_file_that_cannot_be_read_any_more_opens_nothing_and_closes_nothing(tmp_path, content):
    path = tmp_path / "token"
    path.write_text("right")
    given = checked(f"@{path}")
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert tokens(given) == ("right",)
    path.write_text("next")
    assert tokens(given) == ("next",)


def test_a_token_that_is_in_no_file_may_hold_any_character():
    assert secret(checked("pass,word @home")) == "pass,word @home"
