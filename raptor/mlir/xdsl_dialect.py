"""The dialects of RAPTOR for xDSL, made from their table. Needs the package xdsl (`pip install raptor[mlir]`)."""

from collections.abc import Mapping
from typing import Any

from raptor.common.errors import UserError
from raptor.mlir.dialect import AttributeSpec, Kind, OpSpec, pim_dialect

try:
    from xdsl.context import Context
    from xdsl.dialects.builtin import (
        ArrayAttr,
        Builtin,
        DenseArrayBase,
        DenseResourceAttr,
        DictionaryAttr,
        FlatSymbolRefAttrConstr,
        IntegerAttr,
        MemRefType,
        ModuleOp,
        StringAttr,
        i64,
    )
    from xdsl.ir import Dialect
    from xdsl.irdl import (
        AnyAttr,
        IRDLOperation,
        attr_def,
        base,
        irdl_op_definition,
        operand_def,
        opt_attr_def,
        region_def,
        result_def,
        traits_def,
        var_operand_def,
    )
    from xdsl.traits import HasParent, IsolatedFromAbove, IsTerminator, SymbolOpInterface
except ImportError as e:
    raise UserError("raptor.mlir.xdsl_dialect needs the package xdsl: pip install 'raptor[mlir]'") from e

_CONSTRAINTS: Mapping[Kind, Any] = {
    "i64": IntegerAttr.constr(i64),
    "string": base(StringAttr),
    "symbol": FlatSymbolRefAttrConstr,
    "i64s": DenseArrayBase.constr(i64),
    "dictionary": base(DictionaryAttr),
    "types": base(ArrayAttr),
    "type": AnyAttr(),
    "resource": base(DenseResourceAttr),
}


def make_context() -> Context:
    """Returns a context with the dialects `builtin` and `pim`, which parses what RAPTOR writes."""
    context = Context()
    context.load_dialect(Builtin)
    context.load_dialect(PIM)
    return context


def _attribute(spec: AttributeSpec) -> Any:
    return (opt_attr_def if spec.optional else attr_def)(_CONSTRAINTS[spec.kind])


def _define(spec: OpSpec, parents: Mapping[str, Any]) -> Any:
    """Returns the class of an operation. parents: the classes in whose regions operations stand, by name."""
    traits: list[Any] = [HasParent(parents[spec.parent])] if spec.parent in parents else []
    body: dict[str, Any] = {"__doc__": spec.meaning, "name": spec.name}
    body |= {name: _attribute(attribute) for name, attribute in spec.attributes.items() if name != "name"}
    if "name" in spec.attributes:  # xDSL has a field of this name: the name of the operation
        body["name_"] = (opt_attr_def if spec.attributes["name"].optional else attr_def)(
            _CONSTRAINTS[spec.attributes["name"].kind], attr_name="name"
        )
    if spec.buffers != "none":
        body["buffers"] = (operand_def if spec.buffers == "one" else var_operand_def)(base(MemRefType))
    if spec.result:
        body["result"] = result_def(base(MemRefType))
    if spec.region:
        body["body"] = region_def("single_block")
        traits.append(IsolatedFromAbove())
    if spec.symbol:
        traits.append(SymbolOpInterface())
    if spec.terminator:
        traits.append(IsTerminator())
    if traits:
        body["traits"] = traits_def(*traits)
    return irdl_op_definition(type(spec.class_name, (IRDLOperation,), body))


def _make_dialect(name: str, specs: Mapping[str, OpSpec]) -> Dialect:
    parents: dict[str, Any] = {"builtin.module": ModuleOp}
    for spec in sorted(specs.values(), key=lambda spec: not spec.region):
        parents[spec.name] = _define(spec, parents)
    return Dialect(name, [parents[each] for each in specs], [])


PIM = _make_dialect("pim", pim_dialect())
"""The dialect `pim`."""
