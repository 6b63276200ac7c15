"""Model files in, frozen and validated ModelConfig out."""

from sie_triton.catalog.config import ModelConfig, triton_name
from sie_triton.catalog.load import load_file, starter_set
from sie_triton.catalog.recognise import check_dims, recognise
from sie_triton.catalog.select import select

__all__ = ["ModelConfig", "check_dims", "load_file", "recognise", "select", "starter_set", "triton_name"]
