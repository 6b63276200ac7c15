"""The LoRA adapters of one model: one forward pass applies several of them, each to the rows of its own items.

LoRA (Hu et al., 2021) adds the product of two narrow matrices to a layer's weight. When an adapter is added, the layers
that it changes are wrapped, while other threads may be in a forward pass; a pass fixes its adapters before it begins.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from sie_triton.contract.arrays import Ints
from sie_triton.engines.torch.lora_layers import Adapted, CurrentPass, LoraAdapter, OtherRows, spans_of
from sie_triton.engines.torch.lora_weights import BACKBONE, AdaptedLayers, Place, Reader, quoted
from sie_triton.engines.torch.transfers import Indices
from sie_triton.errors import LoadError, ModelError

log = logging.getLogger(__name__)

Items = npt.NDArray[np.intp]
Which = Items | slice

# A function that runs the encoder: input_ids, lengths → states.
Run = Callable[[Ints, Ints], torch.Tensor]

# Lengths of the two items of the trial pass: equal, so that both are in one padded batch; their tokens are fewer than
# the rows of any table of positions or distances, so that the two kinds of rows can be told apart.
TRIED = (7, 7)


class Loras:
    """The LoRA adapters of the model with `backbone`. Passes may run while adapters are added or removed."""

    def __init__(self, backbone: torch.nn.Module) -> None:
        self.model = AdaptedLayers(backbone)
        # The model's name. Adapters made for a model of another name are served too, with a warning.
        self.base = ""
        self._now = CurrentPass()
        self._adapters: dict[str, LoraAdapter] = {}
        self._places: dict[str, Place] = {}

    def add(self, name: str, directory: Path, run: Run, dtype: torch.dtype, device: torch.device) -> int:
        """Load an adapter, replacing one of the same name; return its size in bytes.

        LoadError if it cannot be used; nothing has changed then.
        """
        reader = Reader(directory, self.model, dtype, device)
        adapter, places = reader.read()
        self._wrap(places)
        try:
            self._try(adapter, run, directory)
            self._adapters = {**self._adapters, name: adapter}
        finally:
            self._unwrap()
        self._compare_bases(name, reader.files.base)
        return adapter.num_bytes

    def remove(self, name: str) -> None:
        self._adapters = {other: adapter for other, adapter in self._adapters.items() if other != name}
        self._unwrap()

    @property
    def is_running(self) -> bool:
        """True within a pass of this thread that uses an adapter."""
        return bool(self._now.items)

    @contextmanager
    def adapted(self, names: Sequence[str]) -> Iterator[None]:
        """Within the context, apply to each item of this thread's passes the adapter of that name; empty for none.

        ModelError if an adapter is not loaded.
        """
        if missing := {name for name in names if name} - set(adapters := self._adapters):
            raise ModelError(f"LoRA adapter {min(missing)}: is not loaded")
        with self._running(tuple(adapters.get(name) for name in names) if any(names) else ()):
            yield

    @contextmanager
    def over(self, lengths: Sequence[int], items: Sequence[int] | None = None) -> Iterator[None]:
        """Within the context, layers receive rows of `items` (None: all items) in order, `lengths` rows of each.

        Rows after those of the last item belong to no item.
        """
        now = self._now
        if not now.items or now.whole is not None:
            yield
            return
        adapters = now.items if items is None else [now.items[item] for item in items]
        now.spans, now.num_rows = spans_of(adapters, lengths[: len(adapters)]), sum(lengths)
        try:
            yield
        finally:
            now.spans = None

    def passes(self, lengths: Ints, run: Callable[[Which, Which], torch.Tensor]) -> torch.Tensor:
        """Return the states of all tokens, [tokens, d], in as many passes as the items' adapters need.

        `run` computes the states of some items; its arguments select these items and their tokens.
        """
        groups = self._groups(len(lengths))
        if groups is None:
            return run(slice(None), slice(None))
        states: torch.Tensor | None = None
        for items in groups:
            rows = np.flatnonzero(np.repeat(np.isin(np.arange(len(lengths)), items), lengths))
            adapters = tuple(self._now.items[item] for item in items)
            whole = adapters[0] if adapters[0] is not None and adapters[0].apart else None
            with self._running(adapters, whole):
                made = run(items, rows)
            states = made.new_empty(int(lengths.sum()), made.shape[1]) if states is None else states
            states[Indices(rows).on(states.device)[0]] = made
        assert states is not None
        return states

    def _groups(self, num_items: int) -> list[Items] | None:
        """Return the items of each pass: one for each adapter that must run apart, one for all others; None for one."""
        items = self._now.items
        if items and len(items) != num_items:
            raise ValueError(f"there are {len(items)} LoRA adapters for {num_items} items; give one, or none, per item")
        own = {adapter: number for number, adapter in enumerate(dict.fromkeys(items), 1) if adapter and adapter.apart}
        if not own:
            return None
        numbers = np.array([own.get(adapter, 0) if adapter else 0 for adapter in items])
        return [np.flatnonzero(numbers == number) for number in np.unique(numbers)]

    @contextmanager
    def _running(self, items: tuple[LoraAdapter | None, ...], whole: LoraAdapter | None = None) -> Iterator[None]:
        now = self._now
        before = now.items, now.spans, now.whole
        is_adapted = any(item is not None for item in items)
        now.items, now.whole = items if is_adapted else (), whole
        now.spans = [(slice(None), whole)] if whole is not None else None if is_adapted else ()
        try:
            yield
        finally:
            now.items, now.spans, now.whole = before

    def _try(self, adapter: LoraAdapter, run: Run, directory: Path) -> None:
        """Run the adapter once, to find out whether it can share a pass with others.

        LoadError if it changes a layer that no pass runs, or if the states overflow.
        """
        adapter.apart = any(place.reads_others for key, place in self._places.items() if key in adapter.parts)
        wanted = {key for key in adapter.parts if key.startswith(BACKBONE)}
        if not wanted:
            return
        ids, lengths = np.arange(sum(TRIED), dtype=np.int32), np.array(TRIED, np.int32)
        adapter.used = set()
        try:
            states = self._tried(adapter, run, ids, lengths)
            unused = wanted - adapter.used
        finally:
            adapter.used = None
        if unused:
            message = f"{min(unused).removeprefix(BACKBONE)}: this model does not use that layer"
            raise LoadError(f"LoRA adapter {directory}: {message}; train the adapter without it", "unsupported")
        if not bool(torch.isfinite(states).all()):
            message = "the model's states overflow with it; serve its base in another compute_precision"
            raise LoadError(f"LoRA adapter {directory}: {message}", "unsupported")

    def _tried(self, adapter: LoraAdapter, run: Run, ids: Ints, lengths: Ints) -> torch.Tensor:
        try:
            with self._running((None, adapter)):
                return run(ids, lengths)
        except OtherRows as exc:
            if not self.model.splits:
                message = f"LoRA adapter: {exc}: that layer reads more than the items; train the adapter without it"
                raise LoadError(message, "unsupported") from exc
            log.info("%s: items of this adapter run in a separate pass", exc)
        adapter.apart = True
        with self._running((None, adapter)):
            return run(ids, lengths)

    def _wrap(self, places: dict[str, Place]) -> None:
        for key, place in places.items():
            if key not in self._places:
                setattr(place.parent, place.name, Adapted(place.layer, key, self._now))
                self._places[key] = place

    def _unwrap(self) -> None:
        """Restore the layers that no adapter needs any more. A pass that is inside a wrapper finishes."""
        needed = {key for adapter in self._adapters.values() for key in adapter.parts}
        for key in self._places.keys() - needed:
            place = self._places.pop(key)
            setattr(place.parent, place.name, place.layer)

    def _compare_bases(self, name: str, base: str) -> None:
        given, own = (each.rstrip("/").rpartition("/")[2].lower() for each in (base, self.base))
        if given and own and given != own:
            log.warning("LoRA adapter %s: was made for %s, but fits %s: it is served", name, quoted(base), self.base)
