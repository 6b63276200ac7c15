"""Names of metrics. Those of quality are mteb's."""

from collections.abc import Mapping

QUALITY: Mapping[str, str] = {
    "ndcg_at_10": "nDCG@10",
    "map_at_1000": "MAP",
    "mrr_at_10": "MRR@10",
    "recall_at_10": "recall@10",
    "recall_at_100": "recall@100",
}

SIDES = ("query", "corpus")
PERCENTILES = (50, 90, 99)


def items_per_s(side: str) -> str:
    return f"{side}_items_per_s"


def latency(side: str, percentile: int) -> str:
    return f"{side}_p{percentile}_ms"


def gpu_percent(side: str) -> str:
    return f"{side}_gpu_percent"


SPEED: Mapping[str, str] = {
    name: title
    for side, (one, several) in zip(SIDES, (("query", "queries"), ("document", "documents")), strict=True)
    for name, title in [
        (items_per_s(side), f"{several} a second"),
        *((latency(side, each), f"one {one}, p{each} ms") for each in PERCENTILES),
    ]
}

# Reported, but no target: how busy a GPU is says nothing about what it does.
GPU: Mapping[str, str] = {gpu_percent(side): f"GPU utilisation, {side}, %" for side in SIDES}

METRICS: Mapping[str, str] = {**QUALITY, **SPEED}


def is_better_lower(metric: str) -> bool:
    """
    >>> is_better_lower("query_p99_ms"), is_better_lower("ndcg_at_10")
    (True, False)
    """
    return metric.endswith("_ms")
