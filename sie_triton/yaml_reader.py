"""Parse hand-written YAML (model files and the settings file) into plain values.

Stricter than PyYAML's safe loader: a key may occur once in a mapping, and depth and size have limits.
"""

import re
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

# Limits of one text. The largest model file of the package has 96 nodes, five deep.
MAX_CHARACTERS = 200_000
MAX_DEPTH = 50
MAX_NODES = 20_000

SURROGATE = re.compile(r"[\ud800-\udfff]")


def read_yaml(text: str) -> Any:
    """Return the value of `text`; yaml.YAMLError or ValueError gives the fault and its line."""
    if len(text) > MAX_CHARACTERS:
        raise yaml.YAMLError(f"longer than {MAX_CHARACTERS} characters")
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


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
        if isinstance(node, ScalarNode) and SURROGATE.search(node.value):
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


def _refusal(place: Any, problem: str) -> yaml.YAMLError:
    return yaml.YAMLError(f"line {_line(place)}: {problem}")


def _line(place: Any) -> int:
    return int(place.start_mark.line) + 1
