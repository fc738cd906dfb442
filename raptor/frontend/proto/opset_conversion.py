"""Converts models between operator set versions, into the range that onnxruntime and the importers read."""

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

from raptor.frontend.operator_sets import STANDARD_DOMAINS
from raptor.frontend.proto.nodes import read_attributes
from raptor.frontend.proto.onnx_wrappers import infer_shapes
from raptor.frontend.proto.read_model import walk_graphs

OLDEST_OPSET, NEWEST_OPSET = 9, 26
"""Supported operator sets. Broadcasting changed in 7, constants in 9; 26 is the newest that onnxruntime 1.31 loads."""
OLDEST_IR, NEWEST_IR = 4, 10
"""Supported IR versions. Up to 3, weights had to be inputs as well."""


def upgrade_opset(model: ModelProto) -> ModelProto:
    """Returns an equivalent copy of the model in an operator set of at least `OLDEST_OPSET`."""
    copy = ModelProto.FromString(model.SerializeToString())
    version = opset_version(copy)
    if version < 7:
        _align_slopes(copy)
    converted = onnx.version_converter.convert_version(copy, OLDEST_OPSET) if version < OLDEST_OPSET else copy
    converted.ir_version = min(max(converted.ir_version, OLDEST_IR), NEWEST_IR)
    return converted


def opset_version(model: ModelProto) -> int:
    """Returns the operator set version of the standard domain."""
    return next((o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS), OLDEST_OPSET)


def is_too_new(model: ModelProto) -> bool:
    """Checks whether the model's operator set is too new for onnxruntime."""
    return opset_version(model) > NEWEST_OPSET


def downgrade_opset(model: ModelProto) -> None:
    """Sets the operator set version to `NEWEST_OPSET`, in place. Operators of later versions must have been expanded.

    Changes from 26 to 28: operators accept more types; SpaceToDepth has a mode; Range has a type for its sums.
    """
    _write_out_orders(model)
    for node in (n for graph in walk_graphs(model.graph) for n in graph.node if n.op_type == "Range"):
        kept = [a for a in node.attribute if a.name != "stash_type"]
        del node.attribute[:]
        node.attribute.extend(kept)
    for opset in model.opset_import:
        if opset.domain in STANDARD_DOMAINS:
            opset.version = NEWEST_OPSET


def _align_slopes(model: ModelProto) -> None:
    """Gives the slopes of PRelu the shape [channels, 1, ...]: before operator set 7 they were per channel.

    Since then they are aligned with the last axis. onnx's version converter does not handle this.
    """
    graph = model.graph
    inferred = infer_shapes(model).graph
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in (*inferred.input, *inferred.value_info)}
    for node in graph.node:
        data, slope = node.input[:2] if node.op_type == "PRelu" else ("", "")
        for tensor in (t for t in graph.initializer if t.name == slope and len(t.dims) == 1):
            tensor.dims.extend([1] * (ranks[data] - 2))
        for value in (v for v in graph.input if v.name == slope and ranks[slope] == 1):
            for _ in range(ranks[data] - 2):
                value.type.tensor_type.shape.dim.add().dim_value = 1


def _write_out_orders(model: ModelProto) -> None:
    """Replaces SpaceToDepth of mode CRD, new in operator set 28, by mode DCR and a Gather that permutes the channels.

    onnx's version converter refuses it.
    """
    graph = model.graph
    with_mode = [n for n in graph.node if n.op_type == "SpaceToDepth" and "mode" in read_attributes(n)]
    found = [n for n in with_mode if read_attributes(n)["mode"] == b"CRD"]
    inferred = infer_shapes(model).graph if found else graph
    values = {v.name: v.type.tensor_type.shape.dim for v in (*inferred.input, *inferred.value_info)}
    for node in found:
        channels = values[node.input[0]][1].dim_value if node.input[0] in values else 0
        if channels:
            _gather_channels(graph, node, channels)
    for node in with_mode:
        for mode in [a for a in node.attribute if a.name == "mode" and a.s == b"DCR"]:
            node.attribute.remove(mode)


def _gather_channels(graph: onnx.GraphProto, node: onnx.NodeProto, channels: int) -> None:
    """Adds the Gather. DCR numbers channels as (place in the block, channel), CRD as (channel, place in the block)."""
    mode = next(a for a in node.attribute if a.name == "mode")
    node.attribute.remove(mode)
    places = int(read_attributes(node)["blocksize"]) ** 2
    order = np.arange(places * channels, dtype=np.int64).reshape(places, channels).T.reshape(-1)
    result, index = node.output[0], f"{node.output[0]}.order"
    node.output[0] = f"{result}.dcr"
    graph.initializer.append(numpy_helper.from_array(order, index))
    gather = helper.make_node("Gather", [node.output[0], index], [result], name=f"{node.name or result}.order", axis=1)
    graph.node.insert(list(graph.node).index(node) + 1, gather)
