"""The dialects of RAPTOR for xDSL, made from their table. Needs the package xdsl (`pip install raptor[mlir]`)."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from raptor.common.errors import UserError
from raptor.mlir.dialect import KINDS, AttributeSpec, OpSpec, all_dialects


def _import(name: str) -> Any:
    """Returns a module of xDSL, which RAPTOR does not install."""
    try:
        return import_module(f"xdsl.{name}")
    except ImportError as e:
        raise UserError(f"raptor.mlir.xdsl_dialect needs the package xdsl: {e}; pip install 'raptor[mlir]'") from e


_builtin, _irdl, _traits = _import("dialects.builtin"), _import("irdl"), _import("traits")
_VALUES = {"memref": _irdl.base(_builtin.MemRefType), "tensor": _irdl.base(_builtin.TensorType)}


def make_context() -> Any:
    """Returns an `xdsl.context.Context` with the dialects that parse what RAPTOR writes."""
    context = _import("context").Context()
    context.load_dialect(_builtin.Builtin)
    for dialect in (PIM, SPAT):
        context.load_dialect(dialect)
    return context


def _attribute(name: str, spec: AttributeSpec) -> Any:
    kind: Any = getattr(_builtin, KINDS[spec.kind].xdsl)
    match spec.kind:
        case "symbol":
            constraint = _builtin.FlatSymbolRefAttrConstr
        case "type":
            constraint = _irdl.AnyAttr()
        case "i64" | "i64s":
            constraint = kind.constr(_builtin.i64)
        case _:
            constraint = _irdl.base(kind)
    return (_irdl.opt_attr_def if spec.optional else _irdl.attr_def)(constraint, attr_name=name)


def _define(spec: OpSpec, parents: Mapping[str, Any]) -> Any:
    """Returns the class of an operation. parents: the classes in whose regions operations stand, by name."""
    traits: list[Any] = [_traits.HasParent(parents[spec.parent])] if spec.parent in parents else []
    body: dict[str, Any] = {"__doc__": spec.meaning, "name": spec.name}
    for name, attribute in spec.attributes.items():  # `name` of an xDSL class is the name of the operation
        body[f"{name}_" if name == "name" else name] = _attribute(name, attribute)
    value = _VALUES[spec.values]
    if spec.operands != "none":
        body["values"] = (_irdl.operand_def if spec.operands == "one" else _irdl.var_operand_def)(value)
    if spec.results != "none":
        body["made"] = (_irdl.result_def if spec.results == "one" else _irdl.var_result_def)(value)
    if spec.region:
        body["body"] = _irdl.region_def("single_block")
        traits += [_traits.IsolatedFromAbove()] if spec.operands == "none" else []
    if spec.symbol:
        traits.append(_traits.SymbolOpInterface())
    if spec.terminator:
        traits.append(_traits.IsTerminator())
    if traits:
        body["traits"] = _irdl.traits_def(*traits)
    return _irdl.irdl_op_definition(type(spec.class_name, (_irdl.IRDLOperation,), body))


def _make_dialect(name: str, specs: Mapping[str, OpSpec]) -> Any:
    parents: dict[str, Any] = {"builtin.module": _builtin.ModuleOp}
    for spec in sorted(specs.values(), key=lambda spec: not spec.region):
        parents[spec.name] = _define(spec, parents)
    return _import("ir").Dialect(name, [parents[each] for each in specs], [])


PIM, SPAT = (_make_dialect(name, specs) for name, specs in all_dialects().items())
"""The dialects `pim` and `spat`."""
