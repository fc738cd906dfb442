"""Pass that lets constants stay in local memory: what is the same for every sample is done once, after power-up.

A step is constant if it loads a constant, or computes from constant buffers alone. A step that stands before the one
that makes its operand is not, as it would find nothing there after power-up. Constant buffers that other steps read are
resident: no other value gets their memory. So a core keeps as many constants as fit into its local memory beside the
values of a sample; of those that do not fit, the ones go first that save the least time for their bytes.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from raptor.pim.allocate_memory import allocate_core, reserved_bytes
from raptor.pim.global_memory import GlobalMemory
from raptor.pim.ir import CoreProgram, PimProgram, TensorTrace
from raptor.pim.operations import LoadRows
from raptor.pim.step_columns import LOAD, OPERAND, TRANSFERS, WHOLE_BUFFER, FormTable, Ints, StepColumns
from raptor.spatial.ir import SpatialGraph
from raptor.target.arch import Target
from raptor.target.timing import copy_ns, load_ns

Bools = npt.NDArray[np.bool_]


def keep_constants(program: PimProgram, graph: SpatialGraph, memory: GlobalMemory, arch: Target) -> PimProgram:
    """Returns the program with its constant steps after power-up, if the constants of the graph are resident."""
    if not graph.residency.constants:
        return program
    observed: dict[int, list[Ints]] = {}
    plain: dict[int, Bools] = {}
    for trace in program.traces:
        for core in np.unique(trace.core).tolist():
            observed.setdefault(core, []).append(trace.step[trace.core == core] - 1)
    none, cores, numbers = np.zeros(0, np.int64), dict[int, CoreProgram](), dict[int, Ints]()
    for i, core in program.cores.items():
        forms = core.steps.forms
        if id(forms) not in plain:  # cores share a table of all forms
            plain[id(forms)] = _are_plain(forms)
        own = np.concatenate([none, *observed.get(i, ())])
        steps = ConstantSteps.from_core(core, memory, own, plain[id(forms)])
        chosen = steps.that_fit(arch)
        numbers[i] = np.append(0, np.cumsum(~chosen))
        cores[i] = core
        if chosen.any():
            once = core.steps.select(np.flatnonzero(chosen))
            init = once if core.init is None else core.init.followed_by(once)
            left = core.steps.select(np.flatnonzero(~chosen))
            cores[i] = replace(core, init=init, steps=left, carried=_written(left, core.carried))
    return replace(program, cores=cores, traces=tuple(_renumbered(trace, numbers) for trace in program.traces))


def _written(steps: StepColumns, carried: Ints) -> Ints:
    """Returns the carried buffers that steps write for each sample; what none writes is resident."""
    uses = steps.uses()
    return np.intersect1d(carried, uses.buffer[uses.role != OPERAND])


def _are_plain(forms: FormTable) -> Bools:
    """Returns, for each form, whether its operation has no matrices and loads no rows."""
    plain = np.array([not form.operation.matrices for form in forms.forms], np.bool_)
    return plain & ~forms.of_class(LoadRows)


def _renumbered(trace: TensorTrace, numbers: dict[int, Ints]) -> TensorTrace:
    """Returns a trace in programs without their constant steps. `numbers`: steps left among the first k, by core."""
    pairs = zip(trace.core.tolist(), trace.step.tolist(), strict=True)
    return replace(trace, step=np.array([numbers[core][step] for core, step in pairs], np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class ConstantSteps:
    """The steps of a core that may run once.

    allowed: steps that may, as far as their operands are constant: loads of constants, and local operations without
    matrices. reads, writes: step and buffer of each use, as columns.
    """

    core: CoreProgram
    allowed: Bools
    reads: tuple[Ints, Ints]
    writes: tuple[Ints, Ints]

    @classmethod
    def from_core(cls, core: CoreProgram, memory: GlobalMemory, observed: Ints, plain: Bools) -> "ConstantSteps":
        """Finds the steps. `observed`: steps that make tensors of the model, which every sample shows.

        `plain`: the forms without matrices and rows of tables.
        """
        steps, uses = core.steps, core.steps.uses()
        reads = uses.role == OPERAND
        has_operands = np.zeros(len(steps), np.bool_)
        has_operands[uses.step[reads]] = True
        varying = np.isin(uses.buffer, core.states) | (reads & np.isin(uses.buffer, core.carried))
        local = plain[steps.form] & (steps.form >= len(TRANSFERS)) & has_operands
        allowed = local | _loads_of_constants(steps, memory)
        allowed[observed] = False
        allowed[uses.step[varying]] = False
        return cls(core, allowed, (uses.step[reads], uses.buffer[reads]), (uses.step[~reads], uses.buffer[~reads]))

    def chosen(self, reloaded: Ints) -> Bools:
        """Returns the steps that run once if some buffers are filled for each sample: constant and all its writers."""
        (read_by, read), (written_by, written) = self.reads, self.writes
        constant = self.allowed
        while True:
            varies = np.zeros(len(self.core.steps.buffers), np.bool_)
            varies[reloaded] = True
            varies[written[~constant[written_by]]] = True
            wrong = np.zeros(len(constant), np.bool_)
            wrong[read_by[varies[read]]] = True
            wrong[written_by[varies[written]]] = True
            if not (constant & wrong).any():
                return constant
            constant = constant & ~wrong

    def resident(self, chosen: Bools) -> Ints:
        """Returns the buffers that steps which run once fill, and that others read."""
        (read_by, read), (written_by, written) = self.reads, self.writes
        return np.intersect1d(written[chosen[written_by]], read[~chosen[read_by]])

    def that_fit(self, arch: Target) -> Bools:
        """Returns the steps that run once, so few that local memory has room for their buffers."""
        sizes = reserved_bytes(self.core.steps.buffers, arch)
        reloaded = np.zeros(0, np.int64)
        chosen = self.chosen(reloaded)
        free = arch.memory_size_bytes - allocate_core(self.core, arch).local_bytes
        while sizes[resident := self.resident(chosen)].sum() > max(free, 0):
            saved = self.saved_ns(chosen, resident, arch) / sizes[resident]
            order = resident[np.argsort(saved, kind="stable")]
            kept = np.cumsum(sizes[order][::-1])[::-1]
            dropped = order[: max(1, int((kept > free).sum()))]
            reloaded = np.union1d(reloaded, dropped)
            chosen = self.chosen(reloaded)
        return chosen

    def saved_ns(self, chosen: Bools, resident: Ints, arch: Target) -> npt.NDArray[np.float64]:
        """Returns the time in ns that a core needs to fill each resident buffer."""
        elements, steps = self.core.steps.buffers.elements[:, 0], self.core.steps
        written_by, written = self.writes
        spent = np.zeros(len(steps.buffers))
        once = chosen[written_by]
        for step, buffer in zip(written_by[once].tolist(), written[once].tolist(), strict=True):
            cost = load_ns if steps.form[step] == LOAD else copy_ns
            spent[buffer] += cost(arch, int(elements[buffer]))
        return spent[resident]


def _loads_of_constants(steps: StepColumns, memory: GlobalMemory) -> Bools:
    """Returns which steps load a whole buffer from the constants in global memory."""
    loads = (steps.form == LOAD) & (steps.span[:, 0] == WHOLE_BUFFER)
    return loads & (steps.number >= memory.constants_address) & (steps.number < memory.constants_end)
