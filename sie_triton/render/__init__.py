"""ModelSpec in, a Triton model repository out."""

from sie_triton.render.repository import check, render

__all__ = ["check", "render"]
