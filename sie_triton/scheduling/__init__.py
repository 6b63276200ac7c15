"""How work is cut: what an item costs, which items run together, what Triton may queue together."""

from sie_triton.scheduling.cost import COST_FUNCTIONS
from sie_triton.scheduling.plan import balanced, plan

__all__ = ["COST_FUNCTIONS", "balanced", "plan"]
