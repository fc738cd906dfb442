"""Reads a model and rewrites it to standard ONNX operators, the only ones that the rest of the front end knows."""

from pathlib import Path

from onnx import ModelProto

from raptor.frontend import reading
from raptor.frontend.normal import normalise
from raptor.frontend.qonnx import translation
from raptor.frontend.qonnx.codes import DOMAINS
from raptor.frontend.reading import Source, graphs_of
from raptor.frontend.written_out import write_out


def read(source: str | Path | ModelProto) -> Source:
    """Reads a model as `reading.read` does, and normalises it.

    Standard operators get the empty domain, nodes a topological order, and simple non-standard operators are expressed
    in standard ones. QONNX models and binarised networks (Sign) become quantised ONNX models. `onnx_bytes` is the
    result.
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
