"""Read the weights of a LoRA adapter as PEFT saves them, check every shape, and build the change to each layer."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers.pytorch_utils import Conv1D

from sie_triton.checkpoints.files import first_line
from sie_triton.checkpoints.lora import WEIGHTS, LoraFiles
from sie_triton.engines.torch.lora_layers import KINDS, Adapted, LayerAdapter, LoraAdapter, LowRank, Saved, whole_weight
from sie_triton.errors import LoadError

log = logging.getLogger(__name__)


# Suffixes of the names of a module's tensors in the file.
FIRST, SECOND, SECOND_BIAS = "lora_A.weight", "lora_B.weight", "lora_B.bias"
FIRST_WORDS, SECOND_WORDS = "lora_embedding_A", "lora_embedding_B"
MAGNITUDE, OWN_TABLE, WEIGHT, BIAS = "lora_magnitude_vector", "base_layer.weight", "weight", "bias"
ENDINGS = (FIRST, SECOND, SECOND_BIAS, FIRST_WORDS, SECOND_WORDS, MAGNITUDE, OWN_TABLE, WEIGHT, BIAS)


# Prefix of the keys of layers in the backbone.
BACKBONE = "backbone: "

Tensors = Mapping[str, torch.Tensor]


@dataclass(slots=True)
class AdaptedLayers:
    """The modules that adapters can change: `backbone`, and `heads`, by full names or `aliases` of them."""

    backbone: torch.nn.Module
    heads: list[torch.nn.Module] = field(default_factory=list)
    kept: dict[str, Sequence[int]] = field(default_factory=dict)  # layer of a head → the rows that were kept of it
    aliases: dict[str, str] = field(default_factory=dict)
    other_encoders: frozenset[str] = frozenset()  # modules with further encoders, which take no adapters
    splits: bool = True  # a batch can be run in several passes


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a layer in its parent module; the layer there may be wrapped already."""

    parent: torch.nn.Module
    name: str
    key: str
    prefix: str = ""

    @property
    def layer(self) -> torch.nn.Module:
        module: torch.nn.Module = getattr(self.parent, self.name)
        return module.base if isinstance(module, Adapted) else module

    @property
    def reads_others(self) -> bool:
        """True if the layer also receives rows that belong to no item."""
        return self.name in getattr(self.parent, "reads_distances", ())


class Reader:
    """Reader of one adapter for `model`; its tensors are in `dtype` on `device`."""

    def __init__(self, directory: Path, model: AdaptedLayers, dtype: torch.dtype, device: torch.device) -> None:
        self.files = LoraFiles.read(directory)
        self.dtype, self.device = dtype, device
        self._model = model

    def read(self) -> tuple[LoraAdapter, dict[str, Place]]:
        """Return the adapter, and the places of the layers that it changes by their keys.

        LoadError if the adapter, or part of it, cannot be used.
        """
        named = by_module(self.files.directory / WEIGHTS)
        places = self._places(list(named))
        if not places:
            raise self._wrong("has no weights for layers of this model", "corrupt")
        self._check_saved(named)
        parts = {place.key: self._part(module, place, named[module]) for module, place in places.items()}
        return LoraAdapter(parts), {place.key: place for place in places.values()}

    def _places(self, modules: Sequence[str]) -> dict[str, Place]:
        found = {module: self._place(module) for module in modules}
        unread = [module for module, place in found.items() if place is None and module.endswith("pooler.dense")]
        missing = [module for module, place in found.items() if place is None and module not in unread]
        if missing:
            others = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            names = ", ".join(map(quoted, sorted(missing)[:3]))
            raise self._wrong(
                f"has weights for {names}{others}, which this model does not have, or not as layers "
                f"that can be adapted; {self._made_for()}",
                "unsupported",
            )
        if unread:
            log.info("%s: ignoring %s, which the model does not use", self.files.directory, quoted(unread[0]))
        places = {module: place for module, place in found.items() if place is not None}
        if len({place.prefix for place in places.values() if place.key.startswith(BACKBONE)}) > 1:
            raise self._wrong(f"adapts more than one encoder; {self._made_for()}", "unsupported")
        return places

    def _place(self, module: str) -> Place | None:
        names = module.split(".")
        for start in range(len(names)):
            prefix, path = ".".join(names[:start]), ".".join(names[start:])
            parent = parent_in(self._model.backbone, names[start:])
            if parent is not None and not self._model.other_encoders & set(names[:start]):
                return Place(parent, names[-1], BACKBONE + path, prefix)
        names = self._model.aliases.get(module, module).split(".")
        for number, head in enumerate(self._model.heads):
            if (parent := parent_in(head, names)) is not None:
                return Place(parent, names[-1], f"head {number}: {'.'.join(names)}")
        return None

    def _check_saved(self, named: Mapping[str, Tensors]) -> None:
        if self.files.saved_modules and not any({WEIGHT, BIAS} & set(tensors) for tensors in named.values()):
            names = ", ".join(map(quoted, self.files.saved_modules[:3]))
            raise self._wrong(f"lacks the weights of {names} (modules_to_save); save the adapter again", "corrupt")

    def _part(self, module: str, place: Place, given: Tensors) -> LayerAdapter:
        layer = place.layer
        if not isinstance(layer, KINDS):
            kinds = "linear layers and embeddings"
            raise self._wrong(f"{module}: is a {type(layer).__name__}; only {kinds} can be adapted", "unsupported")
        return PartBuilder(self, module, layer, given, self._model.kept.get(module)).part()

    def wrong(self, module: str, what: str, given: Sequence[int], wanted: Sequence[int]) -> LoadError:
        return self._wrong(f"{module}: {what} is {list(given)}, this model needs {list(wanted)}; {self._made_for()}")

    def lacks(self, module: str, what: str) -> LoadError:
        return self._wrong(f"{module}: {what}; save the adapter again")

    def not_finite(self, module: str) -> LoadError:
        message = f"{module}: has numbers that are not finite in {self.dtype}"
        return self._wrong(f"{message}; save the adapter again, or serve its base in another compute_precision")

    def _wrong(self, message: str, reason: str = "corrupt") -> LoadError:
        return LoadError(f"LoRA adapter {self.files.directory}: {message}", reason)

    def _made_for(self) -> str:
        base = quoted(self.files.base) if self.files.base else "another base, which it does not name"
        return f"it was made for {base}: serve it with that model"


class PartBuilder:
    """Builder of an adapter's part for one layer. `kept` are the rows of the original layer that this one has kept."""

    def __init__(
        self, reader: Reader, module: str, layer: torch.nn.Module, given: Tensors, kept: Sequence[int] | None
    ) -> None:
        self._reader, self._module, self._layer, self._given = reader, module, layer, dict(given)
        self._kept = None if kept is None else torch.tensor(kept)
        self._is_words = isinstance(layer, torch.nn.Embedding)
        self._bias: torch.Tensor | None = getattr(layer, "bias", None)
        self._scale: torch.Tensor | None = getattr(layer, "embed_scale", None) if self._is_words else None
        self._shape: tuple[int, ...] = tuple(layer.weight.shape)  # type: ignore[arg-type]
        # For an embedding: words and d.
        is_turned = self._is_words or isinstance(layer, Conv1D)
        self._in, self._out = self._shape if is_turned else self._shape[::-1]

    def part(self) -> LayerAdapter:
        made = self._saved() if WEIGHT in self._given else self._low_rank()
        if self._given:
            raise self._reader.lacks(self._module, f"{min(self._given)} contradicts its adapter_config.json")
        return made

    def _saved(self) -> Saved:
        """Return the part for a module of modules_to_save."""
        weight = self._taken(WEIGHT, self._shape)
        bias = None if self._bias is None else self._own(self._taken(BIAS, (self._out,)))
        return Saved(self._own(weight.T if isinstance(self._layer, Conv1D) else weight), bias, self._scale)

    def _low_rank(self) -> LowRank:
        files = self._reader.files
        first, second = (FIRST_WORDS, SECOND_WORDS) if self._is_words else (FIRST, SECOND)
        rank, scale = files.rank_of(self._module), files.scale_of(self._module)
        given = tuple(self._given[first].shape[:1]) if first in self._given else ()
        if given not in ((), (rank,)):
            said = f"has rank {given[0]}, but its adapter_config.json says {rank} (r, rank_pattern)"
            raise self._reader.lacks(self._module, said)
        reduce, expand = self._taken(first, (rank, self._in)), scale * self._taken(second, (self._out, rank))
        gain = shift = None
        if files.is_dora:
            gain = self._gain(expand @ reduce)
            expand = gain[:, None] * expand
            # DoRA scales the product, not the bias.
            shift = None if self._bias is None else (1 - gain) * self._bias.detach().float()
        elif files.has_bias and not self._is_words:
            shift = scale * self._taken(SECOND_BIAS, (self._out,))
        if self._scale is not None:
            expand = expand * self._scale.float()
        if OWN_TABLE in self._given:
            self._check_own_table()
        own_gain, own_shift = (None if each is None else self._own(each) for each in (gain, shift))
        return LowRank(self._own(reduce.T if self._is_words else reduce), self._own(expand.T), own_gain, own_shift)

    def _gain(self, change: torch.Tensor) -> torch.Tensor:
        """Return DoRA's factors (Liu et al., 2024), [out]: the learnt length of each row of the weight over its own."""
        magnitude, weight = self._taken(MAGNITUDE, (self._out,)), whole_weight(self._layer).float()
        lengths: torch.Tensor = torch.linalg.vector_norm((weight.T if self._is_words else weight) + change, dim=1)
        return magnitude / lengths

    def _check_own_table(self) -> None:
        """Raise LoadError if the embedding that PEFT saved beside its change differs from the base's."""
        table, base = self._taken(OWN_TABLE, self._shape), whole_weight(self._layer).float()
        if not torch.allclose(table, base, 1e-2, 1e-5):  # one of them is usually rounded
            raise self._reader.lacks(self._module, "differs from the base's; add it to modules_to_save")

    def _taken(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Take a tensor out of the given ones, in float32; LoadError if it is missing or its shape is not `shape`."""
        if name not in self._given:
            raise self._reader.lacks(self._module, f"{name} is missing")
        tensor = self._given.pop(name)
        if self._kept is not None and name != FIRST and tensor.ndim and len(tensor) > int(self._kept.max()):
            tensor = tensor[self._kept]
        if tuple(tensor.shape) != shape:
            raise self._reader.wrong(self._module, name, tensor.shape, shape)
        return tensor.to(self._reader.device, torch.float32)

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy in the model's dtype; LoadError if a number is not finite there."""
        own = tensor.to(self._reader.dtype, copy=True).contiguous()
        if not bool(torch.isfinite(own).all()):
            raise self._reader.not_finite(self._module)
        return own


def by_module(path: Path) -> dict[str, Tensors]:
    """Return the tensors of each module, by suffix; LoadError names a tensor that is not part of a LoRA adapter."""
    found: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    try:
        with safe_open(path, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118
                module, ending = split(name.removeprefix("base_model.model."))
                if not ending or not module:
                    message = f"{path}: {quoted(name)} is not a weight of a LoRA adapter in PEFT's format"
                    raise LoadError(f"{message}; save the adapter with peft's save_pretrained", "unsupported")
                found[module][ending] = weights.get_tensor(name)
    except (OSError, RuntimeError, SafetensorError) as exc:
        raise LoadError(f"{path}: cannot be read: {first_line(exc)}; fetch the adapter again", "corrupt") from exc
    return dict(found)


def quoted(name: str) -> str:
    """Return the name in quotes, cut to 120 characters."""
    return repr(name if len(name) <= 120 else f"{name[:120]}…")


def split(name: str) -> tuple[str, str]:
    """Split a tensor's name into module and suffix; two empty strings if the suffix is unknown.

    >>> split("layers.0.q_proj.lora_B.bias"), split("score.weight"), split("layers.0.q_proj.lora_E")
    (('layers.0.q_proj', 'lora_B.bias'), ('score', 'weight'), ('', ''))
    """
    name = name.replace(f".{MAGNITUDE}.weight", f".{MAGNITUDE}")
    return next(((name.removesuffix(f".{end}"), end) for end in ENDINGS if name.endswith(f".{end}")), ("", ""))


def parent_in(root: torch.nn.Module, names: Sequence[str]) -> torch.nn.Module | None:
    """Return the parent of the module at that path; None if there is no such module."""
    *path, last = names
    for name in path:
        child = None if isinstance(root, Adapted) else root._modules.get(name)
        if child is None:
            return None
        root = child
    return None if isinstance(root, Adapted) or root._modules.get(last) is None else root
