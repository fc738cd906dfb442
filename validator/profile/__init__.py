"""`profile`: where a program's instructions, bytes, time and energy go, as numbers; `raptor.reporting` draws them.

Independent of the compiler, like the rest of `validator`: anyone's program will do. Read in this order:

    facts       what is found out, as frozen values
    source      program and chip, read once; the run, if there can be one
    parts       by ONNX node, or by instruction where nodes are not known
    mesh        where the cores are
    cores       by core
    traffic     who sends to whom
    timeline    by core and time (compiled: kernels)
    memory      bytes of local memory that hold something, by core and time
    crossbars   how full each crossbar is
"""

from pathlib import Path

from validator.profile.facts import Profile

__all__ = ["Profile", "profile"]


def profile(path: str | Path, arch: str | Path | None = None) -> Profile:
    """Profiles a program directory or single-file program.

    `arch`: an architecture file or preset; without it `arch.json` of the directory. Without any there is no time and no
    energy, and a program that does not end has none either; `Profile.untimed` says why. Raises `UserError` for what
    cannot be read.
    """
    from validator.profile import cores, crossbars, memory, mesh, parts, source, timeline, traffic

    read = source.read(path, arch)
    return Profile(
        program=str(path),
        instructions=len(read.machine.words),
        chip=read.chip,
        mesh=mesh.mesh_of(read),
        untimed=read.untimed,
        estimate=source.estimate(read),
        parts_are="node" if read.of.has_nodes else "instruction",
        parts=parts.parts_of(read),
        part_names=parts.part_names(read),
        cores=cores.cores_of(read),
        traffic=traffic.traffic_of(read),
        timeline=timeline.timeline_of(read),
        local_memory=memory.local_memory_of(read),
        crossbars=crossbars.crossbars_of(read),
        findings=read.findings,
        warnings=read.machine.warnings,
    )
