"""A GPU that is not there: tensors that say they are on `cuda:0` and are held in memory, and a book of what crosses.

What CUDA would refuse is refused (tensors of two devices in one operator); what would make the processor wait is
counted, by what PyTorch's CUDA code does: a copy waits unless it comes from pinned memory and is told not to block, and
operators whose result has a size that depends on numbers read these back.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten

DEVICE = torch.device("cuda:0")

# How often each reads numbers back: `segment_reduce` the smallest length, and whether they add up to all rows.
WAITING = {
    aten._local_scalar_dense: 1,
    aten.nonzero: 1,
    aten.masked_select: 1,
    aten.bincount: 1,
    aten.equal: 1,
    aten._unique2: 1,
    aten.unique_dim: 1,
    aten.unique_consecutive: 1,
    aten.repeat_interleave: 1,
    aten.segment_reduce: 2,
}
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)

# Composed of others on a CPU, and one kernel on a GPU.
WHOLE = (aten.scaled_dot_product_attention,)

# Without a kernel, though they are no views by their schema.
MEMORY_ALONE = (aten.empty, aten.new_empty, aten.empty_like, aten.empty_strided, aten._unsafe_view, aten.lift_fresh)


class OnDevice(torch.Tensor):
    """Tensor that is on DEVICE for Python, and on meta for PyTorch's own code, which has no guard for a device that it
    was built without.
    """

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "OnDevice":
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, **layout, dtype=held.dtype, device="meta")

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{operator}: of a tensor of a GPU that is not there")


@dataclass
class Book:
    """Records of a pass: `uploads` and `downloads`, whether each blocked the processor; `waits` by operator; `kernels`.

    `order` has a letter for each thing that crosses: u, d, and s for a wait that is neither.
    """

    uploads: list[bool] = field(default_factory=list)
    downloads: int = 0
    waits: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    order: str = ""


class PretendedGpu(TorchDispatchMode):
    """Within it `device="cuda"` is DEVICE. `book` is of what has happened since it was last opened.

    `torch.tensor(…, device=DEVICE)`, which is made of no operators, raises.
    """

    def __init__(self) -> None:
        super().__init__()
        self.book = Book()
        self._pinned: dict[int, torch.Tensor] = {}

    def __enter__(self) -> "PretendedGpu":
        self._lazily = patch.object(torch.cuda, "_lazy_init", lambda: None)
        self._lazily.start()
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        self._lazily.stop()

    def opened(self) -> Book:
        """Open a new book."""
        self.book = Book()
        self._pinned.clear()
        return self.book

    @contextmanager
    def holding(self, *modules: torch.nn.Module) -> Iterator[None]:
        """Move the weights of these models there, without a record of it in the book."""
        with self, torch.inference_mode():
            for module in (each for whole in modules for each in whole.modules()):
                for name, weight in module._parameters.items():
                    if weight is not None and not isinstance(weight, OnDevice):
                        module._parameters[name] = torch.nn.Parameter(OnDevice(weight.detach()), requires_grad=False)
                for name, buffer in module._buffers.items():
                    if buffer is not None and not isinstance(buffer, OnDevice):
                        module._buffers[name] = OnDevice(buffer)
        with self:
            yield

    def kernel(self, name: str, compute: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
        """Record and run a kernel for which PyTorch has no operator."""
        self.book.kernels[name] += 1
        with _disable_current_modes():
            return OnDevice(compute(*(tensor.held for tensor in tensors)))

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = operator.overloadpacket
        args, kwargs = tree_map_only(torch.device, _with_index, (args, kwargs or {}))
        if packet is aten.to:
            return self._moved(operator, args, kwargs)
        if packet not in WHOLE:
            with self:
                composed = operator.decompose(*args, **kwargs)
            if composed is not NotImplemented:
                return composed
        return self._computed(operator, packet, args, kwargs)

    def _moved(self, operator: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """Run `to`, which PyTorch's own code dispatches on the devices that it knows."""
        names = [argument.name for argument in operator._schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        source = given.pop("self")
        if "other" in given:
            other = given.pop("other")
            given |= {"dtype": other.dtype, "device": other.device}
        device, dtype = given.get("device") or source.device, given.get("dtype") or source.dtype
        if (device, dtype) == (source.device, source.dtype) and not given.get("copy"):
            return source
        with self:
            return aten._to_copy(source, dtype=dtype, device=device, non_blocking=given.get("non_blocking", False))

    def _computed(self, operator: Any, packet: Any, args: Any, kwargs: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        there = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
        is_there = kwargs["device"] == DEVICE if kwargs.get("device") else bool(there)
        if is_there or there:
            self._enter(operator, packet, tensors, args, kwargs, is_there)
        pins = kwargs.pop("pin_memory", False) or packet in (aten.pin_memory, aten._pin_memory)
        if kwargs.get("device"):
            kwargs["device"] = torch.device("cpu")
        held_args, held = tree_map_only(OnDevice, lambda tensor: tensor.held, (args, kwargs))
        if pins and not is_there and packet in (aten.pin_memory, aten._pin_memory):
            result = args[0].clone()
        else:
            result = operator(*held_args, **held)
        if pins and not is_there:
            self._pinned[result.untyped_storage().data_ptr()] = result
        if operator._schema.is_mutable and isinstance(args[0], torch.Tensor):
            return args[0]
        return tree_map_only(torch.Tensor, OnDevice, result) if is_there else result

    def _enter(self, operator: Any, packet: Any, tensors: Any, args: Any, kwargs: Any, is_there: bool) -> None:
        """Record this operator's transfers and waits."""
        elsewhere = [tensor for tensor in tensors if not isinstance(tensor, OnDevice)]
        if packet in (aten._to_copy, aten.copy_):
            source = args[1] if packet is aten.copy_ else args[0]
            target_is_there = isinstance(args[0], OnDevice) if packet is aten.copy_ else is_there
            if isinstance(source, OnDevice) != target_is_there:
                blocks = not kwargs.get("non_blocking", len(args) > 2 and args[2])
                return self._enter_copy(source, target_is_there, blocks)
        elif packet in INDEXING:
            indices = [index for index in args[1] if index is not None]
            for index in indices:
                if not isinstance(index, OnDevice) and index.ndim:
                    self._enter_copy(index, True, True)
                if index.dtype in (torch.bool, torch.uint8):
                    self._enter_wait(packet, 1)
        elif any(tensor.ndim for tensor in elsewhere):
            raise RuntimeError(f"{operator}: tensors on {DEVICE} and on cpu")
        elif packet in WAITING and not (kwargs.get("unsafe") or kwargs.get("output_size") is not None):
            self._enter_wait(packet, WAITING[packet])
        if not operator.is_view and packet not in MEMORY_ALONE and packet is not aten._local_scalar_dense:
            self.book.kernels[packet.__name__] += 1
        return None

    def _enter_copy(self, source: torch.Tensor, is_upload: bool, blocks: bool) -> None:
        if is_upload:
            waits = blocks or source.untyped_storage().data_ptr() not in self._pinned
            self.book.uploads.append(waits)
        else:
            self.book.downloads += 1
        self.book.order += "u" if is_upload else "d"

    def _enter_wait(self, packet: Any, times: int) -> None:
        self.book.waits[packet.__name__] += times
        self.book.order += times * "s"


def _with_index(device: torch.device) -> torch.device:
    """Also of what PyTorch's own code takes an `OnDevice` for."""
    return DEVICE if device.type in ("cuda", "meta") else device
