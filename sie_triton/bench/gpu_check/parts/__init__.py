"""The table of all parts, most valuable first. Each module is imported by the process of its part alone."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module

from sie_triton.bench.gpu_check.scope import Finding, Part, Plan

ABOUT: Mapping[str, str] = {
    "machine": "GPU, driver, cuDNN, the order of SDPA's backends, which kernels can run and why not; peak rates",
    "fork": "does CUDA work in a forked process after the imports, with flash-attn installed and without",
    "kernels": "each attention kernel beside eager attention: head sizes, GQA, windows, causal, partial keys",
    "models": "whole models beside transformers' eager attention: packed, padded, as CUDA graphs",
    "cudnn": "what a new shape costs with cuDNN's attention and without",
    "graphs": "CUDA graphs captured beside running passes; passes after a capture that failed",
    "speed": "tokens/s by kernel, format and number of lanes, and how long the GPU is idle",
    "workers": "real worker processes: load, calibrate, answer, kill -9, milliseconds until the memory is free",
    "faults": "a worker out of memory while it calibrates and in a pass, and after a device assert",
    "query": "one short query: packed, as a CUDA graph, by the libraries",
    "server": "the whole server, where a tritonserver is installed",
}

KERNELS = ("flash_attention_2", "varlen", "native", "sdpa")
MODELS = ("BERT-base", "ModernBERT-base", "Qwen3-0.6B", "DeBERTa-v3-base", "DeBERTa, large weights")
TIMED = ("BERT-base", "Qwen3-0.6B")
FAULTS = ("pass", "assert", "calibration")


def all_parts() -> list[Part]:
    """In the order in which they run; seconds as worth them in a run of nine minutes."""
    return [
        Part("machine", _later("machine", "describe"), 40),
        Part("fork", _later("fork", "compare"), 50, is_needed=True),
        *(Part(f"kernels/{name}", _later("kernels", "compare", name), 20, is_needed=True) for name in KERNELS),
        *(Part(f"models/{name}", _later("models", "compare", name), 25, is_needed=True) for name in MODELS),
        Part("cudnn", _later("cudnn", "measure"), 30),
        Part("graphs", _later("graphs", "check"), 30, is_needed=True),
        *(Part(f"speed/{name}", _later("speed", "measure", name), 60) for name in TIMED),
        *(
            Part(f"workers/{name}", _later("workers", "measure", name), 30, is_needed=True, uses_workers=True)
            for name in TIMED
        ),
        *(
            Part(f"faults/{name}", _later("faults", "provoke", name), 25, is_needed=True, uses_workers=True)
            for name in FAULTS
        ),
        *(Part(f"query/{name}", _later("query", "measure", name), 10) for name in TIMED),
        Part("server", _later("server", "measure"), 40),
    ]


def chosen(names: Sequence[str]) -> list[Part]:
    """Return the parts of these names or groups, all for none; ValueError names what there is not."""
    parts = all_parts()
    groups = {part.name.split("/")[0] for part in parts}
    for name in names:
        if name not in groups | {part.name for part in parts}:
            raise ValueError(f"there is no part {name!r}; there are {', '.join(ABOUT)}, and {_examples(parts)}")
    return [part for part in parts if not names or {part.name, part.name.split("/")[0]} & set(names)]


def _examples(parts: Sequence[Part]) -> str:
    return ", ".join(part.name for part in parts if "/" in part.name)


def _later(module: str, function: str, *arguments: str) -> partial[Iterator[Finding]]:
    """Work whose module is imported when it begins, so that a missing package costs that part alone."""
    return partial(_run, module, function, *arguments)


def _run(module: str, function: str, *arguments: str | Plan) -> Iterator[Finding]:
    findings: Iterator[Finding] = getattr(import_module(f"{__name__}.{module}"), function)(*arguments)
    return findings
