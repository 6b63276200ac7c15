"""Who runs next and how much together: what an item costs, which items share a sub-batch, what Triton may queue."""

from sie_triton.scheduling.cost import COST_FUNCTIONS
from sie_triton.scheduling.plan import balanced, plan

__all__ = ["COST_FUNCTIONS", "balanced", "plan"]
