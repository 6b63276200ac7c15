"""Private directories, which no other user can write to: code, sockets and pickles are used from nowhere else."""

import grp
import os
import pwd
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

# Environment variable with directories that no other user can reach, separated by commas, such as the volumes of a Pod:
# Kubernetes makes them writable for everybody. Who may write to them is not checked.
TRUSTED = "SIE_TRUSTED_VOLUMES"


def private_directory(path: Path) -> Path:
    """Return `path` with symbolic links resolved, created with mode 0700 if missing.

    PermissionError, with the reason in one line, if another user could write into the directory or replace it.
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
    """Return this user's rendezvous directory below the temporary directory; it is neither created nor checked."""
    return Path(tempfile.gettempdir()) / f"sie-triton-{os.getuid()}"


def _upwards(path: Path) -> list[Path]:
    return [path, *path.parents]


def _check(path: Path, *, may_be_sticky: bool) -> None:
    """Raise PermissionError if another user owns `path` or can write to it.

    With `may_be_sticky`, a sticky directory such as /tmp is accepted: there, users cannot replace each other's files.
    """
    if str(path) in os.environ.get(TRUSTED, "").split(","):
        return
    found = path.lstat()
    if found.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{path} belongs to user {found.st_uid}, who could change its content")
    if stat.S_ISLNK(found.st_mode) or (may_be_sticky and found.st_mode & stat.S_ISVTX):
        return
    by_group = found.st_mode & stat.S_IWGRP and found.st_gid not in _private_groups(os.geteuid())
    if by_group or found.st_mode & stat.S_IWOTH:
        raise PermissionError(f"{path} can be written by other users; run chmod go-w on it")


@cache
def _private_groups(uid: int) -> frozenset[int]:
    """Return group 0, and the user's own group if it bears the user's name and has no other members."""
    with suppress(KeyError):
        user = pwd.getpwuid(uid)
        group = grp.getgrgid(user.pw_gid)
        if group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}:
            return frozenset({0, group.gr_gid})
    return frozenset({0})
