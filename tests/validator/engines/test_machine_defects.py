"""Planted defects of the plain engine: the comparison with the compiled engine must catch each."""

import struct
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz.defects import ENGINE, Defect
from tests.validator.builder import Builder, op, stream
from tests.validator.engines.integer_programs import OPERANDS, Setup, encoded, run_all
from validator.engines import reference_engine

SMALL = [-8, -3, -1, 0, 1, 2, 5, 7]
TIES = b"".join(struct.pack("<iihhhh", 3, 5, 1, z, -20, 20) for z in (0, 1, -2, 9, 0, 0, 4, 1))
STRUCTURE = {"offset_select": 7, "offset_value": 1}


def two(name: str, bits: int, out: int, a: list[int], b: list[int], **more: int) -> Builder:
    rows = (op("setbw", ibiw=bits, obiw=out), op(name, **OPERANDS, len=len(a) - more.get("offset_value", 0), **more))
    return Setup(encoded(a, bits), encoded(b, bits)).build(*rows)


def programs() -> list[Builder]:
    """Every instruction, with numbers at the ends of ranges, ties, negative ones, offsets and holes."""
    infinite = np.array([np.inf, 1, 2], "<f4").tobytes()
    floats = np.array([0.5, 1.5, -2.5, 1e20, -1e20, 3, -7, 0.7], "<f4").tobytes()
    bounds = [op("sldi", rd=9, imm=3)]
    matrix = {"matrices": {0: [np.arange(31, -33, -1, dtype=np.int8).reshape(8, 8)]}}
    eight = Setup(encoded(SMALL, 8), encoded(SMALL[::-1], 8))
    return [
        *(two(name, bits, bits, SMALL, SMALL[::-1]) for name in ("vvadd", "vvsub", "vvmax") for bits in (8, 12, 24)),
        *(two("vvmul", bits, out, SMALL, SMALL, **STRUCTURE) for bits, out in ((8, 16), (16, 24), (16, 8))),
        *(
            two("vvsll", 8, 32, SMALL, [0, 1, 2, 17, 20, 3, 4, 5], offset_select=select, offset_value=1)
            for select in range(8)
        ),
        two("vvsra", 8, 8, SMALL, [1, 1, 1, 1, 1, 1, 31, 1]),
        two("vvsra", 8, 8, SMALL, [1, 1, 1, 1, 1, 1, 32, 1]),
        two("vvdmul", 8, 32, SMALL, SMALL),
        two("vvadd", 8, 8, [127], [1]),
        two("vvadd", 8, 8, [-64], [-64]),
        two("vvadd", 8, 8, [-64], [-65]),
        Setup(bytes(8), bytes(7)).build(op("setbw", ibiw=16, obiw=16), op("vvadd", **OPERANDS, len=4)),
        two("vvmul", 8, 16, SMALL, SMALL),
        eight.build(op("setbw", ibiw=8, obiw=16), op("vvmul", rd=1, rs1=1, rs2=2, len=4)),
        eight.build(op("setbw", ibiw=8, obiw=16), op("vrelu", rd=3, rs1=1, len=8)),
        eight.build(*bounds, op("setbw", ibiw=8, obiw=16), op("vrsu", rd=3, rs1=1, rs2=9, len=8)),
        eight.build(*bounds, op("setbw", ibiw=8, obiw=4), op("vrsl", rd=3, rs1=1, rs2=9, len=8)),
        eight.build(*bounds, op("setbw", ibiw=8, obiw=4), op("vmv", rd=3, rs1=1, rs2=9, len=2)),
        eight.build(op("setbw", ibiw=32, obiw=32), op("setbw", ibiw=8, obiw=8), op("vvadd", **OPERANDS, len=8)),
        Setup(encoded(SMALL, 4), encoded(list(range(16)), 16)).build(
            op("setbw", ibiw=4, obiw=16), op("vlut", **OPERANDS, len=8)
        ),
        Setup(encoded(SMALL, 8), TIES).build(op("setbw", ibiw=8, obiw=8), op("vrequant", **OPERANDS, len=8)),
        *(
            eight.build(op("setbw", ibiw=8, obiw=32), op("mvmul", rd=3, rs1=1, mbiw=8, relu=relu, group=0), **matrix)
            for relu in (0, 1)
        ),
        Setup(floats, floats).build(op("setfp", ibiw=32, obiw=16), op("vround", rd=3, rs1=1, len=8)),
        Setup(floats, floats).build(op("setfp", ibiw=32, obiw=32), op("vvadd", **OPERANDS, len=8)),
        Setup(infinite, infinite).build(op("setfp", ibiw=32, obiw=32), op("vvsub", **OPERANDS, len=3)),
        eight.build(op("setfp", ibiw=8, obiw=32), op("vfloat", rd=3, rs1=1, len=8)),
        Setup(floats).build(
            op("sldi", rd=9, imm=2), op("setfp", ibiw=32, obiw=32), op("vavg", rd=3, rs1=1, rs2=9, len=3)
        ),
        Builder([stream(op("nop"))], numbers="int"),
    ]


def first_difference(folder: Path) -> int:
    """Returns the number of the first program on which the engines differ, or -1."""
    for k, builder in enumerate(programs()):
        try:
            run_all(folder / str(k), builder)
        except (AssertionError, OverflowError):  # a defect may write a number that bytes cannot hold
            return k
    return -1


def test_without_a_defect_the_engines_agree(tmp_path: Path) -> None:
    assert first_difference(tmp_path) == -1


@pytest.mark.parametrize("defect", ENGINE, ids=lambda d: f"{d.function}: {d.rewrite}")
def test_a_defect_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: Defect) -> None:
    changed = types.ModuleType("changed")
    changed.__file__ = str(defect.file)
    monkeypatch.setitem(sys.modules, "changed", changed)
    exec(compile(defect.tree(), changed.__file__, "exec"), changed.__dict__)
    monkeypatch.setattr(reference_engine, "integer_semantics", changed)
    assert first_difference(tmp_path) >= 0
