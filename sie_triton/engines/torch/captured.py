"""Forward passes of few tokens as CUDA graphs: what a pass launches is recorded once, and then replayed by one call.

A short query's kernels take microseconds, and Python takes longer to launch each of them. A recording is of one number
of tokens, so there is one for each of a few sizes; places that are left over belong to an item of their own. Which
tokens belong together is computed on the device, of the items' numbers.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from threading import Lock

import numpy as np
import numpy.typing as npt
import torch

from sie_triton.engines.base import Unusable
from sie_triton.engines.torch.attention import Segments, attending
from sie_triton.engines.torch.attention.masked import masked
from sie_triton.engines.torch.encoder import Encoder
from sie_triton.engines.torch.rows import placed
from sie_triton.engines.torch.transfers import Indices

Ints = npt.NDArray[np.int32]

# Runs what it was made of once more, and gives the tensor that this writes each time.
Replay = Callable[[], torch.Tensor]

# Makes a replay of a function.
Record = Callable[[Replay], Replay]

SIZES = (8, 16, 32, 64, 128, 256)

# What libraries set up at a first use may not be in a recording.
WARM_UPS = 3


class CapturedPasses:
    """Of `encoder`, for sub-batches of up to `max_tokens`, none until it is said how many. Any thread may run one.

    `recorder` makes what records: CUDA graphs; on a CPU a function is its own replay. All passes are on one stream, and
    a replay's states are copied before the next is launched, so that recordings share their memory.
    """

    sizes = SIZES

    def __init__(self, encoder: Encoder, recorder: Callable[[], Record] | None = None) -> None:
        self._encoder = encoder
        is_cuda = encoder.device.type == "cuda"
        self._recorder = recorder or (partial(CudaGraphs, encoder.device) if is_cuda else lambda: lambda run: run)
        self._record: Record | None = None
        self._recordings: dict[int, tuple[torch.Tensor, Replay]] = {}
        self._running = Lock()
        self.max_length = min(SIZES[-1], num_positions(encoder))
        self.max_tokens = 0

    def serve(self, max_tokens: int, beside_others: int) -> None:
        """Take sub-batches of up to `max_tokens`. `beside_others` has no effect: all lanes share one stream of the GPU.

        Every size is recorded anew into a new memory pool, the largest first, so that smaller ones reuse its memory.
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
        first_position: int,
        beside: Sequence[Indices] = (),
    ) -> torch.Tensor:
        """As Encoder.hidden_states; int32 [tokens], int32 [items], … → [tokens, d]."""
        num_tokens = len(input_ids)
        size = next(each for each in SIZES if each >= num_tokens)
        given = Indices(laid_out(size, input_ids, lengths, keys, type_ids, first_position))
        Indices.upload([given, *beside], self._encoder.device)
        with self._running:
            inputs, replay = self._recording(size)
            inputs.copy_(given.on(inputs.device)[0])
            # The next replay writes there again.
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
    size: int, input_ids: Ints, lengths: Ints, keys: Ints, type_ids: Ints, first_position: int
) -> npt.NDArray[np.int64]:
    """[5, size]: id, type, position, item and whether it is looked at, of each token; those left over see each other.

    >>> laid_out(4, np.array([7, 8, 9]), np.array([2, 1]), np.array([1, 1]), np.zeros(3, np.int32), 2).tolist()
    [[7, 8, 9, 0], [0, 0, 0, 0], [2, 3, 2, 2], [0, 0, 1, 2], [1, 0, 1, 1]]
    """
    items, places = placed(lengths)
    spare = (0, size - len(input_ids))
    rows = [
        np.pad(input_ids, spare),
        np.pad(type_ids, spare),
        np.pad(places, spare) + first_position,
        np.pad(items, spare, constant_values=len(lengths)),
        np.pad(places < keys[items], spare, constant_values=True),
    ]
    return np.array(rows, np.int64)


def num_positions(encoder: Encoder) -> int:
    """How long an item may be for the model's own table of positions, where it has one."""
    most = getattr(encoder.config.get_text_config(), "max_position_embeddings", None)
    return int(most) - encoder.first_position if most else SIZES[-1]


class CudaGraphs:
    """Records by CUDA graphs that share a memory pool, so that none may be replayed while another's states are read.

    Passes of other threads may go on meanwhile.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream, self._pool = stream_of(device), torch.cuda.graph_pool_handle()

    def __call__(self, run: Replay) -> Replay:
        """Unusable where the recording could not be ended."""
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
                    # PyTorch leaves its stream, its pool and their books as they were within the recording.
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
    """One for all recordings: libraries keep memory for each stream that they have worked on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
