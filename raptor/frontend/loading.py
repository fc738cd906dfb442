"""The way of a model from a file to a Graph, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from raptor.frontend.graph import Graph

if TYPE_CHECKING:
    from onnx import ModelProto

NO_SHAPES: Mapping[str, Sequence[int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A loaded model: `graph` is verified, `onnx_bytes` is the original model without references to other files."""

    graph: Graph
    onnx_bytes: bytes
    name: str
    notes: tuple[str, ...]
    """What the user should hear once."""


def load(source: str | Path | ModelProto, *, shapes: Mapping[str, Sequence[int]] = NO_SHAPES) -> Model:
    """The model of an ONNX file (or proto, which is left as it is) with its inputs bound to `shapes`.

    Raises `UserError` for a bad file, shape or weight, and `UnsupportedError` with every node that has no lowering.
    """
    # onnx and onnxruntime take a moment to import; `raptor --help` does without.
    from raptor.frontend import canonical, check, importing, reading
    from raptor.frontend.shapes import bind_shapes

    model = reading.read(source)
    onnx_bytes, name = model.onnx_bytes, model.name
    check.check_model(model.proto, onnx_bytes)
    check.check_types(model.proto)
    notes = bind_shapes(model.proto, shapes)
    check.check_weights(model.proto)
    origin = importing.Origin.of(model.proto)
    with canonical.canonicalise(model) as (proto, folder):
        graph = importing.import_graph(proto, folder, name, origin)
    graph.verify()
    return Model(graph, onnx_bytes, name, notes)
