"""Meaning of every instruction on integers, in both engines and both schedules, against arithmetic written down here."""
# ruff: noqa: E501 one trap a line

import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.validator.builder import op
from tests.validator.engines.integer_programs import OPERANDS, A, B, Setup, Y, decoded, encoded, result, trap
from validator.engines.machine import EngineStop

WIDTHS = range(1, 33)
LENGTH = 20


def limits(bits: int) -> tuple[int, int]:
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def numbers(bits: int, seed: int = 0, count: int = LENGTH) -> list[int]:
    """Random integers of a width with both ends of its range."""
    low, high = limits(bits)
    draw = np.random.default_rng([bits, seed])
    return [low, high, 0, *(int(n) for n in draw.integers(low, high, count - 3, endpoint=True))]


def fits(values: list[int], bits: int) -> bool:
    low, high = limits(bits)
    return all(low <= v <= high for v in values)


def names(name: str, *needed: str) -> dict[str, int]:
    return {key: OPERANDS[key] for key in ("rd", "rs1", *needed)}


SAME = {"vvadd": lambda x, y: x + y, "vvsub": lambda x, y: x - y, "vvmax": max}
WIDER = {"vvmul": lambda x, y: x * y}


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("name", [*SAME, *WIDER])
def test_two_vectors(tmp_path: Path, name: str, bits: int) -> None:
    """Operands of half the range, so that sums fit; for products every width that holds them."""
    f = (SAME | WIDER)[name]
    used = bits if name == "vvmax" else max(bits - 1, 1) if name in SAME else min(bits, 16)
    a, b = numbers(used), numbers(used, 1)
    if used == bits == 1 and name != "vvmax":
        a, b = [0] * LENGTH, [0] * LENGTH
    out = bits if name in SAME else min(2 * bits, 32)
    source = bits if name in SAME else used
    rows = (op("setbw", ibiw=source, obiw=out), op(name, **OPERANDS, len=LENGTH))
    wanted = [f(x, y) for x, y in zip(a, b, strict=True)]
    setup = Setup(encoded(a, source), encoded(b, source))
    if not fits(wanted, out):
        assert trap(tmp_path, setup, *rows)[0].stop is EngineStop.OVERFLOW
        return
    assert decoded(result(tmp_path, setup, *rows, size=LENGTH * -(-out // 8)), out) == wanted


@pytest.mark.parametrize("bits", WIDTHS)
def test_relu(tmp_path: Path, bits: int) -> None:
    a = numbers(bits)
    rows = (op("setbw", ibiw=bits, obiw=32), op("vrelu", **names("vrelu"), len=LENGTH))
    got = result(tmp_path, Setup(encoded(a, bits)), *rows, size=LENGTH * -(-bits // 8))
    assert decoded(got, bits) == [max(x, 0) for x in a]


@pytest.mark.parametrize("out", [1, 7, 8, 12, 16, 17, 24, 32])
@pytest.mark.parametrize("bits", [1, 5, 8, 9, 16, 20, 24, 31, 32])
def test_bounds_resize(tmp_path: Path, bits: int, out: int) -> None:
    """`vrsl` brings numbers above the bound, `vrsu` below: then everything fits the other width."""
    a, (low, high) = numbers(bits), limits(out)
    for name, bound, wanted in (("vrsu", high, [min(x, high) for x in a]), ("vrsl", low, [max(x, low) for x in a])):
        if not fits(wanted, out):
            a = [min(max(x, low), high) for x in a]
            wanted = a
        folder = tmp_path / name
        folder.mkdir()
        rows = (op("setbw", ibiw=bits, obiw=out), op("sldi", rd=9, imm=bound), op(name, rd=3, rs1=1, rs2=9, len=LENGTH))
        got = result(folder, Setup(encoded(a, bits)), *rows, size=LENGTH * -(-out // 8))
        assert decoded(got, out) == wanted


@pytest.mark.parametrize("bits", [7, 8, 12, 16, 24, 32])
def test_shifts(tmp_path: Path, bits: int) -> None:
    a = numbers(min(bits, 8), 3)
    b = [k % (bits - 1 if bits < 32 else 24) for k in range(LENGTH)]
    cases = (
        ("vvsra", 32, [x >> n for x, n in zip(a, b, strict=True)]),
        ("vvsll", 32, [x << n for x, n in zip(a, b, strict=True)]),
    )
    for name, out, wanted in cases:
        if not fits(wanted, out):
            b = [n % 20 for n in b]
            wanted = [x << n for x, n in zip(a, b, strict=True)]
        folder = tmp_path / name
        folder.mkdir()
        rows = (op("setbw", ibiw=bits, obiw=out), op(name, **OPERANDS, len=LENGTH))
        got = result(folder, Setup(encoded(a, bits), encoded(b, bits)), *rows, size=LENGTH * -(-out // 8))
        assert decoded(got, out) == wanted


def test_shift_right_is_a_floor(tmp_path: Path) -> None:
    rows = (op("setbw", ibiw=8, obiw=8), op("vvsra", **OPERANDS, len=4))
    got = result(tmp_path, Setup(encoded([-1, -3, 3, -128], 8), encoded([1, 1, 1, 31], 8)), *rows, size=4)
    assert decoded(got, 8) == [-1, -2, 1, -1]


def test_dot_product(tmp_path: Path) -> None:
    a, b = numbers(16, 1, 700), numbers(8, 2, 700)
    rows = (op("setbw", ibiw=16, obiw=32), op("vvdmul", **OPERANDS, len=700))
    setup = Setup(encoded(a, 16), encoded(b, 16), at_b=1500, at_y=3000)
    wanted = sum(x * y for x, y in zip(a, b, strict=True))
    assert decoded(result(tmp_path, setup, *rows, size=4), 32) == [wanted]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_dot_product_beyond_64_bits_is_a_trap(tmp_path: Path, sign: int) -> None:
    """Eight times 2^62 is 0 modulo 2^64, in either sign near enough."""
    a = [-(2**31)] * 8
    b = [-(2**31) if sign > 0 else 2**31 - 1] * 8
    rows = (op("setbw", ibiw=32, obiw=32), op("vvdmul", **OPERANDS, len=8))
    fault, _ = trap(tmp_path, Setup(encoded(a, 32), encoded(b, 32)), *rows)
    assert (fault.stop, fault.value) == (EngineStop.OVERFLOW, 2**63 - 1 if sign > 0 else -(2**63))


@pytest.mark.parametrize("bits", [4, 8, 16, 24, 32])
@pytest.mark.parametrize("stride", [0, 1, 3])
def test_a_move_takes_elements_apart(tmp_path: Path, bits: int, stride: int) -> None:
    a = numbers(bits)
    rows = (op("setbw", ibiw=bits, obiw=8), op("sldi", rd=9, imm=stride), op("vmv", rd=3, rs1=1, rs2=9, len=6))
    got = result(tmp_path, Setup(encoded(a, bits)), *rows, size=6 * -(-bits // 8))
    assert decoded(got, bits) == [a[k * stride] for k in range(6)]


@pytest.mark.parametrize("bits", [1, 4, 7, 8])
@pytest.mark.parametrize("out", [8, 16, 24, 32])
def test_table(tmp_path: Path, bits: int, out: int) -> None:
    table, a = numbers(out, 5, 2**bits if bits > 1 else 3)[: 2**bits], numbers(bits)
    rows = (op("setbw", ibiw=bits, obiw=out), op("vlut", **OPERANDS, len=LENGTH))
    got = result(tmp_path, Setup(encoded(a, bits), encoded(table, out)), *rows, size=LENGTH * -(-out // 8))
    assert decoded(got, out) == [table[x + 2 ** (bits - 1)] for x in a]


def requantised(x: int, bias: int, m: int, s: int, z: int, low: int, high: int) -> int:
    return min(max(round(Fraction((x + bias) * m, 2**s)) + z, low), high)  # Python rounds ties to even


RECORDS = [
    (0, 1, 1, 0, -128, 127),
    (5, 3, 1, 2, -128, 127),
    (-7, 2**23 + 1, 40, -3, -128, 127),
    (2**31 - 1, 2**31 - 1, 62, 1, -100, 100),
    (-(2**31), -(2**31), 63, 0, -128, 127),
    (-(2**31), -(2**31), 0, 0, -128, 127),
    (1, -5, 2, 0, -128, 127),
    (0, 1, 64, 4, -128, 127),
    (0, 12345, 300, 0, -5, 5),
    (3, 1, 0, 0, -128, 127),
]


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
@pytest.mark.parametrize("at", [0, 2, 1])
def test_requantisation(tmp_path: Path, bits: int, at: int) -> None:
    a = numbers(bits, 7, len(RECORDS) * 6)
    records = RECORDS * 6
    content = b"".join(struct.pack("<iihhhh", *r) for r in records)
    rows = (op("setbw", ibiw=bits, obiw=8), op("vrequant", **OPERANDS, len=len(a)))
    got = result(tmp_path, Setup(encoded(a, bits), content, at_b=B + at), *rows, size=len(a))
    assert decoded(got, 8) == [requantised(x, *r) for x, r in zip(a, records, strict=True)]


def test_ties_go_to_even(tmp_path: Path) -> None:
    a = [-5, -3, -1, 1, 3, 5]
    content = b"".join(struct.pack("<iihhhh", 0, 1, 1, 0, -128, 127) for _ in a)
    rows = (op("setbw", ibiw=8, obiw=8), op("vrequant", **OPERANDS, len=len(a)))
    assert decoded(result(tmp_path, Setup(encoded(a, 8), content), *rows, size=6), 8) == [-2, -2, 0, 0, 2, 2]


@pytest.mark.parametrize(("bits", "weights"), [(8, 8), (4, 8), (16, 8), (8, 16), (24, 8), (32, 16)])
@pytest.mark.parametrize("relu", [0, 1])
@pytest.mark.parametrize("npz", [True, False])
def test_product(tmp_path: Path, bits: int, weights: int, relu: int, npz: bool) -> None:
    low, high = limits(weights)
    dtype = np.int8 if weights == 8 else np.int16
    matrix = np.random.default_rng(bits).integers(low, high, (8, 8), dtype, endpoint=True)
    matrix[0, 0] = low
    a = numbers(bits, 1, 8) if bits <= 16 else [x // 2**12 for x in numbers(bits, 1, 8)]
    setup = Setup(encoded(a, bits))
    rows = (op("setbw", ibiw=bits, obiw=32), op("mvmul", rd=3, rs1=1, mbiw=weights, relu=relu, group=0))
    wanted = [sum(x * int(w) for x, w in zip(a, column, strict=True)) for column in matrix.T]
    wanted = [max(x, 0) if relu else x for x in wanted]
    options: dict[str, Any] = {"matrices": {0: [matrix]}, "npz": npz, "bits": 16}
    if not fits(wanted, 32):
        assert trap(tmp_path, setup, *rows, **options)[0].stop is EngineStop.OVERFLOW
        return
    assert decoded(result(tmp_path, setup, *rows, size=32, **options), 32) == wanted


def test_a_product_that_leaves_32_bits_inside_is_exact(tmp_path: Path) -> None:
    """Partial sums of 2^31 * 127 * 4 that cancel: the sums are not kept in 32 bits."""
    matrix = np.array([[127]] * 4 + [[-127]] * 4, np.int8)
    a = [2**31 - 1] * 4 + [2**31 - 1] * 3 + [2**31 - 2]
    rows = (op("setbw", ibiw=32, obiw=8), op("mvmul", rd=3, rs1=1, mbiw=8, group=0))
    assert decoded(result(tmp_path, Setup(encoded(a, 32)), *rows, size=1, matrices={0: [matrix]}), 8) == [127]


@pytest.mark.parametrize("shift", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 2, 3)])
@pytest.mark.parametrize("bits", [16, 24, 32])
def test_addresses_need_no_alignment(tmp_path: Path, bits: int, shift: tuple[int, int, int]) -> None:
    a, b = numbers(bits - 1, 1, 600), numbers(bits - 1, 2, 600)
    size = -(-bits // 8)
    at = [k * 600 * size + s + 4 for k, s in enumerate(shift)]
    setup = Setup(encoded(a, bits), encoded(b, bits), at[0], at[1] + 4, at[2] + 8)
    rows = (op("setbw", ibiw=bits, obiw=bits), op("vvsub", **OPERANDS, len=600))
    got = result(tmp_path, setup, *rows, size=600 * size, local_bytes=8192)
    assert decoded(got, bits) == [x - y for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("select", range(8))
def test_offsets_count_elements(tmp_path: Path, select: int) -> None:
    a, b = numbers(16, 1), numbers(16, 2)
    rows = (op("setbw", ibiw=16, obiw=32), op("vvmul", **OPERANDS, offset_select=select, offset_value=3, len=8))
    setup = Setup(encoded(a, 16), encoded(b, 16), at_y=Y - (12 if select & 1 else 0))
    x, y = a[3 if select & 2 else 0 :], b[3 if select & 4 else 0 :]
    wanted = [p * q for p, q in zip(x[:8], y[:8], strict=True)]
    moved = (op("sldi", rd=3, imm=Y), op("sldi", rd=3, imm=setup.at_y))
    got = result(tmp_path, Setup(setup.a, setup.b, A, B, Y), *moved, *rows, size=32)
    assert decoded(got, 32) == wanted


def test_in_place_where_the_width_does_not_grow(tmp_path: Path) -> None:
    a, b = numbers(16, 1, 1000), [1] * 1000
    narrow = (op("setbw", ibiw=16, obiw=8), op("sldi", rd=9, imm=100), op("vrsu", rd=1, rs1=1, rs2=9, len=1000))
    lower = (op("setbw", ibiw=16, obiw=16), op("sldi", rd=9, imm=-100), op("vrsl", rd=1, rs1=1, rs2=9, len=1000))
    add = (op("setbw", ibiw=8, obiw=8), op("vvadd", rd=1, rs1=1, rs2=2, len=1000))
    setup = Setup(encoded(a, 16), encoded(b, 8), 0, 2048, 0)
    got = result(tmp_path, setup, *lower, *narrow, *add, size=1000)
    assert decoded(got, 8) == [min(max(x, -100), 100) + 1 for x in a]


def test_in_place_where_the_width_grows_is_an_overlap(tmp_path: Path) -> None:
    rows = (op("setbw", ibiw=8, obiw=16), op("vvmul", rd=1, rs1=1, rs2=2, len=4))
    assert trap(tmp_path, Setup(bytes(8), bytes(8)), *rows)[0].stop is EngineStop.OVERLAP


def test_a_table_is_not_overwritten(tmp_path: Path) -> None:
    rows = (op("setbw", ibiw=4, obiw=8), op("vlut", rd=2, rs1=1, rs2=2, len=4))
    assert trap(tmp_path, Setup(bytes(4), bytes(16)), *rows)[0].stop is EngineStop.OVERLAP


# Traps: rows, operands, the fault, its explanation


def add(bits: int, length: int = 4) -> tuple[tuple[int, ...], ...]:
    return op("setbw", ibiw=bits, obiw=bits), op("vvadd", **OPERANDS, len=length)


RECORD = struct.pack("<iihhhh", 0, 1, -1, 0, -128, 127)
TRAPS: dict[str, tuple[Setup, tuple[tuple[int, ...], ...], EngineStop, str]] = {
    "sum": (Setup(encoded([1, 127, 127], 8), encoded([1, 0, 1], 8)), add(8, 3), EngineStop.OVERFLOW, "element 2 is 128, which does not fit 8 bits"),
    "sum of 24 bits": (Setup(encoded([2**23 - 1], 24), encoded([1], 24)), add(24, 1), EngineStop.OVERFLOW, "element 0 is 8388608, which does not fit 24 bits"),
    "sum of 32 bits": (Setup(encoded([-(2**31)], 32), encoded([-1], 32)), add(32, 1), EngineStop.OVERFLOW, "element 0 is -2147483649, which does not fit 32 bits"),
    "an operand": (Setup(encoded([0, 64], 8), encoded([0, 0], 8)), add(7, 2), EngineStop.OVERFLOW, "element 1 is 64, which does not fit 7 bits"),
    "the second operand": (Setup(encoded([0, 0], 16), encoded([0, -2049], 16)), add(12, 2), EngineStop.OVERFLOW, "element 1 is -2049, which does not fit 12 bits"),
    "product": (Setup(encoded([-128], 8), encoded([-128], 8)), (op("setbw", ibiw=8, obiw=15), op("vvmul", **OPERANDS, len=1)), EngineStop.OVERFLOW, "element 0 is 16384, which does not fit 15 bits"),
    "shift left": (Setup(encoded([1, 1], 8), encoded([3, 7], 8)), (op("setbw", ibiw=8, obiw=8), op("vvsll", **OPERANDS, len=2)), EngineStop.OVERFLOW, "element 1 is 128, which does not fit 8 bits"),
    "shift amount": (Setup(encoded([1, 1], 8), encoded([3, 32], 8)), (op("setbw", ibiw=8, obiw=32), op("vvsll", **OPERANDS, len=2)), EngineStop.SHIFT, "the shift amount of element 1 is 32, allowed are 0 to 31"),
    "negative amount": (Setup(encoded([1], 8), encoded([-1], 8)), (op("setbw", ibiw=8, obiw=8), op("vvsra", **OPERANDS, len=1)), EngineStop.SHIFT, "the shift amount of element 0 is -1, allowed are 0 to 31"),
    "negative scale": (Setup(encoded([1], 8), RECORD), (op("setbw", ibiw=8, obiw=8), op("vrequant", **OPERANDS, len=1)), EngineStop.SHIFT, "the shift amount of element 0 is -1, allowed are 0 and more"),
    "narrowing": (Setup(encoded([127, 128], 16)), (op("setbw", ibiw=16, obiw=8), op("sldi", rd=9, imm=-5), op("vrsl", rd=3, rs1=1, rs2=9, len=2)), EngineStop.OVERFLOW, "element 1 is 128, which does not fit 8 bits"),
    "never written": (Setup(bytes(8), bytes(6)), add(16, 4), EngineStop.UNWRITTEN, "element 3, 2 bytes at 1030, was never written"),
    "half written": (Setup(bytes(8), bytes(7)), add(16, 4), EngineStop.UNWRITTEN, "element 3, 2 bytes at 1030, was never written"),
    "unwritten before overflow": (Setup(encoded([127, 127], 8), encoded([0], 8)), add(8, 2), EngineStop.UNWRITTEN, "element 1, 1 bytes at 1025"),
    "overflow before unwritten": (Setup(encoded([127, 127], 8), encoded([1], 8)), add(8, 2), EngineStop.OVERFLOW, "element 0 is 128"),
    "table": (Setup(encoded([0, 7], 4), bytes(15)), (op("setbw", ibiw=4, obiw=8), op("vlut", **OPERANDS, len=2)), EngineStop.UNWRITTEN, "element 1, 1 bytes at 1039, was never written"),
    "parameters": (Setup(encoded([0, 7], 8), struct.pack("<iihhhh", 0, 1, 0, 0, 0, 0)), (op("setbw", ibiw=8, obiw=8), op("vrequant", **OPERANDS, len=2)), EngineStop.UNWRITTEN, "element 1, 16 bytes at 1040, was never written"),
    "a moved hole": (Setup(bytes(3), bytes(8)), (op("lmv", rd=3, rs1=1, len=4), op("setbw", ibiw=8, obiw=8), op("vvadd", rd=1, rs1=3, rs2=2, len=4)), EngineStop.UNWRITTEN, "element 3, 1 bytes at 2051, was never written"),
    "memory": (Setup(bytes(3), bytes(8), at_y=4090), add(16, 4), EngineStop.LOCAL_RANGE, "8 bytes at 4090 leave the 4096 bytes"),
    "dot of nothing": (Setup(bytes(8), bytes(2)), (op("setbw", ibiw=8, obiw=32), op("vvdmul", **OPERANDS, len=4)), EngineStop.UNWRITTEN, "element 2, 1 bytes at 1026"),
}  # fmt: skip


@pytest.mark.parametrize("case", TRAPS)
def test_traps(tmp_path: Path, case: str) -> None:
    setup, rows, stop, message = TRAPS[case]
    fault, text = trap(tmp_path, setup, *rows)
    assert fault.stop is stop
    assert message in text
    assert text.startswith("core 0, instruction ")


@pytest.mark.parametrize("element", [0, 511, 512, 513, 1023])
def test_a_trap_names_its_element_in_a_long_vector(tmp_path: Path, element: int) -> None:
    a = [0] * 1024
    a[element] = 127
    fault, _ = trap(tmp_path, Setup(encoded(a, 8), encoded([1] * 1024, 8)), *add(8, 1024))
    assert (fault.element, fault.value, fault.bits) == (element, 128, 8)


def test_a_product_traps(tmp_path: Path) -> None:
    matrix = np.array([[1, 100]], np.int8)
    rows = (op("setbw", ibiw=8, obiw=8), op("mvmul", rd=3, rs1=1, mbiw=8, group=0))
    fault, text = trap(tmp_path, Setup(encoded([2], 8)), *rows, matrices={0: [matrix]})
    assert (fault.stop, fault.element, fault.value, fault.bits) == (EngineStop.OVERFLOW, 1, 200, 8)
    assert "mvmul" in text


# Floats after setfp


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def test_floats_and_integers_in_one_program(tmp_path: Path) -> None:
    """int8 to float32, a function, and back, saturated."""
    a = [-128, -3, 0, 5, 127]
    rows = (
        op("setfp", ibiw=8, obiw=32),
        op("vfloat", rd=3, rs1=1, len=5),
        op("setfp", ibiw=32, obiw=32),
        op("vvmul", rd=3, rs1=3, rs2=2, len=5),
        op("setfp", ibiw=32, obiw=8),
        op("vround", rd=3, rs1=3, len=5),
        op("setbw", ibiw=8, obiw=8),
        op("vrelu", rd=3, rs1=3, len=5),
    )
    got = result(tmp_path, Setup(encoded(a, 8), floats(-1, -0.5, 1, 0.5, 2)), *rows, size=5)
    assert decoded(got, 8) == [127, 2, 0, 2, 127]


@pytest.mark.parametrize("out", [1, 8, 16, 24, 31, 32])
def test_rounding_to_integers(tmp_path: Path, out: int) -> None:
    values = [0.5, 1.5, -0.5, -2.5, 1e30, -1e30, np.inf, -np.inf, 2.0**31, -(2.0**31), 0.49999997, 8388609.0]
    low, high = limits(out)
    wanted = [min(max(round(min(max(v, -1e20), 1e20)), low), high) for v in values]
    rows = (op("setfp", ibiw=32, obiw=out), op("vround", rd=3, rs1=1, len=12))
    got = result(tmp_path, Setup(floats(*values)), *rows, size=12 * -(-out // 8))
    assert decoded(got, out) == wanted


@pytest.mark.parametrize("bits", [1, 8, 16, 24, 32])
def test_integers_to_floats(tmp_path: Path, bits: int) -> None:
    a = numbers(bits)
    rows = (op("setfp", ibiw=bits, obiw=32), op("vfloat", rd=3, rs1=1, len=LENGTH))
    got = result(tmp_path, Setup(encoded(a, bits)), *rows, size=4 * LENGTH).view("<f4")
    np.testing.assert_array_equal(got, np.array(a, np.int64).astype(np.float32))


FLOAT_NAMES = ["vvadd", "vvsub", "vvmul", "vvmax", "vvdiv", "vvmask", "vrelu", "vtanh", "vsigm", "vsoftmax", "vexp", "vlog", "vsqrt", "verf", "vrsu", "vrsl"]  # fmt: skip


@pytest.mark.parametrize("name", FLOAT_NAMES)
def test_float_functions_agree_in_both_engines(tmp_path: Path, name: str) -> None:
    """`run_all` compares the bytes: NaN too, which has one form."""
    a = floats(1, -2, 0.5, 0, -0.0, np.inf, -np.inf, np.nan, 3, 1e38, 1e-40, 88)
    b = floats(0, 2, -0.5, 0, 0, np.inf, -np.inf, 1, np.nan, 1e38, 5, -88)
    if name == "vsoftmax":
        a = floats(1, -2, 0.5, 0, -0.0, 3, 3, 2, 1, 7, 1e-40, 8)
    if name == "vlog":
        a = floats(1, 2, 0.5, 0, -0.0, np.inf, 7, 1, 3, 1e38, 1e-40, 88)
    bound = op("sldi", rd=9, imm=2)
    second = {"rs2": 2} if name.startswith("vv") else {"rs2": 9} if name in ("vrsu", "vrsl") else {}
    rows = (op("setfp", ibiw=32, obiw=32), bound, op(name, rd=3, rs1=1, **second, len=12))
    assert len(result(tmp_path, Setup(a, b), *rows, size=48)) == 48


def test_mean_and_dot_product_of_floats(tmp_path: Path) -> None:
    a, b = floats(1, 2, 3, 4, 5, 6, 7, 8), floats(1, 1, 1, 1, 2, 2, 2, 2)
    rows = (op("setfp", ibiw=32, obiw=32), op("sldi", rd=9, imm=2), op("vavg", rd=3, rs1=1, rs2=9, len=4))
    assert result(tmp_path, Setup(a, b), *rows, size=4).view("<f4")[0] == 4
    rows = (op("setfp", ibiw=32, obiw=32), op("vvdmul", **OPERANDS, len=8))
    (tmp_path / "dot").mkdir()
    assert result(tmp_path / "dot", Setup(a, b), *rows, size=4).view("<f4")[0] == 10 + 52


FLOAT_TRAPS: dict[str, tuple[Setup, tuple[tuple[int, ...], ...], EngineStop, str]] = {
    "not aligned": (Setup(floats(1, 2), floats(1, 2), at_b=B + 2), (op("setfp", ibiw=32, obiw=32), op("vvadd", **OPERANDS, len=2)), EngineStop.UNALIGNED, "8 bytes at 1026: not a multiple of the 4 bytes"),
    "result not aligned": (Setup(encoded([1], 8), at_y=Y + 1), (op("setfp", ibiw=8, obiw=32), op("vfloat", rd=3, rs1=1, len=1)), EngineStop.UNALIGNED, "4 bytes at 2049: not a multiple of the 4 bytes"),
    "NaN": (Setup(floats(1, np.nan)), (op("setfp", ibiw=32, obiw=8), op("vround", rd=3, rs1=1, len=2)), EngineStop.NOT_A_NUMBER, "element 1 is not a number"),
    "never written": (Setup(floats(1), floats(1, 2)), (op("setfp", ibiw=32, obiw=32), op("vvadd", **OPERANDS, len=2)), EngineStop.UNWRITTEN, "element 1, 4 bytes at 4, was never written"),
    "round nothing": (Setup(floats(1)), (op("setfp", ibiw=32, obiw=8), op("vround", rd=3, rs1=1, len=2)), EngineStop.UNWRITTEN, "element 1, 4 bytes at 4, was never written"),
    "mean of nothing": (Setup(floats(1, 2)), (op("setfp", ibiw=32, obiw=32), op("sldi", rd=9, imm=2), op("vavg", rd=3, rs1=1, rs2=9, len=2)), EngineStop.UNWRITTEN, "element 1, 4 bytes at 8"),
}  # fmt: skip


@pytest.mark.parametrize("case", FLOAT_TRAPS)
def test_traps_of_floats(tmp_path: Path, case: str) -> None:
    setup, rows, stop, message = FLOAT_TRAPS[case]
    fault, text = trap(tmp_path, setup, *rows)
    assert fault.stop is stop
    assert message in text
