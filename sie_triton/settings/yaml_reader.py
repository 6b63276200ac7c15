"""Parse hand-written YAML (model files and the settings file) into plain values.

Stricter than PyYAML's safe loader: a key may occur once in a mapping, and depth and size have limits.
"""

import re
from typing import Any
from unicodedata import combining, east_asian_width

import yaml
from yaml.error import MarkedYAMLError
from yaml.nodes import MappingNode, Node, ScalarNode

# Limits of one text. The largest model file of the package has 96 nodes, five deep.
MAX_CHARACTERS = 200_000
MAX_DEPTH = 50
MAX_NODES = 20_000


def read_yaml(text: str) -> Any:
    """Return the value of `text`; yaml.YAMLError gives the fault, its place, and the line with a caret below it."""
    if len(text) > MAX_CHARACTERS:
        raise yaml.YAMLError(f"longer than {MAX_CHARACTERS} characters")
    try:
        return yaml.load(text, _Loader)  # noqa: S506  # a safe loader
    except MarkedYAMLError as exc:
        raise yaml.YAMLError(_described(exc)) from exc
    except (yaml.YAMLError, ValueError) as exc:
        raise yaml.YAMLError(_folded(exc)) from exc


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with limits, which are checked while nodes are composed, before values are constructed.

    An alias counts with the full size of its target, because code that walks the value visits the target each time.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._num_nodes = 0
        self._sizes: dict[int, int] = {}  # of composed nodes, by id

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if self._depth == MAX_DEPTH:
            raise _refusal(event, f"nested too deeply; at most {MAX_DEPTH} levels are allowed")
        before = self._num_nodes
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, ScalarNode) and re.search(r"[\ud800-\udfff]", node.value):
            raise _refusal(event, "the text contains a lone surrogate; write the character itself")
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._sizes:
                raise _refusal(event, f"the alias *{event.anchor} is part of its own target")
            self._num_nodes += self._sizes[id(node)]
        else:
            self._num_nodes += 1
            self._sizes[id(node)] = self._num_nodes - before
        if self._num_nodes > MAX_NODES:
            raise _refusal(event, f"holds more than {MAX_NODES} values; each use of an alias counts")
        return node

    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key in (key for key, _ in node.value if isinstance(key, ScalarNode)):
            name = key.tag, key.value
            if name in lines:
                raise _refusal(key, f"{key.value} occurs twice, first in line {lines[name]}; keep one of them")
            lines[name] = _line(key)
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (AttributeError, LookupError, TypeError) as exc:  # PyYAML does not check a value against its tag
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            raise _refusal(node, f"the value does not fit its tag {tag}") from exc


def _refusal(place: Any, problem: str) -> MarkedYAMLError:
    return MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


def _described(error: MarkedYAMLError) -> str:
    """Return the fault in one line and, below it, the text's line and a caret."""
    mark, began = error.problem_mark, error.context_mark
    snippet = mark.get_snippet(indent=0, max_length=75) if mark else None
    if mark is None or snippet is None:
        return _folded(error)
    within = f" ({error.context}, which begins in line {began.line + 1})" if began else ""
    line, caret = snippet.split("\n")
    shown = "".join(letter if letter.isprintable() else " " for letter in line)
    width = sum(map(_width, shown[: len(caret) - 1]))
    place = f"line {mark.line + 1}, column {mark.column + 1}"
    return f"{place}: {_folded(error.problem)}{within}\n    {shown}\n    {' ' * width}^"


def _folded(problem: object) -> str:
    return " ".join(str(problem).split())[:300]


def _width(letter: str) -> int:
    """Return the columns that a letter takes in a terminal."""
    return 0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1


def _line(place: Any) -> int:
    return int(place.start_mark.line) + 1
