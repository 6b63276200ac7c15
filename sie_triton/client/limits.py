"""Timeouts and retries of a client, in addition to those that its caller sets."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ClientLimits:
    """Limits of one client."""

    retry_s: float = 30.0  # of calls to a busy or unreachable server, without a timeout of the caller's
    first_retry_s: float = 2.0  # the same where no server has ever responded, because its address may be wrong
    http_grace_s: float = (
        0.25  # from the deadline to the transport's timeout: the server itself responds at the deadline
    )
    grpc_grace_s: float = 1.0  # longer: Triton 24.10 can crash if a client cancels a call at the moment of the response
    num_deaths: int = 4  # of the stage, after which a request is not sent again, because it may be why
    death_waits_s: tuple[float, ...] = (1.0, 2.0, 4.0)  # Triton notices a death after 1 s; a new stage takes a few more
    live_probe_s: float = 1.0  # tells whether UNAVAILABLE came from a busy server, or from gRPC without a server
    connect_controller_s: float = 2.0  # a firewall may drop what is sent to its port
    serve_s: float = 120.0  # until a known model is in service, without a timeout of the caller's
