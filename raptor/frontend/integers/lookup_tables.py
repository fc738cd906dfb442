"""Lookup tables of functions of one integer of at most 8 bits, computed by onnxruntime for every integer."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.integers.affine_values import AffineView, TableView
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.proto.onnx_wrappers import run_constant_model
from raptor.graph.ir import Floats, Tensor

MOST_BITS = 8


def find_table(ctx: ImportContext, name: str) -> TableView | None:
    """Returns the lookup table of a tensor that is a function of one integer tensor of at most 8 bits; else None."""
    view = ctx.views.get(name)
    if isinstance(view, TableView):
        return view
    term = view.single_term if isinstance(view, AffineView) else None
    if not isinstance(view, AffineView) or term is None or term.tensor.shape != view.shape:
        return None
    element = term.tensor.element
    if element.bits > MOST_BITS:
        return None
    codes = np.arange(element.low, element.high + 1) + term.offset.item()
    values = codes.astype(np.float32) * term.scale.reshape(())
    bounded = np.minimum(np.maximum(values, np.float32(view.low)), np.float32(view.high))
    return TableView(view.node, view.shape, term.tensor, bounded)


def tabulate_node(node: NodeView, ctx: ImportContext) -> bool:
    """Makes the node's result a table; False unless all operands are tables of one integer tensor or single numbers."""
    operands: list[Floats] = []
    found: list[TableView] = []
    for name in (i for i in node.inputs if i):
        value, one = ctx.constant(name), find_table(ctx, name)
        if value is not None and value.size == 1:
            operands.append(np.asarray(value, np.float32).reshape(()))
        elif one is not None and value is None:
            operands.append(one.values)
            found.append(one)
        else:
            return False
    if not found or any(t.tensor.name != found[0].tensor.name or t.shape != found[0].shape for t in found):
        return False
    tensor: Tensor = found[0].tensor
    if ctx.shape(node.output) != found[0].shape:
        return False
    ctx.views[node.output] = TableView(node, found[0].shape, tensor, _computed(node, operands))
    return True


def _computed(node: NodeView, operands: list[Floats]) -> Floats:
    """Returns the node's result for tables in place of its tensors, computed by onnxruntime without optimisations."""
    given = iter(operands)
    constants = {f"i{p}": next(given) for p, name in enumerate(node.inputs) if name}
    names = [f"i{p}" if name else "" for p, name in enumerate(node.inputs)]
    step = helper.make_node(node.op_type, names, ["y"], **node.attributes)
    graph = helper.make_graph(
        [step],
        "table",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", node.version)], ir_version=10)
    try:
        return np.asarray(run_constant_model(model), np.float32)
    except Exception as error:  # onnxruntime raises a dozen types that have only Exception in common
        raise ImportRefusal(f"onnxruntime computes no table of it: {error}") from None
