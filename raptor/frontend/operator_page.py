"""Generates docs/reference/operators.md from the registry of importers."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import Any

from raptor.frontend.contributed.expand_contributed import EXPANSIONS
from raptor.frontend.control_flow.resolve_sequences import SEQUENCE_OPERATORS
from raptor.frontend.proto.onnx_wrappers import find_host_operators, find_standard_schemas, function_versions
from raptor.frontend.registry import OperatorImporter, importers, is_refused

_BEHIND_EXTENDED = "mask, behind extended instructions, which may make what is not a number (NaN)"
EXTENDED_NEEDS: Mapping[str, str] = MappingProxyType(
    {
        "Acos": "sqrt, div",
        "Acosh": "sqrt, log",
        "Asin": "sqrt, div",
        "Asinh": "sqrt, div, log",
        "Atan": "sqrt, div",
        "ArgMax": _BEHIND_EXTENDED,
        "ArgMin": _BEHIND_EXTENDED,
        "Atanh": "div, log",
        "Celu": "exp",
        "Cosh": "exp",
        "DequantizeLinear": "float, where an operator needs real numbers",
        "Div": "div, unless the divisor is a constant",
        "Elu": "exp",
        "Equal": _BEHIND_EXTENDED,
        "Erf": "erf",
        "Exp": "exp",
        "Gather": "mask, if both are computed",
        "GatherND": "mask, if both are computed",
        "GatherElements": "mask, for computed indices",
        "GRU": "those of its activations: exp, log, div for Elu, Softplus, Softsign",
        "Gelu": "erf; none with approximate=tanh",
        "Greater": _BEHIND_EXTENDED,
        "GreaterOrEqual": _BEHIND_EXTENDED,
        "GlobalLpPool": "sqrt, or log and exp; none for p = 1",
        "Hardmax": _BEHIND_EXTENDED,
        "InstanceNormalization": "sqrt, div",
        "IsInf": "mask",
        "IsNaN": "mask",
        "LRN": "sqrt, div; or log, exp, div, as beta demands",
        "LSTM": "those of its activations: exp, log, div for Elu, Softplus, Softsign",
        "LayerNormalization": "sqrt, div",
        "Less": _BEHIND_EXTENDED,
        "LessOrEqual": _BEHIND_EXTENDED,
        "Log": "log",
        "LogSoftmax": "exp, log",
        "LpNormalization": "div, and sqrt for p = 2",
        "LpPool": "sqrt, or log and exp; none for p = 1",
        "MeanVarianceNormalization": "sqrt, div",
        "Mish": "exp, log",
        "Pow": "sqrt, or log and exp, and div for a negative exponent; none for a whole one",
        "QLinearSoftmax": "float, softmax, div, round",
        "QuantizeLinear": "div and round, of numbers that are computed as floats",
        "RMSNormalization": "sqrt, div",
        "RNN": "those of its activations: exp, log, div for Elu, Softplus, Softsign",
        "Reciprocal": "div",
        "ReduceL2": "sqrt",
        "ReduceLogSum": "log",
        "ReduceLogSumExp": "exp, log",
        "Selu": "exp",
        "Sinh": "exp",
        "Softmax": "softmax",
        "Softplus": "exp, log",
        "Softsign": "div",
        "Sqrt": "sqrt",
        "Tan": "div",
        "ThresholdedRelu": "div",
        "TopK": _BEHIND_EXTENDED,
        "Where": _BEHIND_EXTENDED,
    }
)
"""Operator -> extended instructions that it always or sometimes needs.

A test compares this with the importers.
"""

PAGE_HEAD = """# Operators

Written by `make docs-generate` from the table of importers (`raptor/frontend/operators`). Every tensor is computed in
float32, or as the integers that QuantizeLinear makes of it (quantised models). Floats of other widths become float32,
and [integers and truth values](../how-to/faq.md#token-ids) are held as whole numbers of at most 2**24 in size. Every
shape is fixed (`--dim`, `--shape`). Nodes that depend only on constants and shapes are computed while compiling,
whatever their operator is. So are `If`, `Loop` and `Scan` that these decide (`--set` makes an input a constant), and
sequences of tensors whose lengths and positions they decide.
Operators that ONNX defines by others are replaced by these first; so what they need is what these need. Replaced as
well are operators that left the standard (`AffineView`, `Crop`, `ImageScaler`, `ParametricSoftplus`, `Scale`,
`ScaledTanh`), and of `ai.onnx.ml` those that scale, choose or add up the numbers of a table (`ArrayFeatureExtractor`,
`Binarizer`, `Imputer`, `LinearRegressor`, `Normalizer`, `Scaler`).

- *since*: the first version of the operator set that is read. Later versions are read too, until the next row of the
  same operator.
- *extended*: instructions that the operator needs beyond the published set
  ([programs](programs.md#functions)).
  `--isa base` refuses nodes that need them.
- *limits*: what must hold for the node.

Each operator is computed in one of three places. [On the chip](#on-the-chip) are the operators of the first table,
those that ONNX defines by them, and what constants decide. Where the chip cannot, `--host` has onnxruntime compute the
node [on the host](#on-the-host), and so nodes that break the limits of the first table. What neither computes is
[refused](#refused). `raptor inspect` tells it of each node of a model, and [Conformance](conformance.md) of each case
of ONNX's own suite.

## On the chip

<div class="stacked"></div>

| operator | since | what it computes | extended | limits |
|---|---|---|---|---|
"""
_DECIDED = frozenset(("Constant", "ConstantOfShape", "If", "Loop", "Range", "Scan", "Shape")) | SEQUENCE_OPERATORS
"""Operators that are folded while compiling, or not computed by the chip at all."""


def generate_page() -> Iterator[str]:
    """Yields the lines of docs/reference/operators.md."""
    yield PAGE_HEAD
    for op_type, group in groupby(importers(), key=lambda i: i.op_type):
        for found in group:
            yield _row(op_type, found)
    known, schemas = {i.op_type for i in importers()}, find_standard_schemas()
    others = {name: schema for name, schema in sorted(schemas.items()) if name not in known}
    functions = function_versions()
    by_function = [name for name in others if name in functions.keys() - _DECIDED and _is_expanded(schemas[name])]
    rest = [name for name in others if name not in _DECIDED and name not in by_function]
    on_host = find_host_operators() | functions.keys()
    yield "\nBy functions of the standard, which it has from a version on:\n\n| operator | version |\n|---|---|\n"
    yield from (f"| {name} | {functions[name]} |\n" for name in by_function)
    yield "\nBy standard operators, of onnxruntime's own (`com.microsoft`; SimplifiedLayerNormalization is in the "
    yield "domain of ONNX):\n\n| operator | what it computes |\n|---|---|\n"
    yield from (f"| {name} | {(write.__doc__ or '').partition(chr(10))[0]} |\n" for name, write in EXPANSIONS.items())
    yield f"\nWhere constants decide, else on the host: {', '.join(n for n in others if n in _DECIDED)}.\n"
    yield "\n## On the host\n\nNever on the chip, but with `--host`: "
    yield f"{', '.join(name for name in rest if name in on_host)}.\n"
    yield "\n## Refused\n\nNeither the chip nor onnxruntime computes these: "
    yield f"{', '.join(name for name in rest if name not in on_host)}; and operators of unknown domains.\n"


def _is_expanded(schema: Any) -> bool:
    """Checks whether an operator's function body is compiled: False if it is random or computes a scale at run time."""
    return schema.node_determinism != schema.NodeDeterminism.NonDeterministic and not is_refused(schema.name)


def _row(op_type: str, found: OperatorImporter) -> str:
    name = f"{found.domain}.{op_type}" if found.domain else op_type
    cells = (name, str(found.since), found.summary, EXTENDED_NEEDS.get(op_type, ""), found.limits)
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |\n"
