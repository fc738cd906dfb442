"""docs/operators.md: what the table of importers says, for people."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from types import MappingProxyType

from raptor.frontend.registry import Importer, importers

EXTENDED: Mapping[str, str] = MappingProxyType(
    {
        "Celu": "exp",
        "Div": "div, unless the divisor is a constant",
        "Elu": "exp",
        "Erf": "erf",
        "Exp": "exp",
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
        "RMSNormalization": "sqrt, div",
        "RNN": "those of its activations: exp, log, div for Elu, Softplus, Softsign",
        "Reciprocal": "div",
        "ReduceL2": "sqrt",
        "ReduceLogSum": "log",
        "ReduceLogSumExp": "exp, log",
        "Selu": "exp",
        "Softmax": "softmax",
        "Softplus": "exp, log",
        "Softsign": "div",
        "Sqrt": "sqrt",
    }
)
"""Operators that the published instruction set cannot compute, or not always, and what they take from the extension.

A test compares this with what the importers do.
"""

HEAD = """# Operators

Written by `make docs-generate` from the table of importers (`raptor/frontend/operators`). Every tensor is float32,
every shape is static. Nodes that depend on constants and shapes only are computed while compiling, whatever they are.
Operators that ONNX defines by others, such as GroupNormalization from version 21 on, are taken apart first.

*since*: the first version of the operator set the importer reads; later ones too, until the next line of the operator.
*extended*: instructions beyond the published set ([design](design.md#instructions)); `--isa base` refuses nodes that
need them.

| operator | since | what it computes | extended | limits |
|---|---|---|---|---|
"""


def page() -> Iterator[str]:
    """The lines of docs/operators.md."""
    yield HEAD
    for op_type, group in groupby(importers(), key=lambda i: i.op_type):
        for found in group:
            yield _row(op_type, found)


def _row(op_type: str, found: Importer) -> str:
    cells = (op_type, str(found.since), found.summary, EXTENDED.get(op_type, ""), found.limits)
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |\n"
