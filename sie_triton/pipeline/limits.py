"""Limits of the stages of a model, its worker and rendering, in addition to those that an operator sets."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CopyLimits:
    """Times of the copies of a busy model, in seconds."""

    after_s: float = 3.0  # for which more work must wait than runs, on all copies that there are
    again_s: float = 30.0  # after a copy was taken or failed: the memory may be short for a while
    idle_s: float = 60.0  # without a pass, after which a copy goes
    look_s: float = 0.5  # between two looks at all of this


@dataclass(frozen=True)
class StageLimits:
    """Limits of a stage's process."""

    # Loads, and requests that are deferred.
    retry_load_s: float = 30.0  # after which the first request loads again
    load_log_s: float = 5.0  # between two log lines about the progress of a load
    call_poll_s: float = 0.5  # of the door's calls, whether their clients have disconnected
    successor_poll_s: float = 2.0  # of whether another process waits for this one to end
    drain_timeout_s: float = 60.0  # of requests that are left, once what replaces this process loads or wants to

    # Inference. `execute` waits for the result of a pass that is quick, or little; Triton gathers requests meanwhile,
    # and what it returns together spares each request a round trip.
    num_halvings: int = 4  # of a sub-batch that does not fit in memory
    little_ratio: float = 1 / 4  # of the budget
    quick_s: float = 0.01  # on a CPU, of a lane
    quick_per_request_s: float = 0.001  # on a CPU, of a lane, where there are several requests
    undivided_s: float = 0.003  # on a CPU, of a lane: a shorter pass is not divided among lanes, nor threads of both
    gather_s: float = 0.01  # delay of arrivals while a lane's budget is queued: their deadlines are unknown until then
    refused_s: float = 60.0  # after which a request that has ended two workers is computed again
    num_refused: int = 256  # requests that are remembered; beyond it, the oldest is forgotten
    num_traced_passes: int = 64  # in the trace of a request

    # Responses through Triton's shared memory, a region that grows by `region_growth_bytes` at a time.
    small_response_bytes: int = 64 * 1024  # fits without growth
    region_growth_bytes: int = 1024 * 1024
    no_room_s: float = 1.0  # from when room ran out, not for each response: they wait one after another
    room_poll_s: float = 0.02

    # LoRA adapters.
    num_lora_fetches: int = 4  # at a time; the worker loads one adapter at a time
    lora_bytes: int = 2 << 30  # of an adapter from the hub; if the settings allow it, clients may name any
    num_waiting_for_lora: int = 100  # requests for one adapter; they count towards the limit on all requests
    retry_lora_s: float = 30.0  # after which the first request fetches an adapter again
    lora_worker_s: float = 120.0  # wait of a load for the replacement of a dead worker
    lora_poll_s: float = 0.02  # while an adapter that must leave is still in use
    lora_write_s: float = 1.0  # between two records of the times of last use
    lora_sweep_s: float = 2.0  # between two looks for adapters that were removed from the model

    copies: CopyLimits = CopyLimits()


@dataclass(frozen=True)
class WorkerLimits:
    """Limits of a worker's process, and of a stage's watch over it."""

    poll_s: float = 0.5  # while a worker loads, and whether it has been stopped
    end_s: float = 2.0  # that a worker has to end by itself
    tokenizer_s: float = 150.0  # to write a tokenizer
    lane_rest_s: float = 0.1  # without work, after which a lane's threads end
    device_bytes_s: float = 1.0  # between two readings of the device's memory

    # Calibration.
    calibration_s: float = 5.0  # after which no larger size is measured
    longest_pass_s: float = 0.3  # a small request waits that long at most
    around_pass_s: float = 0.003  # overhead of a sub-batch outside its pass

    # Graphs.
    num_passes_before_export: int = 32
    graph_weights_bytes: int = 512 * 1024**2  # a model with more has no graph
    num_trials: int = 5  # of a measurement that another pass disturbs
    trial_rest_s: float = 0.01  # before each trial; as long as the previous one if that took longer


@dataclass(frozen=True)
class MirrorLimits:
    """Limits of the copy of model files from an object store."""

    sync_s: float = 5.0  # between comparisons with the store
    num_objects: int = 10_000  # listed, of any kind
    num_files: int = 2000
    file_bytes: int = 1 << 20
    all_bytes: int = 64 << 20
