"""Scheduling: the cost of items, sub-batches, the order of work, and the hook that bounds Triton's batches."""

from sie_triton.pipeline.scheduling.job import COST_FUNCTIONS
from sie_triton.pipeline.scheduling.plan import balanced, plan

__all__ = ["COST_FUNCTIONS", "balanced", "plan"]
