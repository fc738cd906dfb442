"""Writes docs/operators.md from the table of importers."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from types import MappingProxyType

from raptor.frontend.registry import Importer, importers

EXTENDED: Mapping[str, str] = MappingProxyType(
    {
        "Acos": "sqrt, div",
        "Acosh": "sqrt, log",
        "Asin": "sqrt, div",
        "Asinh": "sqrt, div, log",
        "Atan": "sqrt, div",
        "Atanh": "div, log",
        "Celu": "exp",
        "Cosh": "exp",
        "DequantizeLinear": "float, where an operator needs real numbers",
        "Div": "div, unless the divisor is a constant",
        "Elu": "exp",
        "Erf": "erf",
        "Exp": "exp",
        "GatherElements": "div, for computed indices",
        "GRU": "those of its activations: exp, log, div for Elu, Softplus, Softsign",
        "Gelu": "erf; none with approximate=tanh",
        "GlobalLpPool": "sqrt, or log and exp; none for p = 1",
        "InstanceNormalization": "sqrt, div",
        "LRN": "sqrt, div; or log, exp, div, as beta demands",
        "LSTM": "those of its activations: exp, log, div for Elu, Softplus, Softsign",
        "LayerNormalization": "sqrt, div",
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
    }
)
"""Operators that need the extended instruction set, always or in some cases, and the instructions they need.

A test compares this with the importers.
"""

HEAD = """# Operators

Written by `make docs-generate` from the table of importers (`raptor/frontend/operators`). Every tensor is computed in
float32, or as the integers that QuantizeLinear makes of it (quantised models); models of float16 and float64 compile,
and their weights are converted. Every shape is fixed (`--dim`,
`--shape`). Nodes that depend only on constants and shapes are computed while compiling, whatever their operator is. So
are `If`, `Loop` and `Scan` that these decide (`--set` makes an input a constant). Integers are possible there, but not
as [data](faq.md#token-ids). Operators that are not in the table, but that ONNX defines by others (Attention,
RotaryEmbedding, GroupNormalization from version 21 on, LinearAttention, CausalConvWithState and others), are replaced
by these first; so what they need is what these need.

- *since*: the first version of the operator set that is read. Later versions are read too, until the next row of the
  same operator.
- *extended*: instructions that the operator needs beyond the published set ([design](design.md#instructions)).
  `--isa base` refuses nodes that need them.
- *limits*: what must hold for the node.

<div class="stacked"></div>

| operator | since | what it computes | extended | limits |
|---|---|---|---|---|
"""


def page() -> Iterator[str]:
    """Yields the lines of docs/operators.md."""
    yield HEAD
    for op_type, group in groupby(importers(), key=lambda i: i.op_type):
        for found in group:
            yield _row(op_type, found)


def _row(op_type: str, found: Importer) -> str:
    name = f"{found.domain}.{op_type}" if found.domain else op_type
    cells = (name, str(found.since), found.summary, EXTENDED.get(op_type, ""), found.limits)
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |\n"
