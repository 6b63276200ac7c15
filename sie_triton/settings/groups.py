"""Groups of settings, as documents and the command line's help show them."""

from collections.abc import Mapping

# Names of settings by group. Every setting belongs to one; the page of settings is not written otherwise.
GROUPS: Mapping[str, str] = {
    "Models and files": (
        "models_dir model_filter serve_known allow_any_model max_mentioned_models preload_models data_dir "
        "environments_dir local_cache cluster_cache hf_fallback disk_cache_enabled disk_pressure_threshold_percent "
        "api_key_variables tritonserver"
    ),
    "Addresses": "host http_port grpc_port metrics_port controller_port door_port triton_host allow_remote",
    "Memory": "memory_limit_bytes memory_pressure_threshold_percent min_residency_s idle_evict_s load_timeout_s",
    "Device and engine": (
        "device default_compute_precision engine attention_backend cpu_threads max_sub_batch_cost measurements_dir "
        "recalibrate gpu_type gpu_count bundle"
    ),
    "Requests and batches": (
        "max_concurrent_requests max_requests_per_model max_batch_requests max_batch_wait_ms preprocessor_workers "
        "forward_timeout_s fork_stubs"
    ),
    "Images, sounds and documents": (
        "image_workers max_image_bytes max_image_pixels max_decoded_bytes max_pages max_audio_bytes max_audio_s "
        "max_document_bytes"
    ),
    "LoRA adapters": "max_loras_per_model allow_client_lora",
    "Logs and traces": "log_json log_requests log_slow_ms tracing_enabled instrumentation",
    "The door": (
        "door door_workers door_timeout_s door_max_body_bytes door_max_items door_max_memory_bytes "
        "door_max_file_bytes door_max_connections door_allowed_hosts door_cors_origins door_tei_model"
    ),
    "Tokens": "auth_mode auth_tokens admin_token",
    "A cluster": (
        "nats_url nats_user nats_password nats_credentials nats_tls_ca pool worker_id machine_profile "
        "worker_metrics_port health_publish_interval_ms gateway_url gateway_configured_gpus gateway_configured_pools "
        "pool_admission_enabled config_port config_service_url config_producer nats_config_trusted_producers "
        "worker_config_poll_interval_ms worker_config_full_export_interval_ms adaptive_target_p50_ms "
        "adaptive_min_quantum_ms adaptive_max_quantum_ms max_concurrent_batches batcher_max_batch_requests "
        "batcher_coalesce_ms queue_replicas queue_max_bytes queue_max_messages payload_store_url"
    ),
}

# Settings that --help shows; --help-all shows the others, too.
USUAL = (
    "models_dir preload_models model_filter data_dir local_cache hf_fallback host http_port grpc_port metrics_port "
    "controller_port door_port memory_limit_bytes idle_evict_s device default_compute_precision "
    "max_concurrent_requests auth_mode auth_tokens admin_token"
)
