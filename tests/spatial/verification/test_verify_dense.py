"""`spatial.verify` on layers of one output pixel: a mistake in what is multiplied, copied or added is refused."""

from typing import Any

import numpy as np
import pytest

from raptor.spatial.ir import Copy
from raptor.spatial.operations import ApplyLine, Overlap
from tests.pipeline import Passes, conv_model, passes
from tests.spatial.verification.test_verify_lines import Change, changed, plus, refused
from tests.values import replace

CHIP = {"xbar": (16, 16), "xbars_per_core": 6, "cores": 60}
MODEL = conv_model((1, 40, 2, 2), 50, (2, 2))
"""Four kernel positions of three ranges of input channels, more output channels than a core has crossbars for."""


@pytest.fixture(scope="module")
def compiled() -> Passes:
    return passes(MODEL, **CHIP, mapping="rows")


def test_it_is_such_a_layer(compiled: Passes):
    ops = [op for c in compiled.spatial.computes for op in c.body]
    assert {ApplyLine, Copy, Overlap} == set(map(type, ops))
    assert len(set(compiled.partition.cores)) > 3


def _first_product(column: int, amount: int) -> Change:
    return lambda op: replace(op, products=plus(op.products, 0, column, amount))


def _run(row: int, column: int, amount: int) -> Change:
    return lambda op: replace(op, runs=plus(op.runs, row, column, amount))


MISTAKES: dict[str, tuple[type[Any], Change, str]] = {
    "another matrix": (ApplyLine, _first_product(0, 1), "multiplies"),
    "another input": (ApplyLine, _first_product(2, 1), "multiplies"),
    "other channels copied": (Copy, lambda op: replace(op, first=op.first + 1), "multiplies|does not have"),
    "copied elsewhere": (Copy, lambda op: replace(op, at=op.at + 1), "multiplies|no place"),
    "a shorter piece": (Copy, lambda op: replace(op, elements=op.elements - 1), "multiplies"),
    "a sum of other columns": (Overlap, _run(0, 2, 1), "where another belongs|does not have"),
    "a sum left out": (Overlap, lambda op: replace(op, runs=op.runs[1:]), "miss products|without products"),
    "a sum added twice": (Overlap, lambda op: replace(op, runs=np.repeat(op.runs, 2, axis=0)), "twice"),
    "a shorter sum": (Overlap, _run(0, 3, -1), "adds \\d+ of channels"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("at", [0, -1])
def test_a_mistake(compiled: Passes, mistake: str, at: int):
    kind, change, message = MISTAKES[mistake]
    if at and mistake in {"other channels copied", "copied elsewhere", "a shorter piece"}:
        message = "where another belongs|twice|adds \\d+ of|miss products|no place|does not have"
    refused(changed(compiled.spatial, kind, change, at), message)
