"""Profile of a program: its instructions, bytes, time and energy, split in several ways.

`raptor.tools.reporting` draws it.

It is independent of the compiler, like the rest of `validator`, and takes programs of other compilers too. Read the
modules in this order:

    profile_results         the results, as frozen values
    profiled_program        program and chip, read once; the run, if the program can be run
    node_profile            figures of each ONNX node, or of each kind of instruction if nodes are not known
    core_positions          positions of the cores on the chip
    core_profile            figures of each core
    traffic                 bytes and messages for each sender and receiver
    timeline                work of each core over time (compiled: profile_kernels)
    power_profile           power over time, by part of the chip and by core; use of the mesh
    memory_usage            bytes of local memory in use by each core over time
    crossbar_utilisation    utilisation of each crossbar
"""

from pathlib import Path

from validator.profile.profile_results import Profile

__all__ = ["Profile", "profile"]


def profile(path: str | Path, arch: str | Path | None = None) -> Profile:
    """Profiles a program directory or single-file program.

    `arch`: an architecture file or preset. Default: `arch.json` of the directory. Time and energy are missing if there
    is no architecture, or if the program does not end; `Profile.untimed` gives the reason. Raises `UserError` for files
    that cannot be read.
    """
    from validator.profile import (
        core_positions,
        core_profile,
        crossbar_utilisation,
        memory_usage,
        node_profile,
        power_profile,
        profiled_program,
        timeline,
        traffic,
    )

    read = profiled_program.read_profiled_program(path, arch)
    power = power_profile.profile_power(read)
    crowded = power.mesh.warning if power is not None and power.mesh is not None else ""
    return Profile(
        program=str(path),
        instructions=len(read.machine.words),
        chip=read.chip,
        mesh=core_positions.find_mesh(read),
        untimed=read.untimed,
        estimate=profiled_program.estimate_sample(read),
        part_kind="node" if read.provenance.has_nodes else "instruction",
        parts=node_profile.profile_parts(read),
        part_names=node_profile.list_part_names(read),
        cores=core_profile.profile_cores(read),
        traffic=traffic.profile_traffic(read),
        timeline=timeline.make_timeline(read),
        local_memory=memory_usage.profile_local_memory(read),
        crossbars=crossbar_utilisation.profile_crossbars(read),
        findings=read.findings,
        warnings=(*read.machine.warnings, *([crowded] if crowded else ())),
        power=power,
    )
