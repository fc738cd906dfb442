"""Rewrites batch-first recurrent layers (layout 1) as time-first layers, because onnxruntime does not load them."""

from collections.abc import Iterator

from onnx import ModelProto, NodeProto, helper

RECURRENT_OPS = frozenset({"LSTM", "GRU", "RNN"})
_INPUTS = {0: (1, 0, 2), 5: (1, 0, 2), 6: (1, 0, 2)}
"""Position of the sequence and of each initial state -> permutation of its dimensions."""
_OUTPUTS = {0: (2, 0, 1, 3), 1: (1, 0, 2), 2: (1, 0, 2)}


def make_time_first(proto: ModelProto) -> None:
    """Rewrites every recurrent layer of layout 1 as a layer of layout 0 between transpositions, in place."""
    nodes = [new for node in proto.graph.node for new in _rewritten(node)]
    if len(nodes) != len(proto.graph.node):
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)


def _rewritten(node: NodeProto) -> Iterator[NodeProto]:
    layout = next((a.i for a in node.attribute if a.name == "layout"), 0)
    if node.op_type not in RECURRENT_OPS or node.domain or not layout:
        yield node
        return
    layer = NodeProto()
    layer.CopyFrom(node)
    kept = [a for a in node.attribute if a.name != "layout"]
    del layer.attribute[:]
    layer.attribute.extend(kept)
    stem = next(o for o in node.output if o)
    for position, order in _INPUTS.items():
        if position < len(node.input) and node.input[position]:
            layer.input[position] = f"{stem}.time_first.{position}"
            yield _transpose(node.input[position], layer.input[position], order)
    for position in range(len(node.output)):
        if node.output[position]:
            layer.output[position] = f"{node.output[position]}.time_first"
    yield layer
    for position, output in enumerate(node.output):
        if output:
            yield _transpose(layer.output[position], output, _OUTPUTS[position])


def _transpose(source: str, target: str, order: tuple[int, ...]) -> NodeProto:
    return helper.make_node("Transpose", [source], [target], name=target, perm=order)
