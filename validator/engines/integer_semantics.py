"""Meaning of the matrix and vector instructions in integer programs, in plain Python.

An integer of `bits` bits is stored in two's complement in whole bytes, the low byte first, with its sign extended.
Results are exact: a number that does not fit its width stops the program, and so does arithmetic on a byte that was
never written. The elements of a vector are computed one after another. After `setfp`, elements of 32 bits are float32
and are computed as in a program of floats; every NaN is stored as 7fc00000.
"""

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from raptor.target import isa
from raptor.target.isa import BY_OPCODE, AccessCount, AccessWidth, LocalAccess, Operand, OperandKind
from raptor.target.tensor_layout import Floats
from validator.engines.float_semantics import VECTOR_FUNCTIONS
from validator.engines.machine import EngineStop
from validator.engines.reference_core import COMMON_SEMANTICS, DecodedInstruction, ReferenceCore, Semantics, copy_planes

FLOAT_BITS = 32
TABLE_BITS = 8
"""Largest width of the input of `vlut`, in bits."""
REQUANT_PARAMETERS = np.dtype([("bias", "<i4"), ("m", "<i4"), ("s", "<i2"), ("z", "<i2"), ("lo", "<i2"), ("hi", "<i2")])
"""Parameters of `vrequant` for one element."""
MAX_SHIFT = 31
SIGN_BITS = 2
"""Bits of the inputs of crossbars with doubled rows: -1, 0 and 1."""
_INT64 = (-(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True)
class _Vector:
    """Operands of a vector instruction: their addresses in bytes, and the bits of their elements.

    `step`: distance between the source elements of `vmv` and `vavg`, in elements.
    """

    core: ReferenceCore
    instruction: DecodedInstruction
    row: isa.Instruction
    target: slice
    sources: tuple[slice, ...]
    bits: int
    target_bits: int
    step: int

    def read(self, k: int, element: int) -> int:
        """Returns an element of source `k`. Raises `FaultError` if it was never written, or does not fit."""
        size = storage_bytes(self.bits)
        return read_integer(self.core, self.sources[k].start + element * size, self.bits, element)

    def write(self, element: int, value: int) -> None:
        at = self.target.start + element * storage_bytes(self.target_bits)
        write_integer(self.core, at, value, self.target_bits, element)


def storage_bytes(bits: int) -> int:
    return -(-bits // 8)


def read_bytes(core: ReferenceCore, address: int, size: int, element: int) -> bytes:
    """Returns bytes of local memory. Raises `FaultError` if one was never written."""
    part = slice(address, address + size)
    if not core.written[part].all():
        raise core.make_fault(EngineStop.UNWRITTEN, address, size, element=element)
    return core.local[part].tobytes()


def read_integer(core: ReferenceCore, address: int, bits: int, element: int) -> int:
    """Returns the integer at an address. Raises `FaultError` if it was never written, or does not fit."""
    value = int.from_bytes(read_bytes(core, address, storage_bytes(bits), element), "little", signed=True)
    return _fitting(core, value, bits, element)


def write_integer(core: ReferenceCore, address: int, value: int, bits: int, element: int) -> None:
    size = storage_bytes(bits)
    content = _fitting(core, value, bits, element).to_bytes(size, "little", signed=True)
    core.local[address : address + size] = np.frombuffer(content, np.uint8)
    core.written[address : address + size] = 1


def _fitting(core: ReferenceCore, value: int, bits: int, element: int) -> int:
    if -(1 << bits - 1) <= value < 1 << bits - 1:
        return value
    low, high = _INT64
    raise core.make_fault(EngineStop.OVERFLOW, element=element, value=min(max(value, low), high), bits=bits)


def _set_integers(core: ReferenceCore, i: DecodedInstruction) -> None:
    core.machine.widths[core.number] = i.b, i.c, 0


def _set_floats(core: ReferenceCore, i: DecodedInstruction) -> None:
    core.machine.widths[core.number] = i.b, i.c, 1


def _mvmul(core: ReferenceCore, i: DecodedInstruction) -> None:
    bits, target_bits, _ = _widths(core)
    matrix = core.machine.weights.matrix(core.number, i.c)
    source = core.byte_span(core.read_register(i.rs1), matrix.shape[0] * storage_bytes(bits))
    target = core.byte_span(core.read_register(i.rd), matrix.shape[1] * storage_bytes(target_bits))
    x = [read_integer(core, source.start + k * storage_bytes(bits), bits, k) for k in range(len(matrix))]
    for k, total in enumerate(_product(core, i.c, x, bits, target_bits)):
        write_integer(
            core, target.start + k * storage_bytes(target_bits), max(total, 0) if i.b else total, target_bits, k
        )


def _product(core: ReferenceCore, group: int, x: list[int], bits: int, target_bits: int) -> list[int]:
    if core.machine.crossbars is not None:
        return _on_crossbars(core, group, x, bits, target_bits)
    if core.machine.products is not None:
        return core.machine.products(core.number, group, np.array(x, np.int32)).tolist()
    columns = core.machine.weights.matrix(core.number, group).T.tolist()
    return [sum(a * w for a, w in zip(x, column, strict=True)) for column in columns]


def _on_crossbars(core: ReferenceCore, group: int, x: list[int], bits: int, target_bits: int) -> list[int]:
    """Computes a product with slices, converters and noise. Results beyond the width of the sums saturate."""
    from validator.crossbar.reference_product import multiply_on_crossbars

    m, half = core.machine, 1 << target_bits - 1
    assert m.crossbars is not None  # the caller has asked
    g = int(m.weights.first[core.number]) + group
    wrong = [k for k, value in enumerate(x) if abs(value) > 1] if m.crossbars.arrays[g].planes.doubled else []
    if wrong:
        raise core.make_fault(EngineStop.OVERFLOW, element=wrong[0], value=x[wrong[0]], bits=SIGN_BITS)
    reads, (sample,) = m.work[:2]
    found = multiply_on_crossbars(m.crossbars, g, np.array(x, np.int64), bits, int(sample), int(reads[g]))
    reads[g] += 1
    return np.clip(found, -half, half - 1).tolist()


def _widths(core: ReferenceCore) -> tuple[int, int, bool]:
    """Returns the bits of an input and an output element, and true after `setfp`."""
    bits, target_bits, floats = (int(n) for n in core.machine.widths[core.number])
    if bits == 0:
        raise core.make_fault(EngineStop.NO_MEANING)
    return bits, target_bits, bool(floats)


def _operands(core: ReferenceCore, i: DecodedInstruction) -> _Vector:
    """Finds the operands, in the order target, first source, second source. Raises `FaultError` for bad addresses."""
    row = BY_OPCODE[i.opcode]
    bits, target_bits, _ = _widths(core)
    access, strided = row.operand("rd").access, any(o.access and o.access.strided for o in row.operands)
    assert access is not None  # a vector instruction has a result
    width = bits if access.width is AccessWidth.INPUT else target_bits
    single = access.count is AccessCount.ONE
    moved = i.c * storage_bytes(width) if i.b & 1 and not single and not strided else 0
    target = core.byte_span(core.read_register(i.rd) + moved, (1 if single else i.d) * storage_bytes(width))
    sources: list[slice] = []
    for operand in row.operands:
        if operand.kind is OperandKind.SOURCE:
            sources.append(source := _source(core, i, operand, bits, target_bits))
            in_place = operand.access is not None and operand.access.width is AccessWidth.INPUT and not strided
            if not single:
                _check_overlap(core, target, source, in_place=in_place and storage_bytes(width) <= storage_bytes(bits))
    return _Vector(core, i, row, target, tuple(sources), bits, width, core.read_register(i.a) if strided else 1)


def _check_overlap(core: ReferenceCore, target: slice, source: slice, *, in_place: bool) -> None:
    """Raises `FaultError` if a target overlaps a source. `in_place`: it may begin where the source begins."""
    if target.stop <= source.start or source.stop <= target.start or (in_place and target.start == source.start):
        return
    raise core.make_fault(EngineStop.OVERLAP, target.start, target.stop - target.start)


def _source(core: ReferenceCore, i: DecodedInstruction, operand: Operand, bits: int, target_bits: int) -> slice:
    register, bit = (i.rs1, 1) if operand.name == "rs1" else (i.a, 2)
    access = operand.access
    assert access is not None  # a source has one
    size = _element_bytes(access, bits, target_bits)
    count = 1 << bits if access.count is AccessCount.TABLE else i.d
    if access.strided:
        stride = core.read_register(i.a)
        if stride < 0:
            raise core.make_fault(EngineStop.LOCAL_RANGE, core.read_register(register), stride)
        count = (i.d - 1) * stride + 1
    return core.byte_span(core.read_register(register) + (i.c * size if i.b >> bit & 1 else 0), count * size)


def _element_bytes(access: LocalAccess, bits: int, target_bits: int) -> int:
    if access.width is AccessWidth.PARAMETERS:
        return REQUANT_PARAMETERS.itemsize
    return storage_bytes(bits if access.width is AccessWidth.INPUT else target_bits)


Function = Callable[..., int]


def _vector(function: Function) -> Semantics:
    """Makes an instruction on integers. `function` gets one element of each operand, and the bound in rs2 if any."""

    def run(core: ReferenceCore, i: DecodedInstruction) -> None:
        v = _operands(core, i)
        bounds = _bounds(core, i, v.row)
        for k in range(i.d):
            v.write(k, function(*(v.read(n, k) for n in range(len(v.sources))), *bounds))

    return run


def _bounds(core: ReferenceCore, i: DecodedInstruction, row: isa.Instruction) -> list[int]:
    """Returns the bound in rs2, if the instruction has one. In strided instructions, rs2 is a stride."""
    strided = any(o.access is not None and o.access.strided for o in row.operands)
    return [core.read_register(i.a) for o in row.operands if o.kind is OperandKind.USE and not strided]


def _shift(function: Function) -> Semantics:
    def run(core: ReferenceCore, i: DecodedInstruction) -> None:
        v = _operands(core, i)
        for k in range(i.d):
            x, amount = v.read(0, k), v.read(1, k)
            if not 0 <= amount <= MAX_SHIFT:
                raise core.make_fault(EngineStop.SHIFT, element=k, value=amount, bits=MAX_SHIFT)
            v.write(k, function(x, amount))

    return run


def _dot(core: ReferenceCore, i: DecodedInstruction) -> None:
    v = _operands(core, i)
    v.write(0, sum(v.read(0, k) * v.read(1, k) for k in range(i.d)))


def _move(core: ReferenceCore, i: DecodedInstruction) -> None:
    v = _operands(core, i)
    size = storage_bytes(v.bits)
    for k in range(i.d):
        to, of = v.target.start + k * size, v.sources[0].start + k * v.step * size
        copy_planes(core.local_planes, slice(to, to + size), core.local_planes, slice(of, of + size))


def _look_up(core: ReferenceCore, i: DecodedInstruction) -> None:
    v = _operands(core, i)
    if v.bits > TABLE_BITS:
        raise core.make_fault(EngineStop.NO_MEANING)
    for k in range(i.d):
        entry = v.read(0, k) + (1 << v.bits - 1)
        v.write(k, read_integer(core, v.sources[1].start + entry * storage_bytes(v.target_bits), v.target_bits, k))


def _requantise(core: ReferenceCore, i: DecodedInstruction) -> None:
    v = _operands(core, i)
    for k in range(i.d):
        x = v.read(0, k)
        content = read_bytes(core, v.sources[1].start + k * REQUANT_PARAMETERS.itemsize, REQUANT_PARAMETERS.itemsize, k)
        bias, m, s, z, low, high = (int(n) for n in np.frombuffer(content, REQUANT_PARAMETERS)[0])
        if s < 0:
            raise core.make_fault(EngineStop.SHIFT, element=k, value=s)
        v.write(k, min(max(divide_to_even((x + bias) * m, s) + z, low), high))


def divide_to_even(value: int, shift: int) -> int:
    """Returns value / 2^shift, rounded to the nearest integer, a tie to the even one."""
    quotient, twice_rest = value >> shift, 2 * (value & ((1 << shift) - 1))
    return quotient + (twice_rest > 1 << shift or (twice_rest == 1 << shift and quotient & 1 == 1))


def _to_float(core: ReferenceCore, i: DecodedInstruction) -> None:
    v = _operands(core, i)
    _check_aligned(core, v.target)
    for k in range(i.d):
        _write_floats(core, v.target.start + 4 * k, np.array([v.read(0, k)], np.float32))


def _from_float(core: ReferenceCore, i: DecodedInstruction) -> None:
    v = _operands(core, i)
    _check_aligned(core, v.sources[0])
    low, high = -(1 << v.target_bits - 1), (1 << v.target_bits - 1) - 1
    for k in range(i.d):
        value = float(_read_floats(core, v.sources[0].start, range(k, k + 1))[0])
        if value != value:
            raise core.make_fault(EngineStop.NOT_A_NUMBER, element=k)
        v.write(k, round(min(max(value, float(low)), float(high))))


def _check_aligned(core: ReferenceCore, span: slice) -> None:
    if span.start % 4:
        raise core.make_fault(EngineStop.UNALIGNED, span.start, span.stop - span.start, bits=FLOAT_BITS)


def _read_floats(core: ReferenceCore, start: int, elements: Iterable[int], step: int = 1) -> Floats:
    content = b"".join(read_bytes(core, start + 4 * step * k, 4, k) for k in elements)
    return np.frombuffer(content, "<f4")


def _write_floats(core: ReferenceCore, start: int, values: Floats) -> None:
    size = 4 * len(values)
    content = np.where(np.isnan(values), np.float32(np.nan), values).astype("<f4").tobytes()
    core.local[start : start + size] = np.frombuffer(content, np.uint8)
    core.written[start : start + size] = 1


def _float_vector(name: str) -> Semantics:
    """Makes an instruction on float32 numbers, which computes as in a program of floats."""

    def run(core: ReferenceCore, i: DecodedInstruction) -> None:
        v = _operands(core, i)
        for span in (v.target, *v.sources):
            _check_aligned(core, span)
        steps = (v.step, 1)
        values = [_read_floats(core, s.start, range(i.d), n) for s, n in zip(v.sources, steps, strict=False)]
        values += [np.full(i.d, bound, np.float32) for bound in _bounds(core, i, v.row)]
        with np.errstate(all="ignore"):
            result = np.asarray(VECTOR_FUNCTIONS[name](*values))
            _write_floats(core, v.target.start, np.atleast_1d(result.astype(np.float32)))

    return run


def _shifted_left(x: int, amount: int) -> int:
    return x << amount


def _shifted_right(x: int, amount: int) -> int:
    return x >> amount


def _rectified(x: int) -> int:
    return max(x, 0)


_SET = {"setbw": _set_integers, "setfp": _set_floats}
INTEGER_INSTRUCTIONS: dict[str, Semantics] = {
    "mvmul": _mvmul,
    "vvadd": _vector(operator.add),
    "vvsub": _vector(operator.sub),
    "vvmul": _vector(operator.mul),
    "vvdmul": _dot,
    "vvmax": _vector(max),
    "vvsll": _shift(_shifted_left),
    "vvsra": _shift(_shifted_right),
    "vrelu": _vector(_rectified),
    "vmv": _move,
    "vrsu": _vector(min),
    "vrsl": _vector(max),
    "vlut": _look_up,
    "vrequant": _requantise,
}
"""Meaning of each instruction after `setbw`, keyed by name."""
FLOAT_INSTRUCTIONS: dict[str, Semantics] = {name: _float_vector(name) for name in VECTOR_FUNCTIONS} | {"vmv": _move}
"""Meaning of each instruction after `setfp 32, 32`, keyed by name."""
CONVERSION_INSTRUCTIONS: dict[str, Semantics] = {"vfloat": _to_float, "vround": _from_float, "vmv": _move}
"""Meaning after `setfp` with any widths: `vfloat` needs an output of 32 bits, `vround` an input of 32 bits."""


def _by_mode(name: str) -> Semantics:
    def run(core: ReferenceCore, i: DecodedInstruction) -> None:
        bits, target_bits, floats = _widths(core)
        all_floats = bits == target_bits == FLOAT_BITS
        known = (
            (FLOAT_INSTRUCTIONS | CONVERSION_INSTRUCTIONS if all_floats else CONVERSION_INSTRUCTIONS)
            if floats
            else INTEGER_INSTRUCTIONS
        )
        if (
            name not in known
            or (name == "vfloat" and target_bits != FLOAT_BITS)
            or (name == "vround" and bits != FLOAT_BITS)
        ):
            raise core.make_fault(EngineStop.NO_MEANING)
        known[name](core, i)

    return run


INTEGER_SEMANTICS: dict[str, Semantics] = {
    **COMMON_SEMANTICS,
    **_SET,
    **{name: _by_mode(name) for name in INTEGER_INSTRUCTIONS | FLOAT_INSTRUCTIONS | CONVERSION_INSTRUCTIONS},
}
"""Meaning of each instruction, keyed by name; it depends on the last `setbw` or `setfp`."""
