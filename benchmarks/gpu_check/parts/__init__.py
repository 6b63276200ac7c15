"""The table of all parts, most important first. Only the process of a part imports its module."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module

from benchmarks.gpu_check.scope import CheckPart, Finding, Plan

ABOUT: Mapping[str, str] = {
    "machine": "GPU, driver, cuDNN, order of SDPA's backends, which kernels can run and why others cannot; peak rates",
    "fork": "whether CUDA works in a forked process after the imports, with and without flash-attn",
    "kernels": "each attention kernel compared with eager attention: head sizes, GQA, windows, causal, partial keys",
    "models": "whole models compared with transformers' eager attention: packed, padded, as CUDA graphs",
    "graphs": "CUDA graphs captured while passes run; passes after a failed capture",
    "speed": "tokens/s by kernel, number format and number of lanes; idle time of the GPU",
    "workers": "real worker processes: load, calibration, responses, kill -9, milliseconds until the memory is free",
    "faults": "a worker that runs out of memory in calibration and in a pass, and after a device assert",
    "query": "latency of one short query by the libraries; of it and larger batches packed and as CUDA graphs",
    "server": "one client of the whole server, if a tritonserver is installed",
    "residency": "more models than memory: requests while models are evicted, and a worker is killed",
    "rivals": "the server beside sentence-transformers, and beside a Triton model written by hand",
}

KERNELS = ("flash_attention_2", "varlen", "native", "sdpa")
MODELS = ("BERT-base", "ModernBERT-base", "Qwen3-0.6B", "DeBERTa-v3-base", "DeBERTa, large weights")
RIVALED = ("BERT-base", "MiniLM-L6")
TIMED = ("BERT-base", "Qwen3-0.6B")
FAULTS = ("pass", "assert", "calibration")


def all_parts() -> list[CheckPart]:
    """Return the parts in running order, with their seconds in a run of nine minutes."""
    return [
        CheckPart("machine", _later("machine", "describe"), 40),
        CheckPart("fork", _later("fork", "compare"), 50, is_needed=True),
        *(CheckPart(f"kernels/{name}", _later("kernels", "compare", name), 20, is_needed=True) for name in KERNELS),
        *(CheckPart(f"models/{name}", _later("models", "compare", name), 25, is_needed=True) for name in MODELS),
        CheckPart("graphs", _later("graphs", "check"), 30, is_needed=True),
        *(CheckPart(f"speed/{name}", _later("speed", "measure", name), 60) for name in TIMED),
        *(
            CheckPart(f"workers/{name}", _later("workers", "measure", name), 30, is_needed=True, uses_workers=True)
            for name in TIMED
        ),
        *(
            CheckPart(f"faults/{name}", _later("faults", "provoke", name), 25, is_needed=True, uses_workers=True)
            for name in FAULTS
        ),
        *(CheckPart(f"query/{name}", _later("query", "measure", name), 15) for name in TIMED),
        CheckPart("server", _later("server", "measure"), 60),
        CheckPart("residency", _later("residency", "measure"), 100),
        *(CheckPart(f"rivals/{name}", _later("rivals", "measure", name), 180) for name in RIVALED),
    ]


def chosen(names: Sequence[str]) -> list[CheckPart]:
    """Return the parts with these names or groups; without names, all. Raise ValueError for an unknown name."""
    parts = all_parts()
    groups = {part.name.split("/")[0] for part in parts}
    for name in names:
        if name not in groups | {part.name for part in parts}:
            raise ValueError(f"unknown part {name!r}; known are {', '.join(ABOUT)}, and {_examples(parts)}")
    return [part for part in parts if not names or {part.name, part.name.split("/")[0]} & set(names)]


def _examples(parts: Sequence[CheckPart]) -> str:
    return ", ".join(part.name for part in parts if "/" in part.name)


def _later(module: str, function: str, *arguments: str) -> partial[Iterator[Finding]]:
    """Defer the import of a part's module until it runs, so that a missing package affects that part only."""
    return partial(_run, module, function, *arguments)


def _run(module: str, function: str, *arguments: str | Plan) -> Iterator[Finding]:
    findings: Iterator[Finding] = getattr(import_module(f"{__name__}.{module}"), function)(*arguments)
    return findings
