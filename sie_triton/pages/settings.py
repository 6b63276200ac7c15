"""docs/settings.md: each field of `Settings`, with its variable, default and description."""

from collections.abc import Mapping
from typing import Any

from sie_triton.pages.tables import table
from sie_triton.settings import Settings
from sie_triton.settings.sources import variable

INTRODUCTION = """\
# Settings

<!-- Generated from sie_triton/settings by `python -m sie_triton.pages`. -->

A setting is a flag of `sie-triton serve` (`--http-port 8000`), an environment variable (`SIE_HTTP_PORT=8000`), or a
line of `sie.yaml` (`http_port: 8000`), in this order of precedence. Those of a cluster are flags of `gateway` and
`sidecar`. `SIE_CONFIG` names another file than `sie.yaml`.
The flag's name is the variable's without `SIE_`. A relative path starts at the working directory. A wrong value stops
the start with the source, the value and what is allowed. [Tuning](tuning.md) says which settings are worth changing,
[operating](operating.md#memory) what counts as memory.
"""

# Every setting belongs to one group; `page` fails otherwise.
GROUPS: Mapping[str, str] = {
    "Addresses": "host triton_host http_port grpc_port metrics_port controller_port allow_remote",
    "Models and files": (
        "models_dir model_filter serve_known allow_any_model max_mentioned_models preload_models data_dir "
        "environments_dir local_cache cluster_cache hf_fallback disk_cache_enabled disk_pressure_threshold_percent "
        "api_key_variables tritonserver"
    ),
    "Device and engine": (
        "device default_compute_precision engine attention_backend cpu_threads max_sub_batch_cost measurements_dir "
        "recalibrate gpu_type bundle"
    ),
    "Requests and batches": (
        "max_concurrent_requests max_requests_per_model max_batch_requests max_batch_wait_ms preprocessor_workers "
        "forward_timeout_s open_steps fork_stubs"
    ),
    "Memory": ("memory_limit_bytes memory_pressure_threshold_percent min_residency_s idle_evict_s load_timeout_s"),
    "Images, sounds and documents": (
        "image_workers max_image_bytes max_image_pixels max_decoded_bytes max_pages max_audio_bytes max_audio_s "
        "max_document_bytes"
    ),
    "LoRA adapters": "max_loras_per_model allow_client_lora",
    "Logs and traces": "log_json log_requests log_slow_ms tracing_enabled instrumentation",
    "The door": (
        "door door_port door_workers door_timeout_s door_max_body_bytes door_max_items door_max_memory_bytes "
        "door_max_connections door_allowed_hosts door_cors_origins door_tei_model"
    ),
    "Tokens": "auth_mode auth_tokens admin_token",
    "A cluster": (
        "nats_url nats_user nats_password nats_credentials nats_tls_ca pool worker_id machine_profile "
        "worker_metrics_port health_publish_interval_ms gateway_url gateway_configured_gpus gateway_configured_pools "
        "pool_admission_enabled config_port config_service_url config_producer nats_config_trusted_producers "
        "worker_config_poll_interval_ms adaptive_target_p50_ms max_concurrent_batches "
        "batcher_max_batch_requests queue_replicas queue_max_bytes queue_max_messages payload_store_url"
    ),
}

FACTORIES = {
    "data_dir": "~/.cache/sie-triton",
    "environments_dir": "~/.local/share/sie-triton/environments",
    "models_dir": "./models, if it has a model file",
}
MIB, GIB = 1024**2, 1024**3


def page() -> str:
    """Return the page; ValueError if a setting is in no group, or in two."""
    named = [name for names in GROUPS.values() for name in names.split()]
    if sorted(named) != sorted(Settings.model_fields):
        raise ValueError(f"settings of GROUPS differ from those of Settings: {set(named) ^ set(Settings.model_fields)}")
    parts = [f"\n## {title}\n\n{_table(names.split())}" for title, names in GROUPS.items()]
    return INTRODUCTION + "".join(parts)


def _table(names: list[str]) -> str:
    rows = []
    for name in names:
        declared = Settings.model_fields[name]
        default = FACTORIES[name] if name in FACTORIES else shown(declared.default)
        rows.append([f"`{variable(name)}`", default, str(declared.description)])
    return table(["variable", "default", "effect"], rows)


def shown(default: Any) -> str:
    """Return a default as a reader would write it.

    >>> shown(64 * MIB), shown(GIB), shown(True), shown(1_500_000_000), shown(0.5), shown(None)
    ('64 MiB', '1 GiB', 'true', '1,500,000,000', '0.5', '')
    """
    if default in (None, ""):
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int):
        if default % MIB == 0 and default:
            return f"{default // GIB} GiB" if default % GIB == 0 else f"{default // MIB} MiB"
        return f"{default:,}" if default >= 100_000 else str(default)
    return f"{default:g}" if isinstance(default, float) else str(default)
