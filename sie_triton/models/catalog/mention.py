"""Known models: a running server adds one once a request names it.

name → ModelConfig; only the package's model files, the user's own and, if allowed, the model hub are read
"""

import re
from collections.abc import Sequence

from sie_triton.contract.names import matches
from sie_triton.errors import CatalogError
from sie_triton.models.catalog.config import ModelConfig
from sie_triton.models.catalog.load import known_model, known_models, starter_set
from sie_triton.models.catalog.select import find_known, from_hub, with_variants

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)

# Maximum size in bytes of the files by which a model on the hub is recognised: configurations and tokenizers.
MAX_SMALL_BYTES = 256 * 1024**2


def all_known(own: Sequence[ModelConfig], patterns: Sequence[str]) -> list[ModelConfig]:
    """Return every known model whose name matches one of `patterns`, if there are any; `own` are the user's."""
    shipped = [each for name in known_models() if (each := known_model(name)) is not None]
    named = {model.sie_id: model for model in (*shipped, *starter_set(), *own)}
    return [model for model in with_variants(named.values()) if matches(model.sie_id, patterns)]


def mentioned(
    name: str, own: Sequence[ModelConfig], patterns: Sequence[str], *, any_model: bool, allow_hub: bool, cluster: str
) -> ModelConfig:
    """Return the known model `name`, or with `any_model` that of the hub; CatalogError says why it may not be served.

    The name comes from a client, so no path is looked at.
    """
    if not matches(name, patterns):
        raise CatalogError(f"{name} may not be served here: SIE_MODEL_FILTER allows {', '.join(patterns)}")
    if found := find_known(name, own):
        return found
    if not any_model:
        raise CatalogError(f"{name} is not a known model; with SIE_ALLOW_ANY_MODEL it may be any model on the hub")
    if not HUB_ID.fullmatch(name):
        raise CatalogError(f"{name} is neither a known model nor a hub id (org/name)")
    return from_hub(name, allow_hub=allow_hub, cluster=cluster, max_bytes=MAX_SMALL_BYTES)
