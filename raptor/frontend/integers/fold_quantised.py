"""Constant folding during import, for nodes after the DequantizeLinear of weights.

Results stay quantised integers with a scale where possible, because integer programs need them in this form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, OperatorSetIdProto

from raptor.frontend.import_context import ImportContext
from raptor.frontend.operator_sets import MOVE_OPS, QUANTISED_OPS, RANDOM_OPS
from raptor.frontend.proto.nodes import Array, read_attributes
from raptor.frontend.proto.onnx_wrappers import run_node
from raptor.frontend.proto.read_model import subgraphs
from raptor.frontend.types.float32_integers import is_small_float
from raptor.frontend.types.quant_params import QuantisedConstant
from raptor.graph.ir import Floats

_OF_NUMBERS = frozenset(("Cast", "GlobalMaxPool", "MaxPool", "MaxUnpool", "Resize", "Upsample"))
"""Move operators that compare or create elements by value, so that they do not apply to the quantised integers."""
_MOST_CODE = 2**15


def fold_constant_node(node: NodeProto, ctx: ImportContext) -> bool:
    """Folds a node whose operands are all constants. Returns False, without any change, if it cannot be folded."""
    names = [i for i in node.input if i]
    known = bool(names) and all(map(ctx.is_constant, names))
    if not known or node.op_type in RANDOM_OPS or any(True for _ in subgraphs(node)):
        return False
    # Importers accept constant integers; 4- and 8-bit floats must be folded, as the chip does not have these types.
    if node.op_type in QUANTISED_OPS and not is_small_float(ctx.numpy_dtype(names[0])):
        return False
    moved = _moved(node, ctx)
    if moved is None:
        found = _computed(node, {n: ctx.constant(n) for n in names}, ctx.opsets)
        moved = None if found is None else [_coded_again(node, ctx, values) for values in found]
    if moved is None:
        return False
    for name, value in zip(filter(None, node.output), moved, strict=True):
        if isinstance(value, QuantisedConstant):
            ctx.add_quantised(name, value)
        else:
            ctx.set_constant(name, value)
    return True


def _moved(node: NodeProto, ctx: ImportContext) -> list[QuantisedConstant] | None:
    """Returns the results of an operator that only moves elements, applied to the integers and to their scales."""
    data = {i: ctx.quantised_constant(i) for i in (node.input if node.op_type == "Concat" else node.input[:1])}
    found = {name: value for name, value in data.items() if value is not None}
    if len(found) < len(data) or node.op_type not in MOVE_OPS - _OF_NUMBERS or _fills(node, ctx):
        return None
    others = {i: ctx.constant(i) for i in node.input if i and i not in data}
    codes = _computed(node, {**others, **{n: c.values for n, c in found.items()}}, ctx.opsets)
    scales = [c.scale for c in found.values()]
    if len({float(s.item()) if s.size == 1 else None for s in scales}) == 1 and scales[0].size == 1:
        spread = None if codes is None else [scales[0]] * len(codes)
    else:
        wide = {n: np.broadcast_to(c.scale, c.values.shape) for n, c in found.items()}
        spread = _computed(node, {**others, **wide}, ctx.opsets)
    if codes is None or spread is None:
        return None
    bits = max(c.bits for c in found.values())
    return [QuantisedConstant(c.astype(np.int32), _narrowed(s), bits) for c, s in zip(codes, spread, strict=True)]


def _fills(node: NodeProto, ctx: ImportContext) -> bool:
    """Checks whether a Pad adds values other than 0, which may have no quantised representation."""
    if node.op_type != "Pad":
        return False
    value = ctx.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    return bool(read_attributes(node).get("value", 0)) or (value is not None and bool(value.any()))


def _narrowed(scale: Array) -> Floats:
    """Returns scales with size 1 along axes on which they do not vary.

    Scales of padding elements, which are 0, become 1.
    """
    found = np.asarray(scale, np.float32)
    for axis in range(found.ndim):
        most = found.max(axis=axis, keepdims=True, initial=0)
        if ((found == most) | (found == 0)).all():
            found = most
    return np.where(found == 0, np.float32(1), found).astype(np.float32)


def _coded_again(node: NodeProto, ctx: ImportContext, values: Array) -> Array | QuantisedConstant:
    """Requantises real values with an operand's scale if all are exact multiples of it; else returns them unchanged."""
    operands = (ctx.quantised_constant(i) for i in node.input)
    coded = next((c for c in operands if c is not None), None)
    if coded is None or values.dtype != np.float32 or not _broadcasts(coded.scale.shape, values.shape):
        return values
    with np.errstate(invalid="ignore", over="ignore"):
        codes = np.rint(values / coded.scale)
    if not (np.abs(codes) < _MOST_CODE).all() or ((codes * coded.scale).astype(np.float32) != values).any():
        return values
    return replace(coded, values=codes.astype(np.int32))


def _broadcasts(small: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return len(small) <= len(to) and all(a in (1, b) for a, b in zip(small[::-1], to[::-1], strict=False))


def _computed(
    node: NodeProto, operands: Mapping[str, Array | None], opsets: Sequence[OperatorSetIdProto]
) -> list[npt.NDArray[np.generic]] | None:
    """Returns the results of the node, computed by a library; None if it fails or a result is no tensor."""
    found = run_node(node, operands, opsets)
    if found is None or len(found) != sum(1 for o in node.output if o):
        return None
    return [a for a in found if isinstance(a, np.ndarray)] if not any(isinstance(a, list) for a in found) else None
