"""Plan sub-batches: costs and a budget in, lists of positions out. Pure; works on integers only."""

from collections.abc import Sequence


def plan(costs: Sequence[int], budget: int) -> list[list[int]]:
    """Cut items into sub-batches, each a list of positions in `costs`.

    Items are sorted by cost, and cut so that a sub-batch costs at most `budget`. An item that exceeds the budget runs
    alone.

    >>> plan([5, 1, 9, 2], budget=8)
    [[1, 3, 0], [2]]
    """
    batches: list[list[int]] = []
    room = -1
    for position in sorted(range(len(costs)), key=costs.__getitem__):
        if costs[position] > room:
            batches.append([])
            room = budget
        batches[-1].append(position)
        room -= costs[position]
    return batches


def balanced(costs: Sequence[int], budget: int, lanes: int) -> int:
    """Return the budget with which `plan` cuts about evenly for `lanes` parallel forward passes.

    The result is at most `budget`. It gives no more sub-batches than `budget` needs, rounded up to full waves.

    >>> balanced([10] * 4, budget=100, lanes=2), plan([10] * 4, budget=29)
    (29, [[0, 1], [2, 3]])
    """
    total = sum(costs)
    num_batches = -(-total // budget)
    num_batches += -num_batches % lanes
    # With this slack every sub-batch except the last reaches total / num_batches.
    return min(budget, -(-total // num_batches) + max(costs) - 1) if costs else budget
