"""The way of a model from a file to a Graph, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from raptor.errors import UnsupportedError, UnsupportedNode
from raptor.frontend.graph import Graph

if TYPE_CHECKING:
    from onnx import ModelProto

    from raptor.frontend.reading import Source

NO_SHAPES: Mapping[str, Sequence[int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A loaded model: `graph` is verified, `onnx_bytes` is the original model without references to other files."""

    graph: Graph
    onnx_bytes: bytes
    name: str
    notes: tuple[str, ...]
    """What the user should hear once."""

    def __str__(self) -> str:
        return str(self.graph)


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """What is in a model, whether it can be compiled or not.

    `graph` is what can be lowered: without `unsupported` nodes, all of it.
    """

    name: str
    operators: Mapping[str, int]
    """How many nodes of each operator the model has."""
    parameters: int
    graph: Graph
    unsupported: tuple[UnsupportedNode, ...]


def load(source: str | Path | ModelProto, *, shapes: Mapping[str, Sequence[int]] = NO_SHAPES) -> Model:
    """The model of an ONNX file (or proto, which is left as it is) with its inputs bound to `shapes`.

    Raises `UserError` for a bad file, shape or weight, and `UnsupportedError` with every node that has no lowering.
    """
    # onnx and onnxruntime take a moment to import; `raptor --help` does without.
    from raptor.frontend import canonical, check, importing, reading

    model = reading.read(source)
    onnx_bytes, name = model.onnx_bytes, model.name
    notes = _check(model, shapes)
    origin = importing.Origin.of(model.proto)
    with canonical.canonicalise(model) as (proto, folder), canonical.blaming_the_model(folder):
        graph = importing.import_graph(proto, folder, name, origin)
        graph.verify()
    check.check_finite(graph)
    return Model(graph, onnx_bytes, name, notes)


def survey(source: str | Path | ModelProto, *, shapes: Mapping[str, Sequence[int]] = NO_SHAPES) -> Survey:
    """What is in the model. Raises `UserError` as `load` does, but lists unsupported nodes instead of raising."""
    from raptor.frontend import canonical, counting, importing, reading

    model = reading.read(source)
    operators = counting.count_operators(model.proto)
    try:
        parameters = counting.count_parameters(model.proto)
    except (IndexError, TypeError, ValueError):
        _check(model, shapes)  # says what is wrong with the model
        raise
    graph, unsupported = Graph(model.name, {}, (), (), ()), ()
    try:
        _check(model, shapes)
        origin = importing.Origin.of(model.proto)
        with canonical.canonicalise(model) as (proto, folder), canonical.blaming_the_model(folder):
            graph, refused = importing.survey_graph(proto, folder, model.name, origin)
            if not refused:
                graph.verify()
        unsupported = tuple(refused)
    except UnsupportedError as error:  # an operator that not even onnxruntime knows
        unsupported = error.nodes
    return Survey(model.name, operators, parameters, graph, unsupported)


def _check(model: Source, shapes: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
    """Binds the inputs to `shapes`; returns notes for the user."""
    from raptor.frontend import check
    from raptor.frontend.precision import to_float32
    from raptor.frontend.shapes import bind_shapes

    check.check_model(model)
    check.check_types(model.proto)
    notes = (*to_float32(model.proto), *bind_shapes(model.proto, shapes))
    check.check_weights(model)
    return notes
