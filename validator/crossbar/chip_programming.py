"""Programs a chip for a compiled program: matrix, bit widths and layer of each array group."""

from dataclasses import replace

import numpy as np

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.output import files
from raptor.target.isa import OPCODE, Records
from raptor.target.opcode_tables import SETS_WIDTH
from validator.crossbar.chip_parameters import ChipSetup
from validator.crossbar.lossless_proof import with_lossless_rows
from validator.crossbar.programmed_chip import GroupUse, ProgrammedChip, program_chip
from validator.program.program import LoadedProgram

_UNUSED_BITS = 8
"""Widths of an array group without products."""


def program_crossbars(program: LoadedProgram, setup: ChipSetup) -> LoadedProgram:
    """Returns the program with products computed by a simulated chip. Raises `UserError` for a program of floats."""
    if not program.has_integers:
        raise UserError(
            f"{program.folder}: a program of float32 numbers has no bits to put into cells; quantise the float "
            "model with raptor quantize, its activations too, and compile that"
        )
    return replace(program, crossbars=make_programmed_chip(program, setup))


def make_programmed_chip(program: LoadedProgram, setup: ChipSetup) -> ProgrammedChip:
    """Returns the programmed crossbars of a program."""
    uses = list_group_uses(program)
    chip = program_chip([program.weights.matrix(use.core, use.group) for use in uses], uses, setup, program.repair)
    return with_lossless_rows(chip) if setup.lossless_rows else chip


def list_group_uses(program: LoadedProgram) -> list[GroupUse]:
    """Returns the use of each array group of a program, core by core."""
    layers = _layers(program)
    found: list[GroupUse] = []
    for core, records in enumerate(program.streams):
        at = np.flatnonzero(records["opcode"] == OPCODE["mvmul"])
        inputs = _input_bits(records, at)
        groups = records["c"][at]
        for group in range(int(program.weights.first[core + 1] - program.weights.first[core])):
            mine = np.flatnonzero(groups == group)
            weight_bits = int(records["a"][at[mine]].max(initial=0)) or _UNUSED_BITS
            layer = layers.get((core, int(at[mine[0]])), "") if len(mine) else ""
            bits = int(inputs[mine].max(initial=0)) or _UNUSED_BITS
            found.append(GroupUse(core, group, weight_bits, bits, layer or f"core {core}, group {group}"))
    return found


def _input_bits(records: Records, at: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> "np.ndarray":
    """Returns the bits of the inputs at the instructions `at`, as the last `setbw` before each sets them."""
    setters = np.flatnonzero(SETS_WIDTH[records["opcode"]])
    return records["b"][setters[np.searchsorted(setters, at) - 1]] if len(at) else at


def _layers(program: LoadedProgram) -> dict[tuple[int, int], str]:
    """Returns the ONNX node of each `mvmul`, keyed by core and instruction; empty if there is no `steps.json`."""
    if files.STEPS not in program.manifest.files:
        return {}
    steps = file_access.read_json_file(files.StepTable, program.folder, files.STEPS)
    found: dict[tuple[int, int], str] = {}
    for core in steps.cores:
        if core.core >= program.core_count or (core.ends and core.ends[-1] != len(program.streams[core.core])):
            raise UserError(f"{files.STEPS}: core {core.core} has other instructions than its stream")
        at = np.flatnonzero(program.streams[core.core]["opcode"] == OPCODE["mvmul"])
        places = np.searchsorted(np.array(core.ends), at, side="right")
        found |= {(core.core, int(pc)): steps.nodes[core.nodes[k]] for pc, k in zip(at, places, strict=True)}
    return found
