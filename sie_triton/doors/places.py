"""Places of the fields of requests to SIE's own routes. A field in another place is an error, never ignored."""

from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple, get_args

from sie_triton.contract.parameters import LONGEST_NAME, shown
from sie_triton.contract.tensors import AUDIO, DOCUMENT, IMAGE, TEXT
from sie_triton.doors.failures import invalid

ID, IMAGES, VIDEO, METADATA = "id", "images", "video", "metadata"

# Fields of an item. `metadata` belongs to SIE's protocol: clients keep notes of their own in it.
ITEM_KEYS = (ID, TEXT.name, IMAGE.name, IMAGES, AUDIO.name, VIDEO, DOCUMENT.name, METADATA)

# SIE's parameter for texts that are longer than the model reads, which all models here truncate by default.
OVERFLOW = "overflow_policy"
Policy = Literal["default", "truncate_text", "error"]
POLICIES = get_args(Policy)

# Fields of an image or a document, and of a sound. `format` is a hint: the content decides.
FILE_KEYS = ("data", "format")
SOUND_KEYS = (*FILE_KEYS, "sample_rate")


class Places(NamedTuple):
    """Places of the request parameters of a route: the `named` ones stand in `holder`, all others in its options."""

    body: tuple[str, ...]
    named: tuple[str, ...]
    holder: str = "params"

    @property
    def options(self) -> str:
        return _within(self.holder, "options")

    def check_body(self, body: Mapping[Any, Any], query_string: str) -> None:
        """Raise Failure for a field of a body, or of the URL, that the route does not read."""
        if query_string:
            name = query_string.partition("=")[0][:LONGEST_NAME]
            raise invalid(f"URL?{name}", f"is not read; send request parameters in the body, as {self.options}.{name}")
        self.check(body, "", self.body if self.holder else (*self.body, *self.named, "options"))

    def check(self, found: Mapping[Any, Any], where: str, allowed: Collection[str]) -> None:
        """Raise Failure for a field of `found` that is not among `allowed`."""
        for key in found:
            if key not in allowed:
                name = key if isinstance(key, str) and key.isidentifier() and len(key) <= LONGEST_NAME else shown(key)
                raise invalid(_within(where, name), f"{self._home(name)}; allowed here are {', '.join(allowed)}")

    def _home(self, name: str) -> str:
        """Return where a field belongs, in the words of an error."""
        if name in self.body or (name in self.named and not self.holder):
            return "belongs at the top level of the body"
        if name in self.named:
            return f"belongs in {self.holder}"
        if name in ("params", "options"):
            return f"is not read here; request parameters belong in {self.options}"
        if name in ITEM_KEYS:
            return f"belongs in an item, as items[i].{name}"
        return f"is not read here; if it is a parameter of the model, send {self.options}.{name}"


def _within(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


ENCODE = Places(("items", "params"), ("output_types", "output_dtype", "instruction"))
SCORE = Places(("query", "items"), ("instruction",), "")
EXTRACT = Places(("items", "params"), ("labels", "output_schema", "instruction"))
