"""xDSL with the dialect that the table makes: reads what RAPTOR writes, refuses wrong ones, prints the same program."""

from io import StringIO

import pytest

pytest.importorskip("xdsl", reason="the package xdsl is not here (pip install 'raptor[mlir]')")

from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import DiagnosticException, ParseError, VerifyException

from raptor import mlir
from raptor.mlir.dialect import pim_dialect
from raptor.mlir.xdsl_dialect import PIM, make_context
from tests.mlir.mutations import programs
from tests.mlir.test_round_trip import assert_equal_streams, levels
from tests.mlir.wrong_modules import WRONG


def through_xdsl(text: str) -> str:
    module = Parser(make_context(), text).parse_module()
    module.verify()
    printed = StringIO()
    Printer(printed, print_generic_format=True, print_debuginfo=True).print_op(module)
    return printed.getvalue()


def test_every_operation_has_a_class():
    assert {each.name for each in PIM.operations} == pim_dialect().keys()


@pytest.mark.parametrize("name", ["thesis", "integers", "lines", "lookup"])
def test_through_xdsl(name: str):
    of = programs()[name]
    for made_by, program in levels(of).items():
        assert_equal_streams(through_xdsl(mlir.dump(program, made_by)), of)


@pytest.mark.parametrize("name", [name for name, wrong in WRONG.items() if wrong.everywhere])
def test_a_wrong_module(name: str):
    with pytest.raises((ParseError, VerifyException, DiagnosticException)):
        through_xdsl(WRONG[name].text)
