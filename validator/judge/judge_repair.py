"""Judges a repaired program: what the cells of its chip compute, slice by slice, against exact repaired weights."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from raptor.output import files
from raptor.target.arch import read_stored_target
from validator.crossbar.chip_programming import program_crossbars
from validator.crossbar.load_repair import make_repair_setup
from validator.execution.run import run_program
from validator.judge.validation_report import RepairVerdict
from validator.model.node import Array
from validator.program.program import LoadedProgram


def judge_repair(program: LoadedProgram, samples: Iterable[Mapping[str, Array]]) -> RepairVerdict:
    """Returns the verdict on a repaired program, for inputs by name of some samples."""
    assert program.repair is not None, "the caller has asked"
    target = read_stored_target(program.folder, files.ARCH)
    on_cells = program_crossbars(program, make_repair_setup(target, program.repair.table))
    as_compiled = replace(program, crossbars=None)
    compared = differing = from_wanted = 0
    for inputs in samples:
        found, whole, wanted = (
            np.concatenate([a.ravel() for a in run_program(p, inputs).output_elements.values()])
            for p in (on_cells, program, as_compiled)
        )
        compared += found.size
        differing += int((found != whole).sum())
        from_wanted += int((whole != wanted).sum())
    return RepairVerdict(program.repair.table.chip, compared, differing, from_wanted)
