"""Reads a model and rewrites it to standard ONNX operators, the only ones that the rest of the front end knows."""

from pathlib import Path

from onnx import ModelProto

from raptor.frontend.canonical.legacy_operators import expand_legacy_operators
from raptor.frontend.canonical.sort_nodes import normalise_model
from raptor.frontend.proto import read_model
from raptor.frontend.proto.read_model import SourceModel, walk_graphs
from raptor.frontend.qonnx import translate
from raptor.frontend.qonnx.quantisers import QONNX_DOMAINS


def read_standard_model(source: str | Path | ModelProto) -> SourceModel:
    """Reads a model as `reading.read` does, and normalises it.

    Standard operators get the empty domain, nodes a topological order, and simple non-standard operators are expressed
    in standard ones. QONNX models and binarised networks (Sign) become quantised ONNX models. `onnx_bytes` is the
    result.
    """
    found = read_model.read_model(source)
    if normalise_model(found.proto) | expand_legacy_operators(found.proto):
        whole = ModelProto.FromString(found.onnx_bytes)
        normalise_model(whole)
        expand_legacy_operators(whole)
        found = read_model.read_proto(whole, found.name)
    if not any(
        n.domain in QONNX_DOMAINS or n.op_type == "Sign" for g in walk_graphs(found.proto.graph) for n in g.node
    ):
        return found
    model = ModelProto.FromString(found.onnx_bytes)
    if not (translate.is_qonnx(model) or translate.is_binarised(model)):
        return found
    return read_model.read_proto(translate.translate_model(model), found.name)
