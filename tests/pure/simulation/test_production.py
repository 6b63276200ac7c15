"""The simulation has the production's constants: those of modules that need the client of NATS are copied."""

from benchmarks.simulation import ours, parameters, sidecar
from sie_triton.cluster.connection import ACK_WAIT_S
from sie_triton.cluster.gateway.pools import SERVED_S
from sie_triton.cluster.sidecar import joiner, placing, runner
from sie_triton.cluster.workers import MAX_MISSING
from sie_triton.settings import Settings


def test_constants_are_those_of_production():
    assert (ours.LOOK_S, ours.BACKLOG_S, ours.UNUSED_S) == (placing.LOOK_S, placing.BACKLOG_S, placing.UNUSED_S)
    assert (ours.ACK_WAIT_S, ours.MAX_MISSING, ours.SERVED_S) == (ACK_WAIT_S, MAX_MISSING, SERVED_S)
    assert sidecar.CALLS_OF_TARGET == runner.CALLS_OF_TARGET
    assert parameters.MAX_TEXTS_OF_CALL == joiner.MAX_ITEMS


def test_parameters_are_the_settings_defaults():
    settings, of = Settings(device="cpu"), parameters.Parameters()
    assert of.max_requests == settings.batcher_max_batch_requests
    assert of.target_ms == settings.adaptive_target_p50_ms
    assert of.min_residency_s == settings.min_residency_s
    assert settings.health_publish_interval_ms == 1000 * sidecar.HEARTBEAT_S
