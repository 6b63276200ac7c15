"""Directories that no other user can write: only from there is anything loaded, connected to or unpickled."""

import grp
import os
import pwd
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path


def private_directory(path: Path) -> Path:
    """`path` without links, made with mode 0700 where it is missing.

    PermissionError, with a line that says why, where another user could put something into it, or something else
    into its place.
    """
    links = [each for each in _upwards(path.absolute()) if each.is_symlink()]
    path = Path(os.path.realpath(path))
    above = [each for each in _upwards(path.parent) if each.exists()]
    for each in (*links, *above):
        _check(each, may_be_sticky=True)
    for each in reversed(_upwards(path)):
        with suppress(FileExistsError):
            each.mkdir(mode=0o700)
        if not each.is_dir():
            raise NotADirectoryError(f"{each} is not a directory")
    _check(path, may_be_sticky=False)
    return path


def temporary_directory() -> Path:
    """Where this user's programs of one machine meet that have no other place to; not made, not checked."""
    return Path(tempfile.gettempdir()) / f"sie-triton-{os.getuid()}"


def _upwards(path: Path) -> list[Path]:
    return [path, *path.parents]


def _check(path: Path, *, may_be_sticky: bool) -> None:
    """A sticky directory, such as /tmp, keeps others from exchanging what lies in it."""
    found = path.lstat()
    if found.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{path} belongs to user {found.st_uid}, who could put anything there")
    if stat.S_ISLNK(found.st_mode) or (may_be_sticky and found.st_mode & stat.S_ISVTX):
        return
    by_group = found.st_mode & stat.S_IWGRP and found.st_gid not in _private_groups(os.geteuid())
    if by_group or found.st_mode & stat.S_IWOTH:
        raise PermissionError(f"{path} can be written by other users; chmod go-w it")


@cache
def _private_groups(uid: int) -> frozenset[int]:
    """Root's, and the one of the user's name that nobody else is in, as many systems give to each user."""
    with suppress(KeyError):
        user = pwd.getpwuid(uid)
        group = grp.getgrgid(user.pw_gid)
        if group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}:
            return frozenset({0, group.gr_gid})
    return frozenset({0})
