"""A new instruction, added to a copy of the sources by following CONTRIBUTING.md alone."""

from pathlib import Path

import pytest

from tests.project.recipes.recipe import copied, followed, run

# The tests of the new opcode, and those over the whole table; then a program made by hand.
TRIED = """
import sys
from pathlib import Path

import pytest

import raptor
from raptor.target import arch as architectures
from tests.validator.builder import Builder, address, op, stream
from validator.checks import check
from validator.program.pimsim_program import RawProgram
from validator.simulate.builtin import estimate_program

folder = Path(sys.argv[1])
assert Path(raptor.__file__).is_relative_to(folder)
tests = [
    "tests/target/test_isa.py",
    "tests/validator/engines/test_engines.py",
    "tests/validator/simulate/test_opcodes.py",
]
chosen = "vabs or cover or opcodes_are_those or has_nothing"
assert pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-k", chosen, *(str(folder / t) for t in tests)]) == 0

zeros = (address(1, 0), op("lldi", rd=1, len=64))
rows = (op("setbw", ibiw=8, obiw=8), address(2, 64), op("vabs", rd=2, rs1=1, len=64))


def rules(name, *streams):
    program = Builder(list(streams)).write(folder / name)
    return {f.rule for f in check(program)} & {"extension-op", "local-unwritten"}


filled, unfilled = stream(*zeros, *rows), stream(address(1, 0), *rows)
assert rules("filled", filled) == {"extension-op"}
assert rules("unfilled", unfilled) == {"extension-op", "local-unwritten"}


def latency_ns(name):
    rows_of = (*zeros, *rows[:-1], op(name, rd=2, rs1=1, len=64))
    raw = RawProgram(1, ((),), (stream(*rows_of),), (True,), ("",), Path(), Path())
    return estimate_program(raw, architectures.load("bench", cores=1), 0)[0]


assert latency_ns("vabs") == latency_ns("vsigm")
print("followed")
"""


@pytest.mark.slow
def test_an_instruction_is_added_by_following_the_page(tmp_path: Path) -> None:
    sources = copied(tmp_path / "sources")
    followed(sources, "An instruction, step by step")
    assert run(sources, ["-c", TRIED, sources]).endswith("followed\n")
