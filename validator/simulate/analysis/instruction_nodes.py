"""Finds the ONNX node of each instruction, if the compiler has written it (steps.json)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.output import files
from raptor.target import isa
from raptor.target.opcode_tables import SCALAR
from validator.program.pimsim_program import RawProgram
from validator.simulate.cycle.cycle_model import CycleModel

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Provenance:
    """Origin of the instructions: `step` is the step of each instruction; each step has a name and a node.

    `node` holds indices into `nodes`, the names of the ONNX nodes. Without steps.json a step is a run of neighbouring
    instructions of one kind, and there are no nodes.
    """

    step_index: Ints
    names: tuple[str, ...]
    nodes: tuple[str, ...]
    node_index: Ints

    @property
    def has_nodes(self) -> bool:
        return bool(self.nodes)


def read_provenance(program: RawProgram, machine: CycleModel) -> Provenance:
    """Reads steps.json beside the program. Raises `UserError` if it does not fit the program."""
    if not (program.source.is_dir() and (program.source / files.STEPS).is_file()):
        return _by_opcode(machine)
    steps = file_access.read_json_file(files.StepTable, program.source, files.STEPS)
    step = np.full(len(machine.words), -1, np.int64)
    names: list[str] = []
    node: list[int] = []
    places = {int(core): i for i, core in enumerate(machine.cores)}
    for core in steps.cores:
        i = places.get(core.core, -1)
        length = int(machine.first[i + 1] - machine.first[i]) if i >= 0 else -1
        ends = np.array(core.ends, np.int64)
        if i < 0 or (len(ends) and ends[-1] != length):
            raise UserError(f"{program.source / files.STEPS}: core {core.core} has other instructions than its stream")
        first = len(names)
        step[machine.first[i] : machine.first[i + 1]] = first + np.searchsorted(ends, np.arange(length), side="right")
        names += [f"{steps.nodes[n]}: {steps.operations[o]}" for n, o in zip(core.nodes, core.operations, strict=True)]
        node += core.nodes
    if (step < 0).any():
        raise UserError(f"{program.source / files.STEPS}: some cores with instructions are missing")
    return Provenance(step, tuple(names), steps.nodes, np.array(node, np.int64))


def _by_opcode(machine: CycleModel) -> Provenance:
    opcodes = machine.opcodes
    runs = np.flatnonzero(machine.unit_index != SCALAR)
    kinds = opcodes[runs]
    begins = np.ones(len(runs), np.bool_)
    begins[1:] = (kinds[1:] != kinds[:-1]) | (np.diff(machine.core_index[runs]) != 0)
    step = np.zeros(len(opcodes), np.int64)
    step[runs] = np.cumsum(begins) - 1
    names = tuple(isa.BY_OPCODE[int(k)].name for k in kinds[begins])
    return Provenance(step, names, (), np.zeros(len(names), np.int64))


def sum_by_node(machine: CycleModel, of: Provenance, amounts: Ints) -> dict[str, int]:
    """Sums `amounts` (one for each instruction) by ONNX node, or by mnemonic if nodes are not known."""
    if of.has_nodes:
        totals = np.bincount(of.node_index[of.step_index], weights=amounts, minlength=len(of.nodes))
        return {name: int(total) for name, total in zip(of.nodes, totals, strict=True) if total}
    totals = np.bincount(machine.opcodes, weights=amounts, minlength=max(isa.BY_OPCODE) + 1)
    return {spec.name: int(totals[spec.opcode]) for spec in isa.INSTRUCTIONS if totals[spec.opcode]}
