"""The simulation's parameters are the defaults of the settings; its limits are those of the processes themselves."""

from benchmarks.simulation import parameters
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.settings import Settings


def test_parameters_are_the_settings_defaults():
    settings, of = Settings(device="cpu"), parameters.Parameters()
    assert of.max_requests == settings.batcher_max_batch_requests
    assert of.target_ms == settings.adaptive_target_p50_ms
    assert of.min_residency_s == settings.min_residency_s
    assert settings.health_publish_interval_ms == 1000 * SidecarLimits.heartbeat_s
    assert SidecarLimits.max_joined_items == parameters.MAX_TEXTS_OF_CALL
