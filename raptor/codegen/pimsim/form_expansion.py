"""Instantiation of forms: instructions of all steps of a core from the instructions of their forms and addresses."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.codegen.pimsim.assign_registers import VIRTUAL, Virtual, resolve_symbols
from raptor.codegen.pimsim.emit import Emitter
from raptor.pim.ir import CoreProgram
from raptor.pim.step_columns import (
    LOAD,
    RECEIVE,
    SEND,
    STORE,
    WHOLE_BUFFER,
    FormTable,
    Ints,
    StepColumns,
    bytes_of_types,
)
from raptor.target import isa
from raptor.target.arch import Target


@dataclass(frozen=True, slots=True, eq=False)
class FormInstructions:
    """The instructions of all forms of a program, concatenated.

    block: `value` and `c` are byte offsets from the buffer of a slot. slot: [instructions, 4], the slot of each `value`
    and of `c`; -1 for none. product: True for MVMs. first, count: instructions of each form.
    """

    block: Virtual
    slot: Ints
    product: npt.NDArray[np.bool_]
    first: Ints
    count: Ints

    @classmethod
    def from_forms(cls, forms: FormTable, target: Target) -> "FormInstructions":
        """Emits each form once."""
        blocks = [Emitter(form, target).emit() for form in forms.forms]
        count = np.array([len(block) for block in blocks], np.int64)
        symbolic = np.concatenate(blocks)
        slot, added = resolve_symbols(np.column_stack([symbolic["value"], symbolic["c"]]))
        symbolic["value"], symbolic["c"] = added[:, :3], added[:, 3]
        block = symbolic.astype(VIRTUAL)
        return cls(block, slot, block["opcode"] == isa.OPCODE["mvmul"], np.cumsum(count) - count, count)

    def instructions(self, core: CoreProgram, target: Target) -> tuple[Virtual, Ints]:
        """Returns the instructions of all steps of a core, and the number of instructions of each step."""
        steps = core.steps
        assert core.addresses is not None, "buffers have no addresses before allocation"
        count = self.count[steps.form]
        start = np.cumsum(count) - count
        step = np.repeat(np.arange(len(steps)), count)
        index = np.arange(len(step)) + (self.first[steps.form] - start)[step]
        block, slot = self.block[index], self.slot[index]
        addresses = np.append(core.addresses[steps.used], 0)
        added = addresses[np.where(slot < 0, -1, steps.start[step][:, None] + slot)]
        block["value"] += added[:, :3].astype(np.int32)
        block["c"] += (added[:, 3] + np.where(self.product[index], steps.number[step], 0)).astype(np.int32)
        _complete(block, start, steps, target)
        return block, count


def _complete(block: Virtual, start: Ints, steps: StepColumns, target: Target) -> None:
    """Fills in span, other core and global address of transfers. start: the first instruction of each step."""
    for kind in (LOAD, STORE, SEND, RECEIVE):
        which = np.flatnonzero(steps.form == kind)
        at, (elements, types) = start[which], steps.buffers.elements[steps.used[steps.start[which]]].T
        size, (first, count) = bytes_of_types(types, target), steps.span[which].T
        whole = first == WHOLE_BUFFER
        block["d"][at] = np.where(whole, elements, count) * size
        skipped = (np.where(whole, 0, first) * size).astype(np.int32)
        if kind in (LOAD, STORE):
            high, low = np.divmod(steps.number[which], 2**32)
            block["c"][at] += skipped
            block["value"][at, 1 if kind == LOAD else 0] = high
            block["value"][at, 2] = low.astype(np.uint32).astype(np.int32)
        else:
            block["a"][at] = steps.peer[which]
            block["value"][at, 0] += skipped
            block["value"][at, 1] += skipped if kind == SEND else 0
