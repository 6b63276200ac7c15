"""How work is cut: what an item costs, which items run together, what Triton may queue together."""

from sie_triton.batching.cost import COST_FUNCTIONS
from sie_triton.batching.plan import balanced, plan

__all__ = ["COST_FUNCTIONS", "balanced", "plan"]
