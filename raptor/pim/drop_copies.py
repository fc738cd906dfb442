"""Drops copies of whole buffers on a core, of which neither is written after the copy: one buffer has both values."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from raptor.mapping.decision import Matrix
from raptor.pim.ir import CoreProgram, PimProgram, TensorTrace
from raptor.pim.step_columns import OPERAND, FormTable, Ints, OperationForm
from raptor.spatial.operations import Move, Overlap

Bools = npt.NDArray[np.bool_]


def drop_copies(program: PimProgram) -> PimProgram:
    """Returns the program without copies of whole buffers that no step writes afterwards, in which both are one.

    Only if no layer has a window: the order of work on lines is chosen with the copies, and fewer of them are not
    always faster. States, carried buffers, and copies that run once after power-up stay. A tensor that such a copy made
    is observed after the step that made the copied value.
    """
    if not program.cores or not all(map(_makes_pixels, program.cores.values())):
        return program
    copies = _find_copies(next(iter(program.cores.values())).steps.forms)
    cores, after = dict(program.cores), dict[int, Ints]()
    for i, core in program.cores.items():
        cores[i], after[i] = _without_copies(core, copies)
    return replace(program, cores=cores, traces=tuple(_renumbered(trace, after) for trace in program.traces))


def _makes_pixels(core: CoreProgram) -> bool:
    """Checks whether the matrices of a core are of layers that make pixels of single pixels."""
    return all(isinstance(group.matrix, Matrix) and not group.matrix.tap for group in core.groups)


def _find_copies(forms: FormTable) -> Bools:
    """Returns, for each form, whether it copies all elements of a buffer to another one of the same shape."""
    return np.array([_is_copy(form) for form in forms.forms], np.bool_)


def _is_copy(form: OperationForm) -> bool:
    operation = form.operation
    if not isinstance(operation, Move | Overlap) or len(form.slots) != 2 or len(operation.runs) != 1:
        return False
    source, result = operation.sources[0], operation.result
    at, _, first, *stride, elements = operation.runs[0].tolist()
    whole = (at, first, elements) == (0, 0, source.elements) and (elements == 1 or stride in ([], [1]))
    return whole and (source.elements, source.element) == (result.elements, result.element)


def _without_copies(core: CoreProgram, copies: Bools) -> tuple[CoreProgram, Ints]:
    """Returns a core without copies, and the step after which the result of each of its steps is observed there."""
    steps, once, count = core.all_steps, core.init_count, len(core.steps.buffers)
    uses = steps.uses()
    in_place = np.array([len(form.slots) < form.operands + form.results for form in steps.forms.forms], np.bool_)
    first, written = uses.first(count), (uses.role != OPERAND) | in_place[steps.form[uses.step]]
    writes, last_write = np.bincount(uses.buffer[written], minlength=count), np.full(count, -1)
    last_write[uses.buffer[written]] = uses.step[written]
    shared = np.ones(count, np.bool_)
    shared[core.states] = shared[core.carried] = False
    one_result = np.diff(steps.forms.counts[:, :2], axis=1)[:, 0] == 1
    home, maker = np.arange(count), np.arange(len(steps))
    for step in np.flatnonzero(copies[steps.form]).tolist():
        given, result = steps.used[steps.start[step] : steps.start[step + 1]].tolist()
        source = home[given]
        made = last_write[source]
        fresh = writes[result] == 1 and first[result] == step and shared[source] and shared[result]
        if fresh and once <= made < step and one_result[steps.form[made]]:
            home[result], maker[step] = source, made
    left = maker[once:] == np.arange(once, len(steps))
    kept = core.steps.select(np.flatnonzero(left))
    return replace(core, steps=replace(kept, used=home[kept.used])), np.cumsum(left)[maker[once:] - once]


def _renumbered(trace: TensorTrace, after: Mapping[int, Ints]) -> TensorTrace:
    """Returns a trace in programs without copies. `after`: for each step of a core, the steps until it is observed."""
    pairs = zip(trace.core.tolist(), trace.step.tolist(), strict=True)
    return replace(trace, step=np.array([after[core][step - 1] for core, step in pairs], np.int64))
