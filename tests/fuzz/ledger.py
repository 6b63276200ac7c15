"""The case that a child runs, in a file that both processes map: it outlives the child."""

import mmap
import pickle
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

# Whether the child has begun, the numbers of cases that it has begun and ended, and the size of the latest.
HEAD = Struct("<qqqq")

# Largest case that is kept, in bytes; a sparse file takes what is written.
MAX_BYTES = 1 << 28


class State(NamedTuple):
    """Progress of a child. `num_begun` is larger than `num_ended` while a case runs."""

    has_begun: bool
    num_begun: int
    num_ended: int
    size: int

    @property
    def is_running(self) -> bool:
        return self.num_begun > self.num_ended


class Ledger:
    """The mapped file. The child writes it, the parent reads it."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(HEAD.size + MAX_BYTES)
            self._map = mmap.mmap(file.fileno(), HEAD.size + MAX_BYTES)

    @property
    def state(self) -> State:
        has_begun, *numbers = HEAD.unpack_from(self._map)
        return State(bool(has_begun), *numbers)

    def clear(self) -> None:
        HEAD.pack_into(self._map, 0, 0, 0, 0, 0)

    def ready(self) -> None:
        """Say that cases begin."""
        HEAD.pack_into(self._map, 0, 1, 0, 0, 0)

    def begin(self, case: Any) -> None:
        data = pickle.dumps(case)[:MAX_BYTES]
        self._map[HEAD.size : HEAD.size + len(data)] = data
        HEAD.pack_into(self._map, 0, 1, self.state.num_begun + 1, self.state.num_ended, len(data))

    def end(self) -> None:
        _, begun, _, size = HEAD.unpack_from(self._map)
        HEAD.pack_into(self._map, 0, 1, begun, begun, size)

    def case(self) -> bytes:
        """Return the latest case, pickled."""
        return self._map[HEAD.size : HEAD.size + self.state.size]

    def close(self) -> None:
        self._map.close()
