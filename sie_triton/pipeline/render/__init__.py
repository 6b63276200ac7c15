"""Render ModelSpecs into a Triton model repository."""

from sie_triton.pipeline.render.repository import check, render

__all__ = ["check", "render"]
