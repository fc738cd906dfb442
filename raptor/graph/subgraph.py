"""Subgraphs of a Graph, and a structural key by which subgraphs are recognised as equal for the mapping."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Graph, Node


def extract_subgraph(graph: Graph, unit_of: Mapping[str, int], units: range) -> Graph:
    """Returns the nodes of `units` as a graph, whose inputs are the tensors that it reads and does not compute.

    unit_of: output tensor of a node -> its unit; a node without an entry belongs to the latest unit of its inputs.
    """
    at: dict[str, int] = dict.fromkeys(graph.inputs, -1)
    nodes: list[Node] = []
    for node in graph.nodes:
        unit = unit_of.get(node.output, max((at[n] for n in node.inputs), default=0))
        at[node.output] = unit
        if unit in units:
            nodes.append(node)
    made = {node.output for node in nodes}
    inputs = tuple(dict.fromkeys(n for node in nodes for n in node.inputs if n not in made))
    outside = {n for node in graph.nodes if at[node.output] not in units for n in node.inputs} | set(graph.outputs)
    read = {n for node in nodes for n in node.inputs}
    outputs = tuple(node.output for node in nodes if node.output in outside or node.output not in read)
    tensors = {name: graph.tensors[name] for name in (*inputs, *(node.output for node in nodes))}
    return replace(graph, tensors=tensors, nodes=tuple(nodes), inputs=inputs, outputs=outputs)


@dataclass(frozen=True, slots=True)
class StructuralKeys:
    """Structural keys of subgraphs. `kinds`: output tensor -> number of its operator; equal numbers map alike."""

    kinds: Mapping[str, int]

    @classmethod
    def of_graph(cls, graph: Graph) -> "StructuralKeys":
        """Numbers the operators of a graph: equal numbers for operators that differ in weight values only."""
        numbers = dict[object, int]()
        return cls({n.output: numbers.setdefault(_plain(n.operator), len(numbers)) for n in graph.nodes})

    def key_of(self, part: Graph) -> object:
        """Returns a hashable key of operators, sizes and connections, without names and weight values."""
        number = {name: k for k, name in enumerate(part.tensors)}
        nodes = tuple(
            (self.kinds[node.output], tuple(number[n] for n in node.inputs), number[node.output]) for node in part.nodes
        )
        tensors = tuple((t.image, t.element) for t in part.tensors.values())
        return nodes, tensors, tuple(tuple(number[n] for n in names) for names in (part.inputs, part.outputs))


def _plain_array(array: npt.NDArray[Any]) -> object:
    """Returns shape and type of weights; for int64 arrays, which are indices as in a `Move`, also the values."""
    return array.shape, array.dtype.str, array.tobytes() if array.dtype == np.int64 else b""


def _plain(value: Any) -> object:
    if isinstance(value, np.ndarray):
        return _plain_array(value)  # pyright: ignore[reportUnknownArgumentType] of any type
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, tuple(_plain(getattr(value, f.name)) for f in fields(value))
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] any
    return value if isinstance(value, int | float | str | bool | None) else repr(value)
