"""Labels: cuts a graph of coloured nodes into few convex parts of one colour."""

from collections.abc import Sequence
from itertools import permutations


def labels_of(colours: Sequence[int], before: Sequence[Sequence[int]]) -> list[int]:
    """Returns the part of each node; parts have the colours in turns, and each depends on earlier ones only.

    Nodes are in topological order; `before` holds the predecessors of each. O(V + E). The label of a node is the
    smallest of its colour that is at least as large as its predecessors' labels. Any colour may be the first: the order
    with the fewest parts is taken, and of equal ones that of the smallest colours. With two colours no cut has fewer:
    along the path on which colours change most often, every change needs another part.
    """
    orders = permutations(sorted({*colours}))
    return min((_labels(colours, before, order) for order in orders), key=lambda labels: len(set(labels)))


def _labels(colours: Sequence[int], before: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """Labels all nodes; the label of a part, modulo the number of colours, is the place of its colour in `order`."""
    place, labels = {colour: k for k, colour in enumerate(order)}, list[int]()
    for colour, earlier in zip(colours, before, strict=True):
        label = max((labels[i] for i in earlier), default=0)
        labels.append(label + (place[colour] - label) % len(order))
    return labels
