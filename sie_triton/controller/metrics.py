"""Prometheus metrics of the models and their memory."""

from collections.abc import Iterator, Mapping

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from sie_triton.contract.names import sie_name
from sie_triton.controller.loop import Controller
from sie_triton.controller.model_states import STATES
from sie_triton.records.status import LOAD_PHASES
from sie_triton.records.traffic import HISTOGRAMS, Histogram, Numbers

# Counter of the status record → name and description of the metric.
OF_REQUESTS = {
    "num_refused": ("sie_requests_refused", "requests refused because too many were in progress"),
    "num_expired": ("sie_requests_expired", "requests whose timeout passed before they were answered"),
    "num_faults": ("sie_faults", "errors outside the handling of a request, and responses that Triton rejected"),
}

# The counters of each stage.
COUNTERS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "preprocess": {"num_requests": ("sie_requests_accepted", "requests accepted"), **OF_REQUESTS},
    "inference": {
        **OF_REQUESTS,
        "num_cancelled": (
            "sie_requests_cancelled",
            "requests abandoned because their client had cancelled or disconnected",
        ),
        "num_replaced": ("sie_workers_replaced", "worker processes that died and were replaced"),
        "num_deferred": ("sie_requests_deferred", "requests answered after execute had returned"),
        "num_items": ("sie_items_computed", "items that went through a forward pass"),
        "num_sub_batches": ("sie_sub_batches", "forward passes"),
        "total_cost": ("sie_cost_computed", "cost of the computed items, in tokens for text"),
    },
}


class Collector:
    """Prometheus metrics of the controller's latest round; the event loop's thread collects them, nothing raises."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        yield from self._memory()
        yield from self._models()
        yield from self._counts()
        yield from self._traffic()

    def _memory(self) -> Iterator[Metric]:
        labels = ["device", "source"]
        used = GaugeMetricFamily("sie_memory_used_bytes", "memory used on the device", labels=labels)
        limit = GaugeMetricFamily("sie_memory_limit_bytes", "memory limit of the device", labels=labels)
        pressure = GaugeMetricFamily("sie_memory_pressure_ratio", "used memory as a share of the limit", labels=labels)
        for device, memory in self._controller.memories.items():
            used.add_metric([device, memory.source], memory.used)
            limit.add_metric([device, memory.source], memory.limit)
            pressure.add_metric([device, memory.source], memory.used / memory.limit)
        yield from (used, limit, pressure)

    def _models(self) -> Iterator[Metric]:
        state = GaugeMetricFamily("sie_model_state", "1 for a model's current state", labels=["model", "state"])
        size = GaugeMetricFamily("sie_model_memory_bytes", "memory of a model's worker", labels=["model"])
        seconds = GaugeMetricFamily(
            "sie_model_load_seconds", "duration of the last load, by phase", labels=["model", "phase"]
        )
        loras = GaugeMetricFamily("sie_model_loras", "LoRA adapters that a model has in memory", labels=["model"])
        lora_bytes = GaugeMetricFamily("sie_model_lora_bytes", "memory of a model's LoRA adapters", labels=["model"])
        in_memory = self._controller.loras.in_memory()
        for model in self._controller.models.values():
            if model.is_removed:
                continue
            name = sie_name(model.name)
            size.add_metric([name], model.num_bytes)
            adapters = in_memory.get(model.name, [])
            loras.add_metric([name], len(adapters))
            lora_bytes.add_metric([name], sum(adapters))
            for phase in LOAD_PHASES:
                seconds.add_metric([name, phase], model.record[f"{phase}_ns"] / 1e9)
            for each in ("cold", "dead", *STATES.values()):
                state.add_metric([name, each], float(model.state == each))
        yield from (state, size, seconds, loras, lora_bytes)

    def _counts(self) -> Iterator[Metric]:
        swaps = CounterMetricFamily("sie_swaps", "replaced processes of a model", labels=["model", "reason"])
        for (name, reason), count in self._controller.swaps.counts.copy().items():
            swaps.add_metric([sie_name(name), reason], count)
        loads = CounterMetricFamily("sie_model_loads", "times a model's weights were loaded", labels=["model"])
        for name, traffic in self._controller.traffic.totals("inference").items():
            loads.add_metric([sie_name(name)], traffic.total["num_loads"])
        yield from (loads, swaps)
        families: dict[str, CounterMetricFamily] = {}
        for stage, counters in COUNTERS.items():
            totals = self._controller.traffic.totals(stage)
            for field, (name, doc) in counters.items():
                family = families.setdefault(name, CounterMetricFamily(name, doc, labels=["model", "stage"]))
                for model, traffic in totals.items():
                    family.add_metric([sie_name(model), stage], traffic.total[field])
        yield from families.values()

    def _traffic(self) -> Iterator[Metric]:
        totals = {sie_name(name): traffic for name, traffic in self._controller.traffic.totals().items()}
        for histogram in HISTOGRAMS:
            labels = ("model", "verb") if histogram.of_verbs else ("model",)
            family = HistogramMetricFamily(histogram.name, histogram.doc, labels=labels)
            for name, traffic in totals.items():
                for verb, counts, total in traffic.rows(histogram):
                    family.add_metric((name, verb)[: len(labels)], buckets(counts, histogram), total)
            yield family
        errors = CounterMetricFamily("sie_request_errors", "requests that failed", labels=["model", "kind"])
        for name, traffic in totals.items():
            for kind, count in traffic.errors.items():
                errors.add_metric([name, kind], count)
        yield errors


def buckets(counts: Numbers, histogram: Histogram) -> list[tuple[str, float]]:
    """Return the buckets as Prometheus has them: each counts the values up to its limit."""
    limits = [*map(floatToGoString, histogram.bounds), "+Inf"]
    return [*zip(limits, np.cumsum(counts).tolist(), strict=True)]
