"""Integer rules (`registry.rule`) for operators applied directly to quantised integers: moves, maxima, clamps."""

from dataclasses import replace

import numpy as np
from onnx import TensorProto

from raptor.frontend.import_context import ImportContext
from raptor.frontend.integers.affine_values import AffineView, ConcatView, TableView
from raptor.frontend.integers.rule_steps import call_importer, find_affine_view
from raptor.frontend.operator_sets import MOVE_OPS
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import integer_rule

_FIRST_WITH_INPUTS = 11
"""First version of Pad whose value is an input."""
_OWN_RULES = frozenset({"Concat", "Pad", "Cast", "ScatterND"})
_MAXIMA = frozenset({"MaxPool", "GlobalMaxPool"})


@integer_rule(*(MOVE_OPS - _OWN_RULES))
def move_codes(node: NodeView, ctx: ImportContext) -> bool:
    """Moves the integers, or takes their maximum; scale and zero point do not change."""
    view = ctx.views.get(node.inputs[0])
    if node.op_type in ("Resize", "Upsample") and node.string("mode", "nearest") != "nearest":
        return False
    if isinstance(view, TableView) and node.op_type not in _MAXIMA:
        for output, moved in call_importer(node, ctx, {node.inputs[0]: view.tensor.name}).items():
            ctx.views[output] = TableView(node, moved.shape, moved, view.values)
        return True
    term = view.single_term if isinstance(view, AffineView) else None
    if not isinstance(view, AffineView) or term is None or term.tensor.shape != view.shape:
        return False
    for output, moved in call_importer(node, ctx, {node.inputs[0]: term.tensor.name}).items():
        terms = (replace(term, tensor=moved),)
        ctx.views[output] = replace(view, node=node, shape=moved.shape, terms=terms, takes_bias=False)
    return True


@integer_rule("Concat")
def concatenate_codes(node: NodeView, ctx: ImportContext) -> bool:
    """Concatenates integers of equal scale and zero point; other views are joined when the result is quantised."""
    views = [ctx.views.get(i) for i in node.inputs]
    found = [v for v in views if v is not None]
    if len(found) < len(views):
        return False
    terms = [
        v.single_term if isinstance(v, AffineView) and v.low == -np.inf and v.high == np.inf else None for v in found
    ]
    first = terms[0]
    same = [
        t
        for t in terms
        if t is not None
        and first is not None
        and (t.scale.item(), t.offset.item(), t.tensor.element)
        == (first.scale.item(), first.offset.item(), first.tensor.element)
    ]
    if first is None or len(same) < len(terms):
        ctx.views[node.output] = ConcatView(node, ctx.shape(node.output), tuple(found), node)
        return True
    own = {i: t.tensor.name for i, t in zip(node.inputs, same, strict=True)}
    tensor = call_importer(node, ctx, own)[node.output]
    ctx.views[node.output] = AffineView(node, tensor.shape, (replace(first, tensor=tensor),))
    return True


@integer_rule("Relu")
def rectify(node: NodeView, ctx: ImportContext) -> bool:
    """Applies max(x, 0) to the symbolic dequantised value (`frontend.views`); adds no operator."""
    return _bounded(node, ctx, 0, np.inf)


@integer_rule("Clip")
def clip(node: NodeView, ctx: ImportContext) -> bool:
    """Applies the clamp to the symbolic dequantised value (`frontend.views`); False if a bound is computed."""
    bounds = [node.number("min", -np.inf), node.number("max", np.inf)]
    for position in (1, 2):
        name = node.input(position)
        value = ctx.constant(name)
        if name is not None and value is None:
            return False
        if value is not None:
            bounds[position - 1] = float(value.item())
    return _bounded(node, ctx, *bounds)


def _bounded(node: NodeView, ctx: ImportContext, low: float, high: float) -> bool:
    view = ctx.views.get(node.inputs[0])
    if view is None or np.isnan(low) or np.isnan(high):
        return False
    ctx.views[node.output] = view.clamp(node, low, high)
    return True


@integer_rule("Pad")
def pad_codes(node: NodeView, ctx: ImportContext) -> bool:
    """Pads with the integer that represents the padding value exactly; False if there is none."""
    view = find_affine_view(ctx, node.inputs[0])
    term = None if view is None else view.single_term
    if view is None or term is None or term.tensor.shape != view.shape or node.version < _FIRST_WITH_INPUTS:
        return False
    value = ctx.constant(node.input(2))
    if node.input(2) is not None and value is None:
        return False
    number, tensor = np.float32(0 if value is None else value.item()), term.tensor
    unit = np.rint(np.float64(number) / np.float64(term.scale.item()))
    element = unit - term.offset.item()
    if (
        np.float32(unit) * np.float32(term.scale.item()) != number
        or not tensor.element.low <= element <= tensor.element.high
    ):
        return False
    # The importer expects the value in the integer type of the model.
    code = int(element) + (tensor.coding.offset if tensor.coding else 0)
    filling = ctx.add_constant(f"{node.output}.value", np.full((), code, np.int32))
    given = (*node.inputs, "", "")[:4]
    padded = replace(node, inputs=(given[0], given[1], filling, *(i for i in given[3:] if i)))
    moved = call_importer(padded, ctx, {node.inputs[0]: tensor.name})[node.output]
    terms = (replace(term, tensor=moved),)
    ctx.views[node.output] = replace(view, node=node, shape=moved.shape, terms=terms, takes_bias=False)
    return True


@integer_rule("Cast")
def pass_cast(node: NodeView, ctx: ImportContext) -> bool:
    """Keeps the view of a cast from float to float."""
    view = ctx.views[node.inputs[0]]
    if node.integer("to", TensorProto.FLOAT) != TensorProto.FLOAT:
        return False
    ctx.views[node.output] = view
    return True
