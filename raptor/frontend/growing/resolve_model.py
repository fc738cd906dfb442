"""Resolves what hides the caches of a decoder: operators of onnxruntime, branches, and nodes that only rename."""

from collections.abc import Mapping

from onnx import ModelProto, NodeProto, helper, numpy_helper

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_name
from raptor.frontend.contributed.expand_contributed import expand_contributed
from raptor.frontend.control_flow.eliminate_control_flow import eliminate_control_flow, is_control_flow
from raptor.frontend.control_flow.inline_subgraphs import UniqueNames, read_constant, rename_reads, replace_nodes


def resolve_model(proto: ModelProto) -> None:
    """Makes the Concat nodes of caches visible, in place. Raises `UserError` for a branch that constants do not decide.

    Raises `UnsupportedError` for an operator of onnxruntime in a form without expansion.
    """
    if any(map(is_control_flow, proto.graph.node)):
        names = {node.output[0]: node.name or node.output[0] for node in proto.graph.node}
        for output, reason in eliminate_control_flow(proto).items():
            raise UserError(f"{names.get(output, output)}: {reason}; {spell_name('constants')} gives an input a value")
    expand_contributed(proto, numpy_helper.to_array, with_caches=True)
    _hoist_constants(proto)
    _drop_renames(proto)


def _hoist_constants(proto: ModelProto) -> None:
    """Makes weights of all Constant nodes. An output that is a constant is a copy of its weight."""
    found = [(node, read_constant(node)) for node in proto.graph.node]
    outputs, names, kept = {v.name for v in proto.graph.output}, UniqueNames(proto.graph), list[NodeProto]()
    for node, value in found:
        if value is None:
            kept.append(node)
            continue
        weight, name = proto.graph.initializer.add(), node.output[0]
        weight.CopyFrom(value)
        weight.name = names.unique_tensor(f"{name}.constant") if name in outputs else name
        if name in outputs:
            kept.append(helper.make_node("Identity", [weight.name], [name], name=node.name))
    replace_nodes(proto.graph, kept)


def _drop_renames(proto: ModelProto) -> None:
    """Removes each Identity, and each Cast to the type that it has, of a computed tensor.

    An output of the model keeps its name.
    """
    types = _known_types(proto)
    outputs = {v.name for v in proto.graph.output}
    made = {name for node in proto.graph.node for name in node.output}
    renamed: dict[str, str] = {}
    kept: list[NodeProto] = []
    for node in proto.graph.node:
        source = node.input[0] if _is_rename(node, types) else ""
        source = renamed.get(source, source)
        if source not in made or (source in outputs and node.output[0] in outputs):
            kept.append(node)
        elif node.output[0] in outputs:
            renamed |= {name: node.output[0] for name, other in renamed.items() if other == source}
            renamed[source] = node.output[0]
        else:
            renamed[node.output[0]] = source
    for node in kept:
        rename_reads(node, renamed)
        node.output[:] = [renamed.get(name, name) for name in node.output]
    replace_nodes(proto.graph, kept)


def _known_types(proto: ModelProto) -> dict[str, int]:
    """Returns the element types of inputs, and of what appends rows to them."""
    found = {v.name: v.type.tensor_type.elem_type for v in proto.graph.input}
    for node in proto.graph.node:
        if node.op_type in ("Concat", "Identity") and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


def _is_rename(node: NodeProto, types: Mapping[str, int]) -> bool:
    cast_to = next((a.i for a in node.attribute if node.op_type == "Cast" and a.name == "to"), None)
    return node.op_type == "Identity" or (cast_to is not None and types.get(node.input[0]) == cast_to)
