"""Verifier of forms: what the instructions of each form read and write lies inside the buffers of its slots.

RAPTOR's own lowering is checked where it is proved right, in SpatialIR, and by `verify_streams`. A program from
elsewhere (a pass of the user, a file) is checked here, too: instructions are emitted once for each form, and each
address is a slot and an offset, so all steps of a form are checked at once. Only MVMs also depend on the matrices of
the core.
"""

import numpy as np

from raptor.codegen.pimsim.assign_registers import Ints, Symbolic, resolve_symbols
from raptor.codegen.pimsim.emit import Emitter
from raptor.common.errors import VerifyError
from raptor.common.sorted_sets import distinct_rows
from raptor.pim.ir import CoreProgram, PimProgram
from raptor.pim.step_columns import TRANSFERS, FormTable, OperationForm
from raptor.pim.verify_pim import PimError
from raptor.target import isa
from raptor.target.arch import Target
from raptor.target.opcode_tables import PARAMETER_BYTES

_FAULTS = (ArithmeticError, AssertionError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""Exceptions of emitting the instructions of an operation with wrong parameters."""
_VALUE = {"rd": 0, "rs1": 1, "a": 2}
_OFFSET = 3
_BY_GROUP = (isa.AccessCount.ROWS, isa.AccessCount.COLUMNS)


def verify_forms(program: PimProgram, arch: Target) -> None:
    """Checks every form of a program, used or not. Raises `PimError` that names the form, or core and step."""
    tables = {id(core.steps.forms): core.steps.forms for core in program.cores.values()}
    checks = {key: _FormChecks(table, arch) for key, table in tables.items()}
    for check in checks.values():
        check.check_all()
    for core in program.cores.values():
        check = checks[id(core.steps.forms)]
        steps, _ = distinct_rows(core.steps.form, core.steps.number)
        pairs = zip(core.steps.form[steps].tolist(), core.steps.number[steps].tolist(), strict=True)
        for (form, number), step in zip(pairs, steps.tolist(), strict=True):
            if form >= len(TRANSFERS):
                check.check_matrices(form, number, core, step)


class _FormChecks:
    """Checks of the forms of a table, whose instructions are emitted once; without transfers, the first forms."""

    def __init__(self, table: FormTable, arch: Target) -> None:
        self.table, self.arch = table, arch
        self.blocks: dict[int, _FormBlock] = {}

    def check_all(self) -> None:
        """Emits all forms, and checks what does not depend on a core."""
        for number in range(len(TRANSFERS), len(self.table.forms)):
            self._check(number)

    def _check(self, number: int) -> None:
        form = self.table.forms[number]
        try:
            block = _FormBlock(form, self.arch)
            fault = block.fault(None)
        except (*_FAULTS, VerifyError) as e:
            raise PimError(f"pim: {_named(form)}: {str(e) or type(e).__name__}", form=number) from e
        if fault is not None:
            raise PimError(f"pim: {_named(form)}: {fault}", form=number)
        self.blocks[number] = block

    def check_matrices(self, number: int, shift: int, core: CoreProgram, step: int) -> None:
        """Checks the MVMs of a form with the matrices of a core from `shift` on."""
        block = self.blocks[number]
        if not len(block.groups):
            return
        at = core.init_count + step
        where = f"pim: core {core.core} step {at} ({core.steps.nodes[core.steps.node[step]]})"
        groups = block.groups + shift
        if groups.min() < 0 or groups.max() >= len(core.groups):
            raise PimError(f"{where}: array group {groups.max()} of {len(core.groups)}", core=core.core, step=at)
        spans = [(*each.matrix.rows, *each.matrix.cols) for each in core.groups]
        first, end, left, right = np.array(spans, np.int64).T
        fault = block.fault(np.stack([end - first, right - left], axis=1)[groups])
        if fault is not None:
            raise PimError(f"{where}: {fault}", core=core.core, step=at)


def _named(form: OperationForm) -> str:
    return f"a form of pim.{form.operation.mnemonic}"


class _FormBlock:
    """The instructions of a form. groups: number of the matrix of each MVM, in order."""

    def __init__(self, form: OperationForm, arch: Target) -> None:
        self.block: Symbolic = Emitter(form, arch).emit()
        self.slot, self.offset = resolve_symbols(np.column_stack([self.block["value"], self.block["c"]]))
        self.size: Ints = np.array([slot.elements * arch.bytes_of(slot.element) for slot in form.slots])
        self.mvm = self.block["opcode"] == isa.OPCODE["mvmul"]
        self.groups: Ints = self.offset[self.mvm, _OFFSET]
        codes: list[int] = np.unique(self.block["opcode"]).tolist()
        self.at = {code: np.flatnonzero(self.block["opcode"] == code) for code in codes}

    def fault(self, matrices: Ints | None) -> str | None:
        """Returns the first access outside of a slot; None if there is none.

        matrices: [MVMs, 2], rows and columns of the matrix of each; None to check all that does not depend on them.
        """
        if (self.slot >= len(self.size)).any() or (self.slot[self.mvm, _OFFSET] >= 0).any():
            return "a number of the operation is too large for an instruction"
        for code, at in self.at.items():
            for operand in isa.BY_OPCODE[code].operands:
                if operand.kind not in (isa.OperandKind.SOURCE, isa.OperandKind.TARGET):
                    continue
                assert operand.access is not None, "an address in local memory"
                by_group = operand.access.count in _BY_GROUP
                if by_group != (matrices is not None):
                    continue
                column = _OFFSET if isa.BY_OPCODE[code].name in ("ld", "st") else _VALUE[operand.slot]
                slot, first = self.slot[at, column], self.offset[at, column]
                end = first + self._bytes(operand.access, at, matrices)
                wrong = (slot < 0) | (first < 0) | (end < first) | (end > self.size[slot])
                if wrong.any():
                    k = int(np.argmax(wrong))
                    span = f"bytes {first[k]} to {end[k]} of the {self.size[slot[k]]} of slot {slot[k]}"
                    return f"{isa.BY_OPCODE[code].name} accesses {span} ({operand.name})"
        return None

    def _bytes(self, access: isa.LocalAccess, at: Ints, matrices: Ints | None) -> Ints:
        """Returns the bytes that each instruction touches from its address on."""
        widths, length = self.block["widths"][at].astype(np.int64), self.block["d"][at].astype(np.int64)
        given, made = -(-(widths >> 8 & 255) // 8), -(-(widths & 255) // 8)
        match access.count:
            case isa.AccessCount.LENGTH:
                count = length
            case isa.AccessCount.ONE:
                count = np.ones_like(length)
            case isa.AccessCount.TABLE:
                count = 1 << (widths >> 8 & 255)
            case _:
                assert matrices is not None, "counts of matrices"
                count = matrices[:, int(access.count is isa.AccessCount.COLUMNS)]
        if access.strided:
            count = (count - 1) * self.offset[at, _VALUE["a"]] + 1
        match access.width:
            case isa.AccessWidth.BYTE:
                return count
            case isa.AccessWidth.PARAMETERS:
                return count * PARAMETER_BYTES
            case _:
                return count * (made if access.width is isa.AccessWidth.OUTPUT else given)
