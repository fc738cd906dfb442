"""Crossbar writes before each round: the array groups whose contents the crossbars do not hold yet."""

from collections.abc import Sequence

from raptor.codegen.pimsim.stream_files import pimsim_files
from raptor.output.files import AnyMatrix, GroupWrite
from raptor.output.writer import ProgramArtifacts
from raptor.target.arch import Target
from raptor.target.device_file import CrossbarWrite


def list_groups(artifacts: ProgramArtifacts) -> tuple[GroupWrite, ...]:
    """Returns the array groups of a program with their crossbars and contents."""
    arch, files = artifacts.arch, pimsim_files(artifacts)

    def cells(matrix: AnyMatrix) -> int:
        bits = arch.widths.weights if matrix.dtype.kind == "f" else 8 * matrix.dtype.itemsize
        return matrix.size * -(-bits // arch.cell_bits)

    return tuple(
        w for core, matrices in files.weights.items() for w in files.config.list_group_writes(core, matrices, cells)
    )


def find_steady_writes(rounds: Sequence[Sequence[GroupWrite]]) -> list[tuple[GroupWrite, ...]]:
    """Returns the writes before each round in the steady state, where one batch follows another."""
    held: dict[tuple[int, int], tuple[str, int]] = {}
    found: list[tuple[GroupWrite, ...]] = []
    for groups in (*rounds, *rounds):
        written = tuple(g for g in groups if any(held.get(xbar) != content for xbar, content in g.list_crossbars()))
        held.update(item for group in written for item in group.list_crossbars())
        found.append(written)
    return found[len(rounds) :]


def list_crossbar_writes(groups: Sequence[GroupWrite], arch: Target) -> tuple[CrossbarWrite, ...]:
    """Returns an entry for each crossbar that is written for these groups."""
    each = (CrossbarWrite(g.core, min(g.rows, arch.xbar_rows), -(-g.cells // g.xbars)) for g in groups)
    return tuple(write for group, write in zip(groups, each, strict=True) for _ in range(group.xbars))
