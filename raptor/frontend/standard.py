"""Reads a model and brings it to the operators of the standard, which all other parts of the front end know."""

from pathlib import Path

from onnx import ModelProto

from raptor.frontend import reading
from raptor.frontend.normal import normalise
from raptor.frontend.qonnx import translation
from raptor.frontend.qonnx.codes import DOMAINS
from raptor.frontend.reading import Source, graphs_of
from raptor.frontend.written_out import write_out


def read(source: str | Path | ModelProto) -> Source:
    """Reads a model, as `reading.read` does.

    It has the standard under one name, its nodes in order, and simple operators that are none of the standard written
    out. A model of QONNX, or a network of signs, becomes one of standard integers at once. `onnx_bytes` are those of
    what it became.
    """
    found = reading.read(source)
    if normalise(found.proto) | write_out(found.proto):
        whole = ModelProto.FromString(found.onnx_bytes)
        normalise(whole)
        write_out(whole)
        found = reading.from_proto(whole, found.name)
    if not any(n.domain in DOMAINS or n.op_type == "Sign" for g in graphs_of(found.proto.graph) for n in g.node):
        return found
    model = ModelProto.FromString(found.onnx_bytes)
    if not (translation.is_qonnx(model) or translation.is_of_signs(model)):
        return found
    return reading.from_proto(translation.translate(model), found.name)
