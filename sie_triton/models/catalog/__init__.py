"""Read model files into frozen, validated ModelConfigs."""

from sie_triton.models.catalog.config import ModelConfig
from sie_triton.models.catalog.load import LoadedModels, known_models, load_file, starter_set
from sie_triton.models.catalog.recognise import check_dims, recognise
from sie_triton.models.catalog.select import select

__all__ = [
    "LoadedModels",
    "ModelConfig",
    "check_dims",
    "known_models",
    "load_file",
    "recognise",
    "select",
    "starter_set",
]
