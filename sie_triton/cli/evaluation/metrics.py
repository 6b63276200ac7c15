"""Names of metrics. Those of quality are mteb's."""

from collections.abc import Mapping

QUALITY: Mapping[str, str] = {
    "ndcg_at_10": "nDCG@10",
    "map_at_1000": "MAP",
    "mrr_at_10": "MRR@10",
    "recall_at_10": "recall@10",
    "recall_at_100": "recall@100",
}

SPEED: Mapping[str, str] = {
    "query_items_per_s": "queries a second",
    "query_p50_ms": "one query, p50 ms",
    "query_p90_ms": "one query, p90 ms",
    "query_p99_ms": "one query, p99 ms",
    "corpus_items_per_s": "documents a second",
    "corpus_p50_ms": "one document, p50 ms",
    "corpus_p90_ms": "one document, p90 ms",
    "corpus_p99_ms": "one document, p99 ms",
}

# Reported, but no target: how busy a GPU is says nothing about what it does.
GPU = {"query_gpu_percent": "GPU utilisation, query, %", "corpus_gpu_percent": "GPU utilisation, corpus, %"}

METRICS: Mapping[str, str] = {**QUALITY, **SPEED}


def is_better_lower(metric: str) -> bool:
    """
    >>> is_better_lower("query_p99_ms"), is_better_lower("ndcg_at_10")
    (True, False)
    """
    return metric.endswith("_ms")
