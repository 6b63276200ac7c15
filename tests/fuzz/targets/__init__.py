"""Targets by name: a lazy table, because each imports what it reads with."""

from collections.abc import Mapping

_MODULES: Mapping[str, tuple[str, ...]] = {
    "wire": ("json", "msgpack"),
    "door": ("door",),
    "sockets": ("http",),
    "pdf": ("pdf", "drawings"),
    "pickles": ("pickled",),
    "model_files": ("model-files", "model-configs"),
    "checkpoints": ("checkpoints", "weights"),
    "tokenizers": ("tokenizers",),
    "tokenizer_steps": ("tokenizer-steps",),
    "adapters": ("adapters",),
    "cluster": ("messages", "claims"),
    "joining": ("joining",),
    "queues": ("kserve", "work"),
    "records": ("records", "json-files", "specs"),
    "outside": ("hub-listings", "store-listings", "endpoints", "log-lines"),
    "media": ("images", "audio", "documents"),
    "stages": ("encode", "score", "extract"),
    "steps": ("features", "computed"),
}

TARGETS: Mapping[str, str] = {
    name: f"{__name__}.{module}:{name.replace('-', '_')}" for module, names in _MODULES.items() for name in names
}
