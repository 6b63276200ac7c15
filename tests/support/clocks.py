"""A clock that a test sets."""


class Clock:
    """`now` is in seconds, or in what the tested code counts."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now
