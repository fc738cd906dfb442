"""Loads program and chip once for all modules, and runs the cycle model if that is possible."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.output import files
from raptor.target.arch import Target, default_target, mesh_layout
from validator.checks import Finding, check_subject
from validator.checks.loading import load_subject
from validator.checks.subject import Subject
from validator.errors import DeadlockError
from validator.network import MeshTable
from validator.profile.facts import Estimate
from validator.programs import RawProgram
from validator.simulate import builtin, cycle_model, energy, layers, simulated_chip
from validator.simulate.cycle_model import CycleModel, Run
from validator.simulate.geometry import check_geometry
from validator.simulate.layers import Provenance
from validator.simulate.simulated_chip import SimulatedChip

Ints = npt.NDArray[np.int64]

SAMPLES = 16


@dataclass(eq=False)
class Source:
    """A program, its chip and its run.

    `run` is None if the program cannot be run; `untimed` is the reason. If `chip` is None, `machine` is built for an
    assumed chip.
    """

    subject: Subject
    machine: CycleModel
    of: Provenance
    chip: Target | None
    run: Run | None
    untimed: str
    findings: tuple[Finding, ...]

    @cached_property
    def part(self) -> Ints:
        """Index of the part of each instruction: its ONNX node, or its opcode."""
        return self.of.node[self.of.step] if self.of.has_nodes else self.machine.opcodes.astype(np.int64)


def read(path: str | Path, arch: str | Path | None) -> Source:
    """Reads a program and runs it. Raises `UserError` for files that cannot be read or would crash the simulator."""
    subject = load_subject(path, arch)
    program = _raw(subject)
    source = _arch(Path(path), arch)
    chip = _assumed_chip(program) if source is None else simulated_chip.read_target(source)
    machine = cycle_model.build(program, chip, () if source is None else check_geometry(program, chip))
    run, untimed = None, "no architecture: neither arch.json beside the streams nor --arch"
    if source is not None:
        run, untimed = _run(machine)
    return Source(
        subject=subject,
        machine=machine,
        of=layers.provenance(program, machine),
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


def _raw(subject: Subject) -> RawProgram:
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
    target = default_target(program.core_cnt, mesh_layout(program.core_cnt))
    return SimulatedChip(target, MeshTable(target), "the assumed chip", ())


def _run(machine: CycleModel) -> tuple[Run | None, str]:
    run = cycle_model.run(machine, counting=energy.needs_counting(machine.chip.target))
    try:
        builtin.check_ended(machine, run)
    except (DeadlockError, UserError) as e:
        return None, f"the program does not end: {e}"
    return run, ""


def estimate(read: Source) -> Estimate | None:
    """Estimates time and energy of one sample alone, and in the steady state; None without a run."""
    machine, run = read.machine, read.run
    if run is None:
        return None
    latency_ns = run.last_tick * machine.period_ns
    counts = energy.counts(machine)
    alone = energy.energy_of(machine, counts, run.port, latency_ns)
    try:
        counting = energy.needs_counting(machine.chip.target)
        interval_ns, shares, accesses = builtin.steady_state(machine, SAMPLES, counting)
    except (DeadlockError, UserError) as e:
        return Estimate(builtin.ESTIMATOR, latency_ns, alone.parts(), None, {}, SAMPLES, str(e))
    steady = energy.energy_of(machine, counts * shares[:, None], accesses, interval_ns)
    return Estimate(builtin.ESTIMATOR, latency_ns, alone.parts(), interval_ns, steady.parts(), SAMPLES, "")
