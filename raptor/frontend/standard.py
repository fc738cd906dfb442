"""Reads a model and rewrites it to standard ONNX operators, the only ones that the rest of the front end knows."""

from pathlib import Path

from onnx import ModelProto

from raptor.frontend import reading
from raptor.frontend.normal import normalise_model
from raptor.frontend.qonnx import translation
from raptor.frontend.qonnx.codes import QONNX_DOMAINS
from raptor.frontend.reading import SourceModel, walk_graphs
from raptor.frontend.written_out import expand_legacy_operators


def read_standard_model(source: str | Path | ModelProto) -> SourceModel:
    """Reads a model as `reading.read` does, and normalises it.

    Standard operators get the empty domain, nodes a topological order, and simple non-standard operators are expressed
    in standard ones. QONNX models and binarised networks (Sign) become quantised ONNX models. `onnx_bytes` is the
    result.
    """
    found = reading.read_model(source)
    if normalise_model(found.proto) | expand_legacy_operators(found.proto):
        whole = ModelProto.FromString(found.onnx_bytes)
        normalise_model(whole)
        expand_legacy_operators(whole)
        found = reading.read_proto(whole, found.name)
    if not any(
        n.domain in QONNX_DOMAINS or n.op_type == "Sign" for g in walk_graphs(found.proto.graph) for n in g.node
    ):
        return found
    model = ModelProto.FromString(found.onnx_bytes)
    if not (translation.is_qonnx(model) or translation.is_binarised(model)):
        return found
    return reading.read_proto(translation.translate_model(model), found.name)
