"""SIE's documentation of May 2026: a test for each statement that holds here; SIE's variables and defaults.

Its four pages (performance tuning, request lifecycle, configuration, engine overview) make 190 statements. Here are
those that hold, repeated ones once; docs/migrating-from-sie.md has what differs.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from sie_triton.settings import Settings, read_settings
from sie_triton.settings.sources import NOT_READ, why_not_read

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/migrating-from-sie.md").read_text()

# SIE's default stands behind a variable.
VARIABLE = re.compile(r"(SIE_\w+)(?: ([^\s,:]+))?")

# Statements and the tests that show them, below tests/.
STATEMENTS = {
    "cost, requests and wait limit a batch, cost first": (
        "pure/pipeline/scheduling/test_admission.py::test_admits_up_to_the_budget",
        "pure/pipeline/scheduling/test_scheduler_order.py::test_a_pass_takes_the_items_of_a_limited_number_of_requests",
        "server/test_cost.py::test_64_clients_never_exceed_the_budget",
    ),
    "a text costs its tokens, counted before batching": (
        "server/test_cost.py::test_batch_counts_match_the_prediction",
        "pure/pipeline/stages/test_preprocess.py::test_the_query_is_appended_and_counted_in_the_cost",
    ),
    "long texts take no memory from others": (
        "pure/pipeline/scheduling/test_plan.py::test_only_a_lone_item_exceeds_the_budget",
    ),
    "similar lengths run together, padded to the longest": (
        "pure/pipeline/scheduling/test_plan.py::test_neighbours_in_cost_run_together",
        "pure/engines/test_rows.py::test_rows_have_one_token_of_padding_for_eight_real_ones_at_most",
    ),
    "the ceiling of a batch can be set": (
        "pure/pipeline/stages/test_inference_books.py::test_sub_batch_size_is_limited_by_measurement_and_model_file",
    ),
    "requests share passes; one alone is answered at once": (
        "server/test_cost.py::test_requests_that_queue_share_forward_passes_as_predicted",
        "process/pipeline/stages/test_inference.py::test_one_request_on_an_idle_device_is_answered_at_once",
    ),
    "the number of requests is limited": ("server/test_load.py::test_overload_is_answered_or_refused_at_once",),
    "results reach their requests in order": (
        "pure/pipeline/scheduling/test_groups.py::test_each_request_gets_its_own_rows_in_its_own_order",
        "process/pipeline/stages/test_inference.py::test_every_request_gets_its_own_rows_cold_and_warm",
    ),
    "preprocess, inference, postprocess, for each verb": (
        "server/test_own_family.py::test_render",
        "pure/contract/test_verbs.py::test_every_verb_accepts_the_familys_own_parameters",
    ),
    "threads that all models share prepare texts and images beside inference": (
        "pure/pipeline/stages/test_preparing.py::test_all_elements_are_prepared_once_and_handed_over_once",
        "pure/pipeline/stages/test_preparing.py::test_threads_share_a_large_request_and_small_ones_are_not_delayed",
        "server/test_slots.py::test_two_models_wait_for_the_same_slots",
        "pure/pipeline/scheduling/test_lanes.py::test_a_pass_is_prepared_while_a_gpu_computes_another",
    ),
    "images as the model expects them": (
        "comparison/test_clip_comparison.py::test_pixels_are_those_of_the_processor",
        "comparison/test_processor_classes_comparison.py::test_every_setting_is_obeyed_or_refused_unless_it_has_no_effect",
    ),
    "a process for each model, which blocks no loop": (
        "process/pipeline/worker/test_worker.py::test_worker_results_match_the_adapters",
        "process/pipeline/stages/test_inference.py::test_execute_computes_small_requests_itself_and_defers_larger_ones",
    ),
    "the best engine is chosen": (
        "process/engines/test_graphs.py::test_a_slower_graph_is_not_taken_nor_opened_again",
        "process/pipeline/worker/test_calibration.py::test_the_faster_path_is_taken_where_there_are_two",
    ),
    "attention flash_attention_2, sdpa, eager, by name": (
        "process/engines/test_flash_attention.py::test_the_package_is_called_as_it_asks",
        "process/engines/test_attention_backend.py::test_eager_and_sdpa_hold_or_are_refused_by_name",
        "process/engines/test_attention_backend.py::test_encoders_hold_eager_and_sdpa_on_the_path_that_fits_them",
        "process/engines/test_attention_backend.py::test_a_backend_that_is_asked_for_is_not_replaced_by_a_graph",
    ),
    "flash attention's requirements, else SDPA": (
        "process/engines/test_flash_attention.py::test_an_older_gpu_has_sdpa",
        "process/engines/test_flash_attention.py::test_a_package_that_cannot_be_imported_is_not_chosen",
        "process/engines/test_flash_attention.py::test_without_flash_attention_sdpa_computes",
    ),
    "float32, float16, bfloat16": (
        "comparison/test_sentence_transformer_comparison.py::test_precision",
        "process/engines/test_architectures.py::test_float32_equals_the_library",
        "process/engines/test_architectures.py::test_bfloat16_stays_close",
        "process/engines/test_overflow.py::test_a_model_that_overflows_in_float16_is_loaded_again_in_bfloat16",
        "process/engines/test_overflow.py::test_non_finite_states_in_float16_raise_overflow",
    ),
    "MUVERA; quantization after all other transforms": (
        "pure/contract/transforms/test_transforms.py::test_muvera_is_its_definition",
        "server/test_outputs.py::test_multivector_and_muvera",
        "server/test_outputs.py::test_quantised",
        "server/test_outputs.py::test_dimensions_are_cut_normalised_and_then_quantised",
    ),
    "LoRA adapters; the least recently used leaves": (
        "server/test_lora.py::test_adapter_vectors_match_peft_and_the_base_is_unchanged",
        "server/test_lora.py::test_the_most_recently_used_adapters_stay",
    ),
    "adapters of your own": ("server/test_own_family.py::test_a_directory_without_a_model_file",),
    "bundles": ("process/models/catalog/test_bundles.py::test_a_bundle_names_the_models_that_are_served",),
    "a model loads on its first request, and comes back after an eviction": (
        "process/pipeline/stages/test_inference.py::test_concurrent_first_requests_load_once",
        "residency/test_traffic.py::test_evictions_under_traffic_fail_no_request",
    ),
    "the least recently used model leaves, before a load and above a threshold": (
        "residency/test_traffic.py::test_eviction_takes_the_least_recently_used_model",
        "pure/controller/test_controller.py::test_memory_is_freed_and_then_granted",
        "pure/controller/test_room.py::test_pressure_is_relieved_while_something_loads",
        "pure/controller/test_rounds.py::test_memory_pressure_evicts_the_least_recently_used_model",
        "residency/test_small_limit.py::test_alternating_requests_respect_a_memory_limit_for_two_models",
        "pure/controller/test_room_rules.py::test_the_least_recently_used_sufficient_model_is_evicted_alone",
    ),
    "every call counts as a use; idle models leave": (
        "pure/records/test_status.py::test_work_counts_as_use_from_its_start",
        "residency/test_control.py::test_an_idle_model_is_evicted_and_a_busy_one_is_not",
    ),
    "memory by NVML, or of the system": (
        "process/system/host/test_device.py::test_nvml_measures_what_cuda_takes",
        "pure/controller/test_controller.py::test_memory_of_a_process_and_of_a_container",
    ),
    "times of the stages in each response": (
        "server/test_door.py::test_timings_are_in_the_body_and_in_headers",
        "pure/pipeline/stages/test_inference_books.py::test_waiting_time_is_split_into_queueing_and_batching",
    ),
    "flags before variables before defaults": (
        "pure/settings/test_settings.py::test_a_flag_beats_the_environment_beats_the_file_beats_the_default",
    ),
    "local cache, cluster cache, hub; a store of model files": (
        "process/models/weights/test_weights_cluster.py::test_a_model_that_the_cluster_cache_lacks_comes_from_the_hub",
        "process/models/weights/test_weights_cluster.py::test_offline_the_cluster_cache_is_used",
        "server/test_weights.py::test_model_files_of_a_store_are_served_and_followed",
    ),
    "JSON logs with model, request, trace and latency": (
        "pure/system/telemetry/test_request_log.py::test_a_line_has_what_is_known_of_the_request",
        "pure/system/telemetry/test_options.py::test_json_logs_have_a_line_for_each_request_unless_these_are_turned_off",
    ),
    "OTEL_SERVICE_NAME, OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, "
    "OTEL_TRACES_SAMPLER_ARG": (
        "pure/system/telemetry/test_tracing.py::test_the_service_has_the_name_of_the_variable_else_sies",
        "pure/system/telemetry/test_tracing.py::test_unknown_exporters_stop_the_start",
        "server/test_telemetry.py::test_a_recorded_request_has_its_whole_trace_and_its_log_lines",
        "pure/system/telemetry/test_tracing.py::test_the_sampler_decides_once",
        "pure/system/telemetry/test_tracing.py::test_a_ratio_samples_its_share_and_every_process_decides_alike",
    ),
    "speed is evaluated beside targets": (
        "server/test_eval.py::test_speed_takes_turns_and_meets_no_impossible_target",
    ),
    "requests go to a worker that has their model": (
        "process/cluster/test_placing.py::test_a_models_requests_go_to_the_worker_that_has_it_in_memory",
    ),
    "Helm renders gateway, config service, workers with sidecars, and variables": (
        "process/deploy/test_chart.py::test_kubernetes_would_take_it",
        "process/deploy/test_chart.py::test_every_variable_is_a_setting",
        "process/deploy/test_chart_values.py::test_batching_values_have_the_names_of_sie",
    ),
    "SIE_ATTENTION_BACKEND auto, SIE_CLUSTER_CACHE, SIE_DISK_CACHE_ENABLED true, "
    "SIE_DISK_PRESSURE_THRESHOLD_PERCENT 85, SIE_GPU_COUNT 1, SIE_GPU_TYPE, SIE_HF_FALLBACK true, "
    "SIE_IDLE_EVICT_S 300, SIE_IMAGE_WORKERS 4, SIE_INSTRUMENTATION false, SIE_LOCAL_CACHE, SIE_LOG_JSON "
    "false, SIE_MAX_BATCH_REQUESTS 64, SIE_MAX_CONCURRENT_REQUESTS 512, SIE_MAX_LORAS_PER_MODEL 10, "
    "SIE_MEMORY_PRESSURE_THRESHOLD_PERCENT 85, SIE_MODEL_FILTER, SIE_MODELS_DIR ./models, "
    "SIE_PRELOAD_MODELS, SIE_PREPROCESSOR_WORKERS 4, SIE_TRACING_ENABLED false": (
        "server/test_settings.py::test_a_variable_of_the_reference_has_an_effect_on_a_running_server",
        "pure/settings/test_settings.py::test_a_directory_models_is_that_of_the_model_files_if_it_has_one",
    ),
    "SIE_DEVICE auto, SIE_MAX_BATCH_WAIT_MS 10, SIE_DEFAULT_COMPUTE_PRECISION float16: accepted, though "
    "ours may be others": (
        "process/system/host/test_device.py::test_settings_name_one_device",
        "server/test_settings.py::test_a_variable_of_the_reference_has_an_effect_on_a_running_server",
    ),
    "SIE_AUTH_MODE none, SIE_AUTH_TOKEN, SIE_AUTH_TOKENS, SIE_ADMIN_TOKEN, "
    "SIE_NATS_CONFIG_TRUSTED_PRODUCERS sie-config": (
        "process/cluster/test_port.py::test_without_a_token_nothing_of_a_message_is_read",
        "pure/settings/test_settings.py::test_the_singular_variable_holds_one_more_token",
        "process/cluster/test_changes.py::test_changes_and_the_export_need_the_admin_token_and_reads_one_of_the_clients",
        "process/cluster/test_changes.py::test_changes_of_a_producer_that_is_not_trusted_are_ignored",
    ),
    "SIE_NATS_URL, SIE_PAYLOAD_STORE_URL, SIE_CONFIG_SERVICE_URL, SIE_GATEWAY_URL, SIE_GATEWAY_CONFIGURED_GPUS": (
        "process/cluster/test_variables.py::test_the_queue_is_at_its_address",
        "process/cluster/test_payloads.py::test_a_request_larger_than_a_message_goes_through_the_payload_store",
        "process/cluster/test_variables.py::test_model_files_go_to_the_config_service_at_its_address",
        "process/cluster/test_variables.py::test_the_status_shows_the_workers_of_the_gateway_at_its_address",
        "process/cluster/test_demand.py::test_a_kind_of_machine_that_a_pool_lacks_is_demand",
    ),
    "SIE_BATCHER_COALESCE_MS 5, SIE_BATCHER_MAX_BATCH_REQUESTS 12, SIE_ADAPTIVE_MIN_QUANTUM_MS 2, "
    "SIE_ADAPTIVE_MAX_QUANTUM_MS 15, SIE_ADAPTIVE_TARGET_P50_MS 50, SIE_MAX_CONCURRENT_BATCHES 4": (
        "process/cluster/test_variables.py::test_a_sidecar_waits_for_requests_to_join",
        "process/cluster/test_variables.py::test_the_wait_ends_once_as_many_requests_wait_as_one_call_may_have",
        "process/cluster/test_variables.py::test_the_wait_of_a_sidecar_grows_to_a_maximum_while_requests_wait_less_than_the_target",
        "process/cluster/test_variables.py::test_the_target_decides_how_much_a_sidecar_fetches",
        "process/cluster/test_variables.py::test_calls_of_a_triton_are_limited",
    ),
    "SIE_POOL _default, SIE_BUNDLE default, SIE_WORKER_ID, SIE_MACHINE_PROFILE, SIE_POOL_ADMISSION_ENABLED true": (
        "process/cluster/test_queue.py::test_the_answer_names_its_worker",
        "process/cluster/test_variables.py::test_a_worker_reports_its_name_pool_profile_and_number_of_gpus",
        "process/cluster/test_lease_names.py::test_a_worker_that_may_not_be_leased_stays",
    ),
    "SIE_WORKER_METRICS_PORT 9095, SIE_HEALTH_PUBLISH_INTERVAL_MS 5000, "
    "SIE_WORKER_CONFIG_POLL_INTERVAL_MS 30000, SIE_WORKER_CONFIG_FULL_EXPORT_INTERVAL_MS 300000": (
        "process/cluster/test_outages.py::test_a_sidecar_without_heartbeats_is_reported_as_dead",
        "process/cluster/test_variables.py::test_heartbeats_come_at_the_interval",
        "process/cluster/test_changes.py::test_a_change_of_which_nobody_told_is_found_by_a_poll",
        "process/cluster/test_variables.py::test_a_change_by_hand_is_undone_at_the_interval_of_the_full_export",
    ),
}


def variables() -> set[tuple[str, str]]:
    """Return each variable of the statements with SIE's default, empty if it has none."""
    return {found for statement in STATEMENTS for found in VARIABLE.findall(statement)}


@cache
def functions_in(path: str) -> set[str]:
    return {
        node.name for node in ast.parse((ROOT / "tests" / path).read_text()).body if isinstance(node, ast.FunctionDef)
    }


def test_every_named_test_exists():
    named = [name.split("::") for names in STATEMENTS.values() for name in names]
    assert [f"{path}::{name}" for path, name in named if name not in functions_in(path)] == []


def test_a_variable_is_a_setting_or_has_the_reason_of_the_commands():
    named = set(re.findall(r"`(SIE_\w+)", PAGE))
    settings = {f"SIE_{name.upper()}" for name in Settings.model_fields} | {"SIE_AUTH_TOKEN"}
    assert [name for name in named - settings if not why_not_read(name)] == []
    assert NOT_READ.keys() <= named
    assert {name for name, _ in variables()} <= settings


@pytest.mark.parametrize(("variable", "value"), sorted(each for each in variables() if each[1]))
def test_sies_default_is_accepted(tmp_path, monkeypatch, variable, value):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, value)
    accepted = getattr(read_settings(), variable.removeprefix("SIE_").lower())
    assert str(accepted).lower() in (value, f"{value}.0", value.removeprefix("./"))
