"""Rules on programs with integers: the memory that their instructions read, and what sets a width."""

from pathlib import Path

import numpy as np
import pytest

from tests.validator.builder import Builder, address, coded, op, place, stream
from validator.checks import check

ROWS = (address(1, 0), address(2, 64), address(3, 512), op("lldi", rd=1, len=16))


def rules(folder: Path, *rows: tuple[int, ...], **builder: object) -> set[str]:
    """Returns the rules that find something in a program of one core."""
    options = {"numbers": "mixed", "local_bytes": 1024, **builder}
    found = check(Builder([stream(*ROWS, *rows)], **options).write(folder))  # pyright: ignore[reportArgumentType]
    return {f.rule for f in found}


@pytest.mark.parametrize(("name", "bits", "needed"), [("vlut", 4, 32), ("vlut", 8, 512), ("vrequant", 8, 64)])
def test_tables_and_parameters_are_read(tmp_path: Path, name: str, bits: int, needed: int) -> None:
    """A table has 2^bits elements of 16 bits, four vectors of parameters 64 bytes."""
    rows = (op("setbw", ibiw=bits, obiw=16), op(name, rd=3, rs1=1, rs2=2, len=4))
    for size, found in ((needed, False), (needed - 1, True)):
        fill = op("lldi", rd=2, len=size)
        assert ("local-unwritten" in rules(tmp_path / f"{size}", fill, *rows)) is found


@pytest.mark.parametrize("setter", ["setbw", "setfp"])
def test_both_set_the_width(tmp_path: Path, setter: str) -> None:
    add = op("vvadd", rd=3, rs1=1, rs2=1, len=4)
    assert "width-unset" not in rules(tmp_path / "set", op(setter, ibiw=32, obiw=32), add)
    assert "width-unset" in rules(tmp_path / "unset", add, op(setter, ibiw=32, obiw=32))


@pytest.mark.parametrize(("bits", "found"), [(8, False), (16, True)])
def test_an_input_has_the_bytes_of_its_coding(tmp_path: Path, bits: int, found: bool) -> None:
    """A store to byte 8, behind eight int8, inside eight int16."""
    inputs = [place("x", [8], 0, coding=coded(bits, f"int{bits}"))]
    rows = (address(28, 0), address(29, 8), op("st", rd=28, rs1=1, size=4))
    constants = {"constants": np.zeros(1, np.uint8), "constants_at": 100}
    assert ("global-overwrite" in rules(tmp_path, *rows, inputs=inputs, **constants)) is found
