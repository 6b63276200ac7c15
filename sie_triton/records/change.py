"""A change of the models that a running server serves: its result, or why it is refused.

controller → pipeline/render/refresh.py, in a child process → a ChangeOutcome as JSON → controller
"""

from dataclasses import dataclass, field

from sie_triton.errors import ServerError

# Reasons for refusing a change: the model file is invalid, its name is taken, the model does not exist.
WRONG, CONFLICT, UNKNOWN = "wrong", "conflict", "unknown"


class ChangeRefused(ServerError):
    """Raised for a change that cannot be made; `why` is WRONG, CONFLICT or UNKNOWN."""

    def __init__(self, why: str, reason: str) -> None:
        super().__init__(reason)
        self.why = why


@dataclass
class ChangeOutcome:
    """The result of a change, or of a scan of the model files. Models are given by their Triton names.

    For a model that a client adds or removes, `model` is its name. If the change was refused instead, `refused` is the
    kind of the error and `reason` its message. `unknown` maps each known model that cannot be served to the reason.
    """

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    model: str = ""
    refused: str = ""
    reason: str = ""

    def done_to(self, model: str) -> str:
        found = [name for name in ("added", "changed", "removed") if model in getattr(self, name)]
        return found[0] if found else "unchanged"
