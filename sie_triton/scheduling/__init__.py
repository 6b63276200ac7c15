"""Scheduling: the cost of items, sub-batches, the order of work, and the hook that bounds Triton's batches."""

from sie_triton.scheduling.cost import COST_FUNCTIONS
from sie_triton.scheduling.plan import balanced, plan

__all__ = ["COST_FUNCTIONS", "balanced", "plan"]
