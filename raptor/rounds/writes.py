"""Writes of each round: the matrices that the crossbars do not hold yet."""

from collections.abc import Iterator, Sequence

from raptor.common.digests import matrix_digest
from raptor.output.files import GroupWrite
from raptor.output.writer import Artifacts
from raptor.target.arch import Target
from raptor.target.device_file import CrossbarWrite


def groups_of(artifacts: Artifacts) -> tuple[GroupWrite, ...]:
    """Returns the array groups of a program with their places and contents."""
    return tuple(_groups(artifacts))


def _groups(artifacts: Artifacts) -> Iterator[GroupWrite]:
    arch = artifacts.arch
    for core, matrices in artifacts.weights.items():
        first = 0
        for group, (matrix, xbars) in enumerate(zip(matrices, artifacts.config.groups(core), strict=True)):
            bits = arch.widths.weights if matrix.dtype.kind == "f" else 8 * matrix.dtype.itemsize
            yield GroupWrite(
                core=core,
                group=group,
                first=first,
                xbars=xbars,
                rows=matrix.shape[0],
                cols=matrix.shape[1],
                cells=matrix.size * -(-bits // arch.cell_bits),
                sha256=matrix_digest(matrix),
            )
            first += xbars


def steady_writes(rounds: Sequence[Sequence[GroupWrite]]) -> list[tuple[GroupWrite, ...]]:
    """Returns for each round the groups that the crossbars do not hold yet, when one batch follows another."""
    held: dict[tuple[int, int], tuple[str, int]] = {}
    found: list[tuple[GroupWrite, ...]] = []
    for groups in (*rounds, *rounds):
        written = tuple(g for g in groups if any(held.get(xbar) != content for xbar, content in contents(g)))
        held.update(item for group in written for item in contents(group))
        found.append(written)
    return found[len(rounds) :]


def contents(group: GroupWrite) -> Iterator[tuple[tuple[int, int], tuple[str, int]]]:
    """Yields core and number of each crossbar of a group, and what it holds: a part of a matrix."""
    for k in range(group.xbars):
        yield (group.core, group.first + k), (group.sha256, k)


def crossbars(groups: Sequence[GroupWrite], arch: Target) -> tuple[CrossbarWrite, ...]:
    """Returns every crossbar that is written for some groups."""
    each = (CrossbarWrite(g.core, min(g.rows, arch.xbar_rows), -(-g.cells // g.xbars)) for g in groups)
    return tuple(write for group, write in zip(groups, each, strict=True) for _ in range(group.xbars))
