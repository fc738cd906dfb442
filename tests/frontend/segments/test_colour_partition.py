"""Labels cut a graph into convex parts of one colour, and no cut has fewer parts."""

from collections.abc import Iterator, Sequence
from random import Random

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from raptor.frontend.segments.colour_partition import partition_colours


@st.composite
def graphs(draw: st.DrawFn, most: int) -> tuple[list[bool], list[list[int]]]:
    count = draw(st.integers(1, most))
    colours = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    before = [
        [i for i in range(node) if draw(st.integers(0, 2)) == 0]  # a third of all edges
        for node in range(count)
    ]
    return colours, before


def is_cut(parts: Sequence[int], colours: Sequence[bool], before: Sequence[Sequence[int]]) -> bool:
    """Each part has one colour, and the parts depend on each other without a circle, so that each is convex."""
    if len({(part, colour) for part, colour in zip(parts, colours, strict=True)}) > len(set(parts)):
        return False
    edges = {(parts[i], parts[node]) for node, earlier in enumerate(before) for i in earlier}
    return nx.is_directed_acyclic_graph(nx.DiGraph((a, b) for a, b in edges if a != b))


def partitions(count: int) -> Iterator[list[int]]:
    """All ways to put `count` nodes into parts: part numbers grow with the first node of each."""
    if count == 0:
        yield []
        return
    for found in partitions(count - 1):
        for part in range(max(found, default=-1) + 2):
            yield [*found, part]


@given(graphs(30))
def test_parts_run_in_their_order(graph: tuple[list[bool], list[list[int]]]):
    colours, before = graph
    labels = partition_colours(colours, before)
    assert is_cut(labels, colours, before)
    assert all(labels[i] <= labels[node] for node, earlier in enumerate(before) for i in earlier)


@given(graphs(30), st.randoms(use_true_random=False))
def test_parts_of_three_colours(graph: tuple[list[bool], list[list[int]]], chance: Random):
    """Programs of floats and of integers are two colours of the chip."""
    colours = [2 if chance.random() < 0.3 else int(colour) for colour in graph[0]]
    labels = partition_colours(colours, graph[1])
    assert len({*zip(labels, colours, strict=True)}) == len(set(labels))
    assert all(labels[i] <= labels[node] for node, earlier in enumerate(graph[1]) for i in earlier)


@given(graphs(6))
def test_no_cut_has_fewer_parts(graph: tuple[list[bool], list[list[int]]]):
    colours, before = graph
    fewest = min(len(set(parts)) for parts in partitions(len(colours)) if is_cut(parts, colours, before))
    assert len(set(partition_colours(colours, before))) == fewest
