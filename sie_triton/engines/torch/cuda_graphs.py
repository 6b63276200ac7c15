"""Forward passes of few tokens as CUDA graphs: the launches of a pass are recorded once and replayed by one call.

A short query's kernels take microseconds, less than Python takes to launch each of them. A recording has a fixed number
of tokens, so there is one for each of a few sizes; unused positions form a separate item. The mask is computed on
the device from each token's item number.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from threading import Lock

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from sie_triton.contract.arrays import Ints
from sie_triton.engines.base import Unusable
from sie_triton.engines.torch.attention import attending
from sie_triton.engines.torch.attention.kernels import Kernel, visible
from sie_triton.engines.torch.attention.segments import EVERYTHING, Segments, Window
from sie_triton.engines.torch.encoder import Places, TorchEncoder
from sie_triton.engines.torch.facts import num_positions
from sie_triton.engines.torch.rows import placed
from sie_triton.engines.torch.transfers import Indices

# Repeats the recorded function; returns the tensor that every replay overwrites.
Replay = Callable[[], torch.Tensor]

# Records a function as a replay.
Record = Callable[[Replay], Replay]

SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)

# Passes before a recording, since libraries' one-time initialisation must not be recorded.
WARM_UPS = 3


class CapturedPasses:
    """Recorded passes of `encoder`, for sub-batches of up to `max_tokens`; 0 until measured. Thread-safe.

    `recorder` makes a Record: CudaGraphs on a GPU; on a CPU a function is its own replay. All passes use one stream,
    and a replay's states are copied before the next launch, so recordings can share their memory.
    """

    sizes = SIZES

    def __init__(self, encoder: TorchEncoder, recorder: Callable[[], Record] | None = None) -> None:
        self._encoder = encoder
        is_cuda = encoder.device.type == "cuda"
        self._recorder = recorder or (partial(CudaGraphs, encoder.device) if is_cuda else lambda: lambda run: run)
        self._record: Record | None = None
        self._recordings: dict[int, tuple[torch.Tensor, Replay]] = {}
        self._running = Lock()
        self.max_length = min(SIZES[-1], num_positions(encoder.config, encoder.padding_position, SIZES[-1]))
        self.max_tokens = 0

    def serve(self, max_tokens: int, beside_others: int) -> None:
        """Serve sub-batches of up to `max_tokens`. `beside_others` has no effect: all lanes share one stream.

        All sizes are recorded again into a new memory pool, the largest first, so that smaller ones reuse its memory.
        """
        self._recordings.clear()
        self._record = None
        for size in sorted((each for each in SIZES if each <= max_tokens), reverse=True):
            self._recording(size)
        self.max_tokens = max_tokens

    def suits(self, lengths: Ints) -> bool:
        return int(lengths.sum()) <= self.max_tokens and int(lengths.max()) <= self.max_length

    @torch.inference_mode()
    def hidden_states(
        self,
        input_ids: Ints,
        lengths: Ints,
        keys: Ints,
        type_ids: Ints,
        positions: Places,
        extra_indices: Sequence[Indices] = (),
    ) -> torch.Tensor:
        """Compute as Encoder.hidden_states; int32 [tokens], int32 [items], … → [tokens, d]."""
        num_tokens = len(input_ids)
        size = next(each for each in SIZES if each >= num_tokens)
        given = Indices(laid_out(size, input_ids, lengths, keys, type_ids, positions))
        Indices.upload([given, *extra_indices], self._encoder.device)
        with self._running:
            inputs, replay = self._recording(size)
            inputs.copy_(given.on(inputs.device)[0])
            # Copied, because the next replay overwrites it.
            return replay()[:num_tokens].clone()

    @torch.inference_mode()
    def _recording(self, size: int) -> tuple[torch.Tensor, Replay]:
        if self._record is None:
            self._record = self._recorder()
        if size not in self._recordings:
            inputs = torch.zeros(5, size, dtype=torch.int64, device=self._encoder.device)
            self._recordings[size] = inputs, self._record(partial(self._run, inputs))
        return self._recordings[size]

    def _run(self, inputs: torch.Tensor) -> torch.Tensor:
        ids, types, positions, items, is_key = inputs
        sees = (items[:, None] == items) & (is_key > 0)
        with attending(Segments.of([len(ids)]), masked(sees)), self._encoder.loras.over([len(ids)]):
            states = self._encoder.forward(
                input_ids=ids[None], token_type_ids=types[None], position_ids=positions[None]
            )
        return states[0]


def laid_out(
    size: int, input_ids: Ints, lengths: Ints, keys: Ints, type_ids: Ints, positions: Places
) -> npt.NDArray[np.int64]:
    """Return int64 [5, size]: id, type, position, item and key flag of each token; unused positions form one item.

    >>> ids, lengths, positions = np.array([7, 8, 9]), np.array([2, 1]), np.array([2, 3, 2])
    >>> laid_out(4, ids, lengths, np.array([1, 1]), np.zeros(3, np.int32), positions).tolist()
    [[7, 8, 9, 0], [0, 0, 0, 0], [2, 3, 2, 2], [0, 0, 1, 2], [1, 0, 1, 1]]
    """
    items, places = placed(lengths)
    spare = (0, size - len(input_ids))
    rows = [
        np.pad(input_ids, spare),
        np.pad(type_ids, spare),
        np.pad(positions, spare, constant_values=positions[0]),
        np.pad(items, spare, constant_values=len(lengths)),
        np.pad(places < keys[items], spare, constant_values=True),
    ]
    return np.array(rows, np.int64)


class CudaGraphs:
    """Records CUDA graphs that share a memory pool: none may be replayed while another's states are being read.

    Passes of other threads may continue meanwhile.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream, self._pool = stream_of(device), torch.cuda.graph_pool_handle()

    def __call__(self, run: Replay) -> Replay:
        """Record `run`. Raise Unusable if the recording cannot be ended."""
        with torch.cuda.device(self._device):
            usual = torch.cuda.current_stream()
            self._stream.wait_stream(usual)
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UPS):
                    run()
            usual.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            try:
                states = self._captured(graph, run)
            except Exception as exc:
                if torch.cuda.current_stream() != usual:
                    # PyTorch leaves its stream, its memory pool and their accounting in the state of a recording.
                    raise Unusable("a CUDA graph could not be ended") from exc
                raise

        def replay() -> torch.Tensor:
            graph.replay()
            return states

        return replay

    def _captured(self, graph: torch.cuda.CUDAGraph, run: Replay) -> torch.Tensor:
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            return run()


@cache
def stream_of(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of all recordings; just one, since libraries keep memory for each stream they use."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def masked(sees: torch.Tensor) -> Kernel:
    """Return a kernel for a row in which token i sees token j where `sees[i, j]`, bool [tokens, tokens].

    The kernel ignores its `segments`.
    """
    masks: dict[Window, torch.Tensor] = {}

    def mask_of(window: Window, dtype: torch.dtype) -> torch.Tensor:
        """Return the mask for `window`, shared by all layers with the same window."""
        if window not in masks:
            seen = sees if window == EVERYTHING else sees & visible(len(sees), window, sees.device)
            masks[window] = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, float("-inf"))
        return masks[window]

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, scaling: float, window: Window
    ) -> torch.Tensor:
        grouped = query.shape[1] != key.shape[1]
        mask = mask_of(window, query.dtype)
        return sdpa(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=grouped).transpose(1, 2)

    return attend
