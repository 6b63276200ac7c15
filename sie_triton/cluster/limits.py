"""Limits of each process of a cluster. Times are in seconds, sizes in bytes."""

from dataclasses import dataclass

from sie_triton.http.limits import ConnectionLimits


@dataclass(frozen=True)
class ClusterLimits:
    """Limits of each process that is connected to the queue."""

    ping_s: float = 3  # a server that does not answer two of them, as it was stopped or cut off, counts as gone
    log_interval_s: float = 5.0  # between two log lines about failures of the connection
    restart_s: float = 1.0  # pause before a part of the process that failed starts again
    max_age_s: float = 3600.0  # of a request: no timeout is longer
    lease_ttl_s: float = 1200.0  # after its last renewal a lease ends
    heartbeat_s: float = 1.0  # usual interval of a worker's heartbeats
    max_missing_heartbeats: int = 3  # then a worker counts as gone, or a request for work as lost
    max_workers: int = 10_000  # further ones are not listened to
    max_gateways: int = 1000  # whose heartbeats are listened to
    bucket_retry_s: float = 1.0  # pause before a bucket is opened again after an error
    bucket_absent_s: float = 5.0  # and if there is none
    bucket_listen_s: float = 0.5  # one wait for news of a bucket


@dataclass(frozen=True)
class GatewayLimits(ClusterLimits):
    """Limits of a gateway."""

    # Requests in the queue
    confirm_s: float = 2.0  # then a request that the stream has not confirmed is sent again
    announce_s: float = 0.25  # between two announcements of a model, or two attempts to store a request
    delete_s: float = 0.02  # in which the deletion of an answered request can go with the next request
    answer_grace_s: float = 0.25  # the stages answer at the deadline, and say what the request waited for
    removed_s: float = 5.0  # in which requests for a removed model may be answered that a worker has fetched
    max_waiting: int = 10_000  # requests before the queue
    max_waiting_of_tenant: int = 5_000
    min_of_tenant: int = 4  # requests in the queue for a model, although others fill it
    min_rated: int = 8  # requests from which the expected duration of another one is known
    max_rated: int = 32  # requests from which it is taken, the latest

    # Heartbeats of gateways. Workers drop the requests of one that was silent for SidecarLimits.gateway_gone_s
    own_heartbeat_s: float = 1.0
    own_silence_s: float = 10.0  # then requests that wait are sent again
    gateway_stale_s: float = 3.0  # then another gateway counts as gone

    # Pools and leases
    served_age_s: float = 0.2  # of what is known about the workers: a look at all for each request takes too long
    demand_s: float = 120.0  # a request counts as demand for longer than its client waits before it asks again
    measure_s: float = 5.0  # between two looks at the length of the queue
    max_leases: int = 100
    max_lease_kinds: int = 20  # kinds of machines
    max_lease_workers: int = 1000  # workers of one kind
    lease_kept_s: float = 2 * 3600.0  # after its end: a clock may be wrong for a while

    # Questions to workers, and models that they begin to serve
    question_try_s: float = 2.0  # then another worker is asked
    max_mentions: int = 32  # models that workers are asked to serve at a time
    serve_s: float = 30.0  # for a worker to serve one
    served_heartbeat_s: float = 10.0  # for its heartbeat to come then
    unknown_s: float = 10.0  # for which a name that no worker knows is remembered

    # The gRPC port
    max_streams: int = 1024  # calls of one connection; further ones wait at the client
    head_s: float = ConnectionLimits.head_timeout_s  # for the beginning of a connection
    keep_alive_s: float = ConnectionLimits.keep_alive_s  # without a call
    max_connection_s: float = 3600.0  # then a client is told to open another one; its calls may go on for max_age_s
    receive_s: float = 60.0  # for a message to arrive
    max_receiving: int = 2000  # messages that arrive at a time; one more ends the oldest
    call_bytes: int = 20 * 1024  # memory of gRPC core and asyncio for a call
    max_fields: int = 1000  # one for each parameter, input and output, and one with the bytes of each input


@dataclass(frozen=True)
class SidecarLimits(ClusterLimits):
    """Limits of a sidecar."""

    queue_s: float = 1.0  # for an answer of the queue
    question_s: float = 5.0  # for an answer of Triton to a question
    triton_grace_s: float = 1.0  # after a deadline, at which the stages answer
    names_s: float = 5.0  # between two looks at the names of Triton's models
    drain_s: float = 25.0  # for requests in progress, after SIGTERM
    alive_s: float = 30.0  # without a heartbeat the sidecar counts as hung

    # Work in progress
    report_s: float = 1.0  # between two reports that it goes on
    ack_wait_s: float = 5.0  # without a report it goes to another worker
    gateway_silent_s: float = 3.0  # after the last heartbeat of a gateway, its work is returned ...
    gateway_gone_s: float = 15.0  # ... and dropped
    max_withdrawn: int = 10_000  # requests that were withdrawn before they came
    max_error_deliveries: int = 8  # then an error that another worker might not have is the answer
    max_triton_deaths: int = 2  # Tritons that a request may end
    busy_pause_s: float = 0.2  # before work goes to a worker again; it doubles with each delivery
    away_pause_s: float = 0.5  # if Triton is away
    max_pause_s: float = 3.2

    # Requests for work
    max_batch: int = 32  # messages: a worker that asks for many takes them from idle ones
    min_batch: int = 4  # in any case, and beside as many as a model has in progress: idle models leave places to others
    small_bytes: int = 1024**2  # of the small messages that one request for work gets
    pull_s: float = 20.0
    pull_large_s: float = 4.0  # it holds memory, and another worker may have been faster
    pull_heartbeat_s: float = 2.0  # at which the queue says that it has a request for work

    # Calls of Triton that requests share
    max_joined_items: int = 512  # as of the pieces in which SIE's clients send many items
    max_joined_bytes: int = 256 * 1024  # a larger request is called alone, and not parsed
    max_joined_parts: int = 100  # inputs, outputs and parameters: a client can send any number of empty ones
    max_call_targets: float = 2  # times the target of the wait that a call may take: shorter ones cost throughput
    max_unshared: int = 4  # calls at a time of one tenant that each have one request, while there are several tenants
    max_apart: int = 1000  # kinds of request that could not be split, the latest

    # Memory of requests
    max_requests_bytes: int = 256 * 1024**2  # more of them do not make a Triton faster
    max_payload_bytes: int = 1024**3
    requests_share: float = 1 / 8  # of the machine's memory: a request is held up to four times on its way to Triton
    payload_share: float = 1 / 6  # of the machine's memory, for one alone
    max_waiting_payloads: int = 4  # they have places that other requests could have
    payload_wait_s: float = 5.0  # then one goes back to the queue
    max_reads: int = 4  # payloads that are read at a time
    read_turn_s: float = 1.0  # for which a request waits for its turn to read

    # Placement
    placing_look_s: float = 0.1  # between two looks at wanted models
    backlog_s: float = 1.0  # between two looks at the requests in the stream
    unused_s: float = 5.0  # then a model that is not in memory is given up
    news_s: float = 3.0  # for which it counts what a gateway has told of its waiting requests
    max_wanted: int = 10_000  # models
    apply_retry_s: float = 2.0  # pause after a change of a model file that was not possible


@dataclass(frozen=True)
class ConfigLimits(ClusterLimits):
    """Limits of a config service."""

    queue_s: float = 5.0  # for an answer of the queue
    max_files: int = 10_000  # removed ones included
    max_idempotency_keys: int = 10_000  # that are remembered, the latest
    streams_look_s: float = 600.0  # between two looks at all streams
    pool_unused_s: float = 3600.0  # then its stream is removed
    max_pools: int = 1000
    dead_age_s: float = 7 * 24 * 3600.0  # of a request that ended its Tritons


@dataclass(frozen=True)
class UpLimits:
    """Limits of `sie-triton cluster up`."""

    nats_s: float = 30.0  # for nats-server to start, and to end
    ready_s: float = 300.0  # for the workers to be ready
    sidecar_end_s: float = 27.0  # for its requests after SIGTERM
    server_grace_s: float = 8.0  # beyond EXIT_TIMEOUT_S
    config_end_s: float = 10.0
    free_bytes: int = 64 * 1024**2  # with which nats-server is restarted after a full disk
