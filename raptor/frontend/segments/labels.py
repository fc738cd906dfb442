"""Labels: cuts a graph of nodes of two colours into as few convex parts of one colour as possible."""

from collections.abc import Sequence


def labels_of(on_host: Sequence[bool], before: Sequence[Sequence[int]]) -> list[int]:
    """Returns the part of each node; parts alternate between the colours, and each depends on earlier ones only.

    Nodes are in topological order; `before` holds the predecessors of each. O(V + E). The label of a node is the
    largest of its predecessors' labels, plus one where the colour changes. Even labels have the colour of the first
    part, so two results are possible: the one with fewer parts is returned, and of equal ones that which begins on the
    chip. No cut has fewer: along the path on which colours change most often, every change needs another part.
    """
    both = [_beginning(on_host, before, host_first=first) for first in (False, True)]
    return min(both, key=lambda labels: len(set(labels)))


def _beginning(on_host: Sequence[bool], before: Sequence[Sequence[int]], *, host_first: bool) -> list[int]:
    """Labels all nodes, if parts on the host have even labels (`host_first`), or odd ones."""
    labels: list[int] = []
    for host, earlier in zip(on_host, before, strict=True):
        label = max((labels[i] for i in earlier), default=0)
        parity = 0 if host == host_first else 1
        labels.append(label if label % 2 == parity else label + 1)
    return labels
