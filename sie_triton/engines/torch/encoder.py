"""A transformers model as a function from packed tokens to one hidden state per token.

Two paths give equal results. *packed*: one row without padding, with our attention. *padded*: items of similar length
in one batch with the library's attention, for models that do not support a registered attention function. `probe.py`
decides by running the model, not by its name.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, PreTrainedModel

from sie_triton.checkpoints.files import first_line
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import AUTO
from sie_triton.engines import base
from sie_triton.engines.torch.attention import PACKED_ATTENTION, Segments, attending, choose_kernel, make_packable
from sie_triton.engines.torch.attention.kernels import possible
from sie_triton.engines.torch.attention.library import SUPPORT, check_supported, library_attention
from sie_triton.engines.torch.attention.packed import let_rows_be_long
from sie_triton.engines.torch.attention.rotations import rotate_each_item
from sie_triton.engines.torch.draws import draws_of
from sie_triton.engines.torch.facts import num_token_types, num_weights, padding_position
from sie_triton.engines.torch.lora import Loras
from sie_triton.engines.torch.prepack import lay_out
from sie_triton.engines.torch.rows import NO_PADDING, TOKENS_PER_PADDING, positions_of, side_by_side, spare_items
from sie_triton.engines.torch.transfers import Indices
from sie_triton.errors import LoadError

PACKED, PADDED = "packed", "padded"

# Position ids of packed tokens, int [tokens].
Places = npt.NDArray[np.int64]


class EncoderGraph(Protocol):
    """The same model as a graph, which is faster for some sub-batches. `sizes` in tokens are measured."""

    @property
    def sizes(self) -> Sequence[int]: ...

    @property
    def max_length(self) -> int: ...

    def serve(self, max_tokens: int, beside_others: int) -> None: ...

    def suits(self, lengths: Ints) -> bool: ...

    def hidden_states(
        self,
        input_ids: Ints,
        lengths: Ints,
        keys: Ints,
        type_ids: Ints,
        positions: Places,
        extra_indices: Sequence[Indices] = (),
    ) -> torch.Tensor:
        """Compute as Encoder.hidden_states; `positions`, int [tokens], are the position ids."""
        ...


class TorchEncoder(base.Encoder):
    """Runs `model` on the device of its weights. `path`: the path in use. `kernel`: kernel of the packed path.

    `graph` may be set at any time; it then replaces the packed path for the sub-batches that it suits.
    """

    # True: the encoder can be a graph that takes token ids.
    is_exportable = True

    def __init__(self, model: PreTrainedModel, attention_backend: str = "auto") -> None:
        has_own_attention = make_packable(model)
        let_rows_be_long(model)
        rotates_each = rotate_each_item(model)
        self.is_exportable = self.is_exportable and not rotates_each
        self.tokens_per_padding = NO_PADDING if rotates_each else TOKENS_PER_PADDING
        weights = next(model.parameters())
        self.device, self.dtype = weights.device, weights.dtype
        self.weights_bytes = num_bytes(model)
        self.num_weights = num_weights(model)
        self.draws = draws_of(model)
        self.vocab_size = self.draws.vocab_size
        backend = possible(attention_backend, self.device, self.dtype)
        if has_own_attention and backend != AUTO:
            check_supported(model, backend)
        self.kernel = "eager" if has_own_attention else choose_kernel(backend, self.device, self.dtype)
        self.backend = backend
        self.path, self.paths = PACKED, (PACKED, PADDED) if backend == AUTO or backend in SUPPORT else (PACKED,)
        self.config = model.config
        # Packed rows have no padding, and on a GPU the library's check for it would wait for the device.
        vars(model)["warn_if_padding_and_no_attention_mask"] = lambda *_: None
        self.loras = Loras(model)
        self.model = model
        self._arguments = frozenset(inspect.signature(model.forward).parameters)
        # BERT's default covers max_position_embeddings tokens only; GPT-2 would add word 0 for type 0.
        self.num_token_types = num_token_types(model)
        self.padding_position = padding_position(model)
        self.is_causal = any(getattr(module, "is_causal", False) for module in model.modules())
        self.graph: EncoderGraph | None = None
        self._pad_id = int(getattr(model.config, "pad_token_id", None) or 0)

    def prepare(self) -> None:
        """Optimise the layout of the weights; afterwards `eager` no longer runs the library's own layers."""
        lay_out(self.model)

    def use(self, path: str) -> None:
        """Switch to `path`. Must not be called while a forward pass runs."""
        super().use(path)
        packed = path == PACKED
        self.model.set_attn_implementation(PACKED_ATTENTION if packed else library_attention(self.model, self.backend))

    @torch.inference_mode()
    def add_lora(self, name: str, directory: Path) -> int:
        return self.loras.add(name, directory, self.hidden_states, self.dtype, self.device)

    def remove_lora(self, name: str) -> None:
        self.loras.remove(name)

    @contextmanager
    def adapted(self, loras: Sequence[str]) -> Iterator[None]:
        with self.loras.adapted(loras):
            yield

    @torch.inference_mode()
    def hidden_states(
        self,
        input_ids: Ints,
        lengths: Ints,
        keys: Ints | None = None,
        type_ids: Ints | None = None,
        extra_indices: Sequence[Indices] = (),
    ) -> torch.Tensor:
        """input_ids int32 [tokens], lengths int32 [items] → [tokens, d].

        `keys`, int32 [items]: tokens attend only to this many leading tokens of their item; None: to all.
        `type_ids`, int32 [tokens]: token types, for models that distinguish the texts of a pair; None: all 0.
        `extra_indices`: arrays that the caller reads on the device afterwards; they are uploaded with the tokens.
        """
        type_ids = np.zeros_like(input_ids) if type_ids is None else type_ids
        keys = lengths if keys is None else keys
        run = self._run_packed if self.path == PACKED else self._run_padded
        return self.loras.passes(
            lengths,
            lambda items, rows: run(input_ids[rows], lengths[items], keys[items], type_ids[rows], extra_indices),
        )

    @torch.inference_mode()
    def eager(self, input_ids: Ints, keys: int | None = None) -> torch.Tensor:
        """Compute one item with the library's eager attention, the reference of the probe. [tokens] → [tokens, d].

        If only `keys` of its tokens are attended to, the library's usual attention counts: a token that sees none gets
        nothing there, but all of them from the eager one.
        """
        is_whole = keys in (None, len(input_ids))
        self.model.set_attn_implementation("eager" if is_whole else library_attention(self.model, self.backend))
        try:
            ids = self._tensor(input_ids[None])
            mask = torch.ones_like(ids)
            mask[:, keys or len(input_ids) :] = 0
            return self.forward(input_ids=ids, attention_mask=mask, token_type_ids=torch.zeros_like(ids))[0]
        finally:
            self.use(self.path)

    def _run_packed(
        self, input_ids: Ints, lengths: Ints, keys: Ints, type_ids: Ints, extra_indices: Sequence[Indices]
    ) -> torch.Tensor:
        graph = self.graph
        if graph is not None and graph.suits(lengths) and not self.loras.is_running:
            return graph.hidden_states(
                input_ids, lengths, keys, type_ids, self.positions(input_ids, lengths), extra_indices
            )
        return self.packed(input_ids, lengths, keys, type_ids, extra_indices)

    @torch.inference_mode()
    def packed(
        self, input_ids: Ints, lengths: Ints, keys: Ints, type_ids: Ints, extra_indices: Sequence[Indices] = ()
    ) -> torch.Tensor:
        """Compute as `hidden_states`, always on the packed path and without a graph."""
        num_tokens = len(input_ids)
        spare = spare_items(num_tokens) if self.device.type == "cpu" else []
        if spare:
            input_ids, type_ids = np.pad(input_ids, (0, sum(spare))), np.pad(type_ids, (0, sum(spare)))
            lengths, keys = np.append(lengths, spare), np.append(keys, spare)
        segments = Segments.of(lengths.tolist(), keys.tolist())
        tokens = indices_of(input_ids[None], type_ids[None], self.positions(input_ids, lengths)[None])
        if self.device.type == "cuda":
            Indices.upload([tokens, segments.indices, *extra_indices], self.device)
        ids, types, positions = tokens.on(self.device)
        with attending(segments, self.kernel), self.loras.over(lengths.tolist()):
            hidden = self.forward(input_ids=ids, token_type_ids=types, position_ids=positions)
        return hidden[0, :num_tokens]

    def positions(self, input_ids: Ints, lengths: Ints) -> Places:
        """Return the position id of each packed token, as the library numbers the tokens of an item."""
        return positions_of(input_ids, lengths, self.padding_position)

    def _run_padded(
        self, input_ids: Ints, lengths: Ints, keys: Ints, type_ids: Ints, extra_indices: Sequence[Indices]
    ) -> torch.Tensor:
        groups = list(side_by_side(lengths, keys, self.tokens_per_padding))
        given = [indices_of(*rows.inputs(input_ids, type_ids, self._pad_id)) for rows in groups]
        Indices.upload([*given, *extra_indices], self.device)
        hidden: torch.Tensor | None = None
        for rows, indices in zip(groups, given, strict=True):
            ids, types, seen, real, places = indices.on(self.device)
            num_rows, width = rows.real.shape
            with self.loras.over([width] * num_rows, rows.items):
                padded = self.forward(input_ids=ids, token_type_ids=types, attention_mask=seen)
            if hidden is None:
                hidden = padded.new_empty(len(input_ids), padded.shape[-1])
            hidden[places] = padded.flatten(0, 1)[real]
        assert hidden is not None
        return hidden

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Run the model on those of `inputs` that it accepts; return the states of its last layer."""
        known = {name: value for name, value in inputs.items() if name in self._arguments}
        if not self.num_token_types:
            known.pop("token_type_ids", None)
        options: dict[str, Any] = {"use_cache": False} if "use_cache" in self._arguments else {}
        output: torch.Tensor = self.model(**known, **options).last_hidden_state
        return output

    def _tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return indices_of(array).on(self.device)[0]


def indices_of(*arrays: npt.NDArray[Any]) -> Indices:
    """Convert to int64, which all models accept."""
    return Indices(*(array.astype(np.int64) for array in arrays))


def load_model(
    directory: Path, dtype: torch.dtype, device: str, auto: Any = None, config: Mapping[str, Any] | None = None
) -> PreTrainedModel:
    """Load the model in `directory`; `config` replaces config.json. Raise LoadError on failure."""
    if not list(directory.glob("*.safetensors")):
        raise LoadError(
            f"no *.safetensors in {directory}; save the model in this format, or correct weights_path", "not found"
        )

    def read_config() -> Any:
        if config is not None:
            return AutoConfig.for_model(**config)
        # Explicitly False: otherwise transformers prompts on stdin whether to run the model's own code.
        return AutoConfig.from_pretrained(directory, trust_remote_code=False)

    return _built(directory, read_config, dtype, device, auto)


def model_of(
    config: Mapping[str, Any],
    state: Mapping[str, torch.Tensor],
    directory: Path,
    dtype: torch.dtype,
    device: str,
    auto: Any = None,
) -> PreTrainedModel:
    """Build an encoder from `state`, its part of a larger checkpoint in `directory`. Raise LoadError on failure."""
    return _built(directory, lambda: AutoConfig.for_model(**config), dtype, device, auto, state)


def _built(
    directory: Path,
    read_config: Callable[[], Any],
    dtype: torch.dtype,
    device: str,
    auto: Any,
    state: Mapping[str, torch.Tensor] | None = None,
) -> PreTrainedModel:
    """Build the model from `state`, or from the safetensors in `directory` if `state` is None."""
    try:
        config = read_config()
        if auto is None:
            # T5 and similar models have a separate class for the encoder alone.
            auto = AutoModelForTextEncoding if type(config) in AutoModelForTextEncoding._model_mapping else AutoModel
        options = {"add_pooling_layer": False} if "add_pooling_layer" in _constructor(auto, config) else {}
        source = {"use_safetensors": True} if state is None else {"state_dict": dict(state)}
        model, report = (auto if state is None else auto._model_mapping[type(config)]).from_pretrained(
            directory if state is None else None,
            config=config,
            dtype=dtype,
            # A model without the attention interface keeps this one, masks included, whatever is set later.
            attn_implementation="eager",
            output_loading_info=True,
            **source,
            **options,
        )
    except ImportError as exc:
        raise LoadError(
            f"the model in {directory} needs a package that is missing: {first_line(exc)}", "dependency"
        ) from exc
    except Exception as exc:  # transformers validates little of config.json before using it
        raise LoadError(f"weights in {directory} cannot be loaded: {first_line(exc)}", "corrupt") from exc
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise LoadError(f"weights in {directory} lack {missing} …", "corrupt")
    loaded: PreTrainedModel = model.eval().to(device)
    return loaded


def num_bytes(model: torch.nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def _constructor(auto: Any, config: Any) -> frozenset[str]:
    model = auto._model_mapping.get(type(config), None)
    if model is None:
        raise ValueError(f"transformers has no text model for model_type {config.model_type!r}")
    model = model[0] if isinstance(model, tuple) else model
    return frozenset(inspect.signature(model.__init__).parameters)
