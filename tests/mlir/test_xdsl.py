"""xDSL with the dialect that the table makes: reads what RAPTOR writes, refuses wrong ones, prints the same program."""

from importlib import import_module
from io import StringIO
from typing import Any

import pytest

from raptor import mlir
from raptor.mlir.dialect import all_dialects
from tests.mlir.mutations import programs
from tests.mlir.test_round_trip import assert_equal_streams, levels
from tests.mlir.wrong_modules import WRONG

pytest.importorskip("xdsl", reason="the package xdsl is not here (pip install 'raptor[mlir]')")
pytestmark = pytest.mark.frameworks


def module(name: str) -> Any:
    return import_module(name)


def through_xdsl(text: str) -> str:
    context = module("raptor.mlir.xdsl_dialect").make_context()
    parsed = module("xdsl.parser").Parser(context, text).parse_module()
    parsed.verify()
    printed = StringIO()
    module("xdsl.printer").Printer(printed, print_generic_format=True, print_debuginfo=True).print_op(parsed)
    return printed.getvalue()


def test_every_operation_has_a_class():
    made = module("raptor.mlir.xdsl_dialect")
    classes = {"pim": made.PIM.operations, "spat": made.SPAT.operations}
    assert {name: {each.name for each in found} for name, found in classes.items()} == {
        name: {*specs} for name, specs in all_dialects().items()
    }


@pytest.mark.parametrize("name", ["thesis", "integers", "lines", "lookup"])
def test_through_xdsl(name: str):
    of = programs()[name]
    for made_by, program in levels(of).items():
        assert_equal_streams(through_xdsl(mlir.dump(program, made_by)), of)
    assert mlir.load(through_xdsl(mlir.dump(of.schedule, "schedule"))).made_by == "schedule"


@pytest.mark.parametrize("name", [name for name, wrong in WRONG.items() if wrong.everywhere])
def test_a_wrong_module(name: str):
    faults = module("xdsl.utils.exceptions")
    with pytest.raises((faults.ParseError, faults.VerifyException, faults.DiagnosticException)):
        through_xdsl(WRONG[name].text)
