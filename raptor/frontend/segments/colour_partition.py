"""Partition of a coloured DAG into few convex parts, each of one colour."""

from collections.abc import Sequence
from itertools import permutations


def partition_colours(colours: Sequence[int], before: Sequence[Sequence[int]]) -> list[int]:
    """Returns the part of each node; the parts' colours cycle, and each part depends on earlier ones only.

    colours: colour of each node, in topological order. before: predecessors of each node. O(V + E). The label of a node
    is the smallest label with its colour that is at least the label of every predecessor. Of all orders of the colours,
    the order with the fewest parts is taken, on ties the first. With two colours the result is minimal: on the path
    with most colour changes, every change needs another part.
    """
    orders = permutations(sorted({*colours}))
    return min((_labels(colours, before, order) for order in orders), key=lambda labels: len(set(labels)))


def _labels(colours: Sequence[int], before: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """Labels all nodes for one order of colours: the colour of part k is `order[k % number of colours]`."""
    place, labels = {colour: k for k, colour in enumerate(order)}, list[int]()
    for colour, earlier in zip(colours, before, strict=True):
        label = max((labels[i] for i in earlier), default=0)
        labels.append(label + (place[colour] - label) % len(order))
    return labels
