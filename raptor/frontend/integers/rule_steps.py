"""Steps shared by the integer rules (`registry.rule`): calling importers on integers, widening, zero points, biases."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from raptor.common.errors import UserError
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_node import import_node
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.integers.affine_values import AffineTerm, AffineView
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import find_importer
from raptor.frontend.types.integer_ranges import IntegerInterval, OverflowFault, find_narrowest_type
from raptor.frontend.types.quant_params import Ints, QuantisedConstant, Shape
from raptor.graph.ir import Bound, Constant, Floats, Map, Tensor
from raptor.target.chip_elements import ElementType

NO_ATTRIBUTES: Mapping[str, Any] = {}


def call_importer(
    node: NodeView, ctx: ImportContext, inputs: Mapping[str, str], *, suffix: str = "codes"
) -> dict[str, Tensor]:
    """Calls the importer of a node with other inputs; returns the results keyed by the node's own outputs.

    inputs: own input -> name of an integer tensor or constant; '' omits an optional input. suffix: ends the results'
    names.
    """
    outputs = {o: ctx.register_tensor(f"{o}.{suffix}", ctx.shape(o)) for o in node.outputs if o}
    own = tuple(inputs.get(i, i) for i in node.inputs)
    found = find_importer(node.op_type, node.version)
    if found is None:
        raise ImportRefusal("not supported")
    found.function(replace(node, inputs=own, outputs=tuple(outputs.get(o, "") for o in node.outputs)), ctx)
    return {o: ctx.tensors[name] for o, name in outputs.items()}


def import_step(
    node: NodeView,
    ctx: ImportContext,
    op_type: str,
    inputs: tuple[str, ...],
    shape: Shape,
    attributes: Mapping[str, Any] = NO_ATTRIBUTES,
    version: int = 0,
) -> str:
    """Imports a standard operator as one step of the node; returns the name of its result, which has `shape`."""
    output = ctx.register_tensor(f"{node.output}.real", shape)
    step = NodeView(node.name, op_type, version or node.version, inputs, (output,), attributes)
    found = find_importer(op_type, step.version)
    if found is None:
        raise ImportRefusal(f"its step {op_type} is not supported")
    import_node(step, ctx, found)
    return output


def find_affine_view(ctx: ImportContext, name: str) -> AffineView | None:
    """Returns the affine view (`views.AffineView`) of a tensor; None if it has none."""
    view = ctx.views.get(name)
    return view if isinstance(view, AffineView) else None


def materialise_clamp(node: NodeView, ctx: ImportContext, name: str) -> AffineView | None:
    """Returns the affine view of `name` with its clamp materialised as a `Bound` node on the integers.

    None if the tensor has no affine view, or if an integer cannot represent the clamp exactly.
    """
    view = find_affine_view(ctx, name)
    if view is None or (view.low == -np.inf and view.high == np.inf):
        return view
    term = view.single_term
    if term is None or term.tensor.shape != view.shape:
        return None
    element = term.tensor.element
    ends = [find_exact_code(term, b) for b in (view.low, view.high)]
    if any(e is None for e in ends):
        return None
    low, high = (None if e is None or abs(e) == np.inf else int(e) for e in ends)
    found = IntegerInterval(max(element.low, low or element.low) if low is not None else element.low, element.high)
    found = found if high is None else IntegerInterval(found.low, min(high, element.high))
    if found.low > found.high:
        return None
    bound = Bound(None if low is None or low <= element.low else low, None if high is None else found.high)
    if bound.low is None and bound.high is None:
        return replace(view, low=-np.inf, high=np.inf)
    tensor = ctx.emit_inner(
        node, (term.tensor.name,), view.shape, term.tensor.image, bound, f"{name}.bound", element, found
    )
    settled_view = replace(view, terms=(replace(term, tensor=tensor),), low=-np.inf, high=np.inf)
    ctx.views[name] = settled_view
    return settled_view


def find_exact_code(term: AffineTerm, bound: float) -> float | None:
    """Returns the stored integer that represents a bound exactly, else None. Infinite bounds are returned as given."""
    if abs(bound) == np.inf:
        return bound
    code = np.float64(bound) / np.float64(term.scale.item())
    return float(code - term.offset.item()) if code == np.rint(code) and abs(code) < 2**31 else None


def find_single_term(node: NodeView, ctx: ImportContext, name: str) -> AffineTerm | None:
    """Returns the term of an affine view (`materialise_clamp`) with one term and one scale; else None."""
    view = materialise_clamp(node, ctx, name)
    term = None if view is None else view.single_term
    return term if term is not None and view is not None and term.tensor.shape == view.shape else None


def widen_to_type(node: NodeView, ctx: ImportContext, tensor: Tensor, element: ElementType) -> Tensor:
    """Returns the tensor converted to a wider integer type; the tensor itself if it has that type."""
    if tensor.element == element:
        return tensor
    bound, stem = Bound(tensor.element.low, None), f"{tensor.name}.wide"
    return ctx.emit_inner(
        node, (tensor.name,), tensor.shape, tensor.image, bound, stem, element, ctx.code_range(tensor)
    )


def widen_for_range(node: NodeView, ctx: ImportContext, tensor: Tensor, needed: IntegerInterval) -> Tensor:
    """Returns the tensor in a type that holds the range `needed`. Raises `UserError` above 32 bits."""
    try:
        found = find_narrowest_type(needed, least=tensor.element.bits)
    except OverflowFault as fault:
        raise UserError(f"{node.name} ({node.op_type}): {fault}") from None
    return widen_to_type(node, ctx, tensor, found) if found.bits > tensor.element.bits else tensor


def emit_integer_map(node: NodeView, ctx: ImportContext, function: Any, tensor: Tensor, value: int) -> Tensor:
    """Emits function(tensor, value); for `sub`, function(value, tensor)."""
    dtype = np.int16 if tensor.element.bits <= 16 else np.int32
    constant = Constant(np.full((1, 1, 1), value, dtype))
    operator = Map(function, (constant, 0) if function == "sub" else (0, constant))
    stem = f"{tensor.name}.{function}"
    return ctx.emit_inner(node, (tensor.name,), tensor.shape, tensor.image, operator, stem)


def add_offset(node: NodeView, ctx: ImportContext, term: AffineTerm) -> Tensor:
    """Returns tensor + offset of the term: integers proportional to the real values."""
    offset = int(term.offset.item())
    if offset == 0:
        return term.tensor
    low, high = ctx.code_range(term.tensor)
    needed = IntegerInterval(min(low, offset, low + offset), max(high, offset, high + offset))
    return emit_integer_map(node, ctx, "add", widen_for_range(node, ctx, term.tensor, needed), offset)


def quantise_bias(values: QuantisedConstant | Floats | None, scale: Floats) -> Ints:
    """Returns a bias in units of `scale`: unchanged if it is quantised with that scale, else rounded half to even.

    Raises `ImportRefusal` if the scale is 0 or the result exceeds 32 bits.
    """
    if values is None:
        return np.zeros((), np.int64)
    if isinstance(values, QuantisedConstant) and np.array_equal(
        np.broadcast_to(values.scale, shape := np.broadcast_shapes(values.scale.shape, scale.shape)),
        np.broadcast_to(scale, shape),
    ):
        return values.values.astype(np.int64)
    real = values.dequantised if isinstance(values, QuantisedConstant) else values
    if (scale == 0).any():
        raise ImportRefusal("the product of the scales of its operands is 0 in float32")
    with np.errstate(over="ignore"):
        found = np.rint(np.asarray(real / scale, np.float32))
    if not (np.abs(found) < 2**31).all():
        raise ImportRefusal(f"its bias is {np.abs(real).max()}, beyond 32 bits in steps of {scale.min()}")
    return found.astype(np.int64)
