"""Loads program and chip once for all modules, and runs the cycle model if that is possible."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.output import files
from raptor.target.arch import Target, make_default_target, mesh_layout
from validator.checks import Finding, check_subject
from validator.checks.load_subject import load_subject
from validator.checks.rule_subject import CheckSubject
from validator.errors import DeadlockError
from validator.profile.profile_results import SampleEstimate
from validator.program.network_table import MeshTable
from validator.program.pimsim_program import RawProgram
from validator.simulate import builtin
from validator.simulate.analysis import energy, instruction_nodes
from validator.simulate.analysis.instruction_nodes import Provenance
from validator.simulate.builtin import SteadyState
from validator.simulate.chip_fit import check_chip_fit
from validator.simulate.cycle import cycle_model, simulated_chip
from validator.simulate.cycle.cycle_model import CycleModel, CycleRun
from validator.simulate.cycle.simulated_chip import SimulatedChip

Ints = npt.NDArray[np.int64]

SAMPLES = 16


@dataclass(eq=False)
class ProfiledProgram:
    """A program, its chip and its run.

    `run` is None if the program cannot be run; `untimed` is the reason. If `chip` is None, `machine` is built for an
    assumed chip.
    """

    subject: CheckSubject
    machine: CycleModel
    provenance: Provenance
    chip: Target | None
    run: CycleRun | None
    untimed: str
    findings: tuple[Finding, ...]

    @cached_property
    def part_index(self) -> Ints:
        """Index of the part of each instruction: its ONNX node, or its opcode."""
        return (
            self.provenance.node_index[self.provenance.step_index]
            if self.provenance.has_nodes
            else self.machine.opcodes.astype(np.int64)
        )

    @cached_property
    def steady(self) -> SteadyState | str:
        """The steady state of samples that follow one another, or the reason why there is none."""
        if self.run is None:
            return self.untimed
        try:
            return builtin.measure_steady_state(self.machine, SAMPLES, energy.needs_counting(self.machine.chip.target))
        except (DeadlockError, UserError) as e:
            return str(e)


def read_profiled_program(path: str | Path, arch: str | Path | None) -> ProfiledProgram:
    """Reads a program and runs it. Raises `UserError` for files that cannot be read or would crash the simulator."""
    subject = load_subject(path, arch)
    program = _raw(subject)
    source = _arch(Path(path), arch)
    chip = _assumed_chip(program) if source is None else simulated_chip.read_simulated_chip(source)
    machine = cycle_model.build_cycle_model(program, chip, () if source is None else check_chip_fit(program, chip))
    run, untimed = None, "no architecture: neither arch.json beside the streams nor --arch"
    if source is not None:
        run, untimed = _run(machine)
    return ProfiledProgram(
        subject=subject,
        machine=machine,
        provenance=instruction_nodes.read_provenance(program, machine),
        chip=None if source is None else chip.target,
        run=run,
        untimed=untimed,
        findings=check_subject(subject),
    )


def _arch(path: Path, arch: str | Path | None) -> str | Path | None:
    if arch is not None:
        return arch
    beside = (path if path.is_dir() else path.parent) / files.ARCH
    return beside if beside.is_file() else None


def _raw(subject: CheckSubject) -> RawProgram:
    return RawProgram(
        core_cnt=subject.core_count,
        groups=tuple(tuple(g or ()) for g in subject.groups),
        records=tuple(subject.streams),
        instantiated=tuple(subject.instantiated),
        core_files=tuple(subject.core_files),
        folder=subject.source if subject.directory else subject.source.parent,
        source=subject.source,
        faults=tuple(subject.load_faults),
    )


def _assumed_chip(program: RawProgram) -> SimulatedChip:
    """Returns a chip with as many cores as the program, to count instructions without an architecture.

    Its times are not used.
    """
    target = make_default_target(program.core_cnt, mesh_layout(program.core_cnt))
    return SimulatedChip(target, MeshTable(target), "the assumed chip", ())


def _run(machine: CycleModel) -> tuple[CycleRun | None, str]:
    run = cycle_model.run_cycle_model(machine, counting=energy.needs_counting(machine.chip.target))
    try:
        builtin.check_ended(machine, run)
    except (DeadlockError, UserError) as e:
        return None, f"the program does not end: {e}"
    return run, ""


def estimate_sample(read: ProfiledProgram) -> SampleEstimate | None:
    """Estimates time and energy of one sample alone, and in the steady state; None without a run."""
    machine, run = read.machine, read.run
    if run is None:
        return None
    latency_ns = run.last_tick * machine.period_ns
    counts = energy.count_uses(machine)
    alone = energy.compute_energy(machine, counts, run.port, latency_ns)
    steady = read.steady
    if isinstance(steady, str):
        return SampleEstimate(builtin.ESTIMATOR, latency_ns, alone.by_part(), None, {}, SAMPLES, steady)
    parts = steady.compute_energy(machine, counts).by_part()
    return SampleEstimate(builtin.ESTIMATOR, latency_ns, alone.by_part(), steady.interval_ns, parts, SAMPLES, "")
