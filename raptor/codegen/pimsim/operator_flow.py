"""Output for chips without instruction streams: the program as operators of the chip's interface.

Chips differ in the smallest unit of work that a program can request from crossbars (the modes of CIM-MLC): a whole
layer on some cores (`core`), a product of crossbars with a vector (`crossbar`), or a product with some of their rows
(`wordline`), at most as many as the DACs can drive at once.

The flow for `crossbar` and `wordline` is derived from the instruction streams: registers become addresses, and every
`mvmul` becomes crossbar operators. So it does exactly what the streams do.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from raptor.codegen.pimsim.generate_streams import InstructionStreams
from raptor.graph.ir import Graph, format_lines
from raptor.pim.ir import ArrayGroup, CoreProgram, PimProgram
from raptor.target.arch import Target
from raptor.target.isa import (
    BY_OPCODE,
    OPCODE,
    RECORD,
    REGISTER_COUNT,
    AccessCount,
    AccessWidth,
    Instruction,
    LocalAccess,
    Operand,
    OperandKind,
)
from raptor.target.opcode_tables import PARAMETER_BYTES

_FOLDED: dict[str, Callable[[int, int, int], int]] = {
    "sldi": lambda _, __, imm: imm,
    "sadd": lambda a, b, _: a + b,
    "ssub": lambda a, b, _: a - b,
    "smul": lambda a, b, _: a * b,
    "saddi": lambda a, _, imm: a + imm,
    "smuli": lambda a, _, imm: a * imm,
}
"""Scalar instructions that are evaluated here (constant folding) if their operands are known."""
_OFFSET = ("offset_select", "offset_value")
_BIT = {"rd": 1, "rs1": 2, "rs2": 4}
"""Bits of `offset_select`."""


def operator_flow(graph: Graph, program: PimProgram, streams: InstructionStreams, arch: Target) -> Iterator[str]:
    """Yields the flow of a program for the interface of its chip, line by line."""
    yield f"interface {arch.interface or 'crossbar'}"
    sizes = f"{arch.xbar_rows} x {arch.xbar_cols} cells of {arch.cell_bits} bits"
    yield f"chip {arch.core_count} cores of {arch.xbars_per_core} crossbars of {sizes}"
    if arch.interface == "core":
        yield from _cores(graph, program)
        return
    if arch.interface == "wordline":
        yield f"rows at once {arch.rows_at_once}"
    for number, core in program.cores.items():
        stream = streams.cores.get(number)
        if stream is not None and len(stream.records):
            yield f"core {number} {{"
            yield from (f"  {line}" for line in _Core(core, arch).lines(stream.records.tolist()))
            yield "}"


def _cores(graph: Graph, program: PimProgram) -> Iterator[str]:
    """Yields the operators of the graph; operators with weights name the cores that hold them."""
    holders: dict[str, list[int]] = {}
    for number, core in program.cores.items():
        for layer in dict.fromkeys(group.layer for group in core.groups):
            holders.setdefault(layer, []).append(number)
    for layer, cores in holders.items():
        yield f"write_core {_numbers(cores)} %{layer}"
    for tensor, line in format_lines(graph).items():
        yield f"read_core {_numbers(holders[tensor])} {line}" if tensor in holders else line
    yield f"return {', '.join(f'%{tensor}' for tensor in graph.outputs)}"


def _numbers(cores: Sequence[int]) -> str:
    return ",".join(map(str, cores))


@dataclass(slots=True)
class _Core:
    """The state of a core before an instruction.

    rows: number of rows that one crossbar read may drive; None if crossbars drive all rows themselves. first: first
    crossbar of each array group. registers: values; None if loaded from memory. bits: input and output width.
    """

    program: CoreProgram
    arch: Target
    rows: int | None = field(init=False)
    first: list[int] = field(init=False)
    registers: list[int | None] = field(default_factory=lambda: [0] * REGISTER_COUNT)
    bits: tuple[int, int] = (8, 8)

    def __post_init__(self) -> None:
        self.rows = self.arch.rows_at_once if self.arch.interface == "wordline" else None
        self.first = [0, *accumulate(group.matrix.xbars for group in self.program.groups)]

    def lines(self, records: Sequence[Sequence[int]]) -> Iterator[str]:
        """Yields the operators of a core, beginning with the writes of its crossbars."""
        word = "write_xb" if self.rows is None else "write_row"
        for number, group in enumerate(self.program.groups):
            rows, cols = _sizes(group)
            span = "" if self.rows is None else f" rows=0:{rows}"
            yield f"{word} {self._xbars(number)}{span} = %{group.layer} {rows}x{cols}"
        for values in records:
            record = dict(zip(RECORD.names or (), values, strict=True))
            spec = BY_OPCODE[record["opcode"]]
            if spec.opcode == OPCODE["mvmul"]:
                yield from self._product(spec, record)
            elif spec.name not in _FOLDED or not self._fold(spec, record):
                yield self._text(spec, record)

    def _fold(self, spec: Instruction, record: dict[str, int]) -> bool:
        """Evaluates a scalar instruction. Returns False if the value is unknown, so that an operator is needed."""
        used = [o for o in spec.operands if o.kind is OperandKind.USE]
        known = [self.registers[record[o.slot]] for o in used]
        if any(value is None for value in known):
            self.registers[record["rd"]] = None
            return False
        a, b = (*(value or 0 for value in known), 0, 0)[:2]
        self.registers[record["rd"]] = _FOLDED[spec.name](a, b, record["a"])
        return True

    def _text(self, spec: Instruction, record: dict[str, int]) -> str:
        """Returns the text of an instruction: places that it writes, places that it reads, and its other operands."""
        if spec.name in ("setbw", "setfp"):
            self.bits = record["b"], record["c"]
        places = {o.name: self._place(spec, o, record) for o in spec.operands if o.is_register}
        if "rd" in places and spec.operand("rd").kind is OperandKind.SOURCE:  # a send carries its address twice
            del places["rd"]
        written, read = places.pop("rd", ""), ", ".join(places.values())
        numbers = [f"{o.name}={record[o.slot]}" for o in spec.operands if not o.is_register and o.name not in _OFFSET]
        if spec.name == "sld":
            self.registers[record["rd"]] = None
        return " ".join(filter(None, [spec.name, written, "=" if written and read else "", read, *numbers]))

    def _place(self, spec: Instruction, operand: Operand, record: dict[str, int]) -> str:
        """Returns a register operand as text: a range of memory, or a number."""
        register = record[operand.slot]
        value = self.registers[register]
        match operand.kind:
            case OperandKind.DEFINE:
                return f"r{register}"
            case OperandKind.USE:
                return f"r{register}" if value is None else f"{operand.name}={value}"
            case OperandKind.USE_PAIR:
                return self._global(operand, register, record)
            case _:
                start, stop = self._local(spec, operand, record)
                return f"local[{start}:{stop}]"

    def _global(self, operand: Operand, register: int, record: dict[str, int]) -> str:
        high, low = self.registers[register], self.registers[register + 1]
        offset = record["c"] if record.get("b", 0) & _BIT[operand.name] or record["opcode"] == OPCODE["sld"] else 0
        if high is None or low is None:
            return f"global[r{register + 1}+{offset}]"
        start = (high << 32) + low % 2**32 + offset
        return f"global[{start}:{start + record['d']}]" if record["d"] else f"global[{start}]"

    def _local(self, spec: Instruction, operand: Operand, record: dict[str, int]) -> tuple[int, int]:
        """Returns the range of local memory, in bytes, that an operand addresses."""
        access, start = operand.access, self.registers[record[operand.slot]]
        assert access is not None, "the operand has an address"
        assert start is not None, "local addresses are not computed from memory"
        size = self._bytes(access.width)
        if any(o.name == "offset_select" for o in spec.operands) and record["b"] & _BIT[operand.name]:
            start += record["c"] * size
        return start, start + self._count(access, record) * size

    def _count(self, access: LocalAccess, record: dict[str, int]) -> int:
        match access.count:
            case AccessCount.ONE:
                count = 1
            case AccessCount.LENGTH:
                count = record["d"]
            case AccessCount.TABLE:
                count = 1 << self.bits[0]
            case AccessCount.ROWS | AccessCount.COLUMNS:
                count = _sizes(self.program.groups[record["c"]])[access.count is AccessCount.COLUMNS]
        step = self.registers[record["a"]] if access.strided else 1
        return (count - 1) * (step or 1) + 1

    def _bytes(self, width: AccessWidth) -> int:
        if width is AccessWidth.BYTE:
            return 1
        return PARAMETER_BYTES if width is AccessWidth.PARAMETERS else -(-self.bits[width is AccessWidth.OUTPUT] // 8)

    def _product(self, spec: Instruction, record: dict[str, int]) -> Iterator[str]:
        """Yields the reads of an array group: one, or one for each set of rows that are driven at once."""
        (out, end), (vector, stop) = (self._local(spec, spec.operand(name), record) for name in ("rd", "rs1"))
        xbars, relu = self._xbars(record["c"]), " relu" if record["b"] else ""
        if self.rows is None:
            yield f"read_xb {xbars} local[{out}:{end}] = local[{vector}:{stop}]{relu}"
            return
        rows, size = _sizes(self.program.groups[record["c"]])[0], self._bytes(AccessWidth.INPUT)
        for at in range(0, rows, self.rows):
            to = min(at + self.rows, rows)
            part = f"local[{vector + at * size}:{vector + to * size}]{relu if to == rows else ''}"
            yield f"read_row {xbars} rows={at}:{to} local[{out}:{end}] {'+=' if at else '='} {part}"

    def _xbars(self, group: int) -> str:
        return f"{self.first[group]}:{self.first[group + 1]}"


def _sizes(group: ArrayGroup) -> tuple[int, int]:
    """Returns rows and columns of the matrix of an array group."""
    (top, bottom), (left, right) = group.matrix.rows, group.matrix.cols
    return bottom - top, right - left
