"""Gives buffers addresses. Results overwrite operands that die; buffers that are not alive together share memory."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from raptor.common.errors import CapacityError
from raptor.common.spelling import option
from raptor.pim.ir import Buffer, CoreProgram, PimProgram, Step
from raptor.spatial.operations import Vector
from raptor.target.arch import Target
from raptor.target.element import MODELLED

ALIGNMENT = 4
"""Integers of up to 4 bytes begin at multiples of this: memories read aligned words faster."""


def granule(buffer: Buffer, arch: Target) -> int:
    """Returns the bytes of which the address of a buffer is a multiple."""
    return arch.element_bytes if buffer.element == MODELLED else ALIGNMENT


def room(buffer: Buffer, arch: Target) -> int:
    """Returns the bytes that a buffer takes: more than it has, up to a multiple of `granule`.

    The simulator counts both ends of a range as inside, so neighbours would overlap.
    """
    step = granule(buffer, arch)
    return buffer.elements * arch.bytes_of(buffer.element) // step * step + step


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Lifetime of a buffer: step `first` writes it first, step `last` uses it last."""

    buffer: Buffer
    first: int
    last: int


def lifetimes(core: CoreProgram) -> list[Lifetime]:
    """Returns the lifetimes of a core's buffers, in order of first use."""
    first: dict[str, tuple[Buffer, int]] = {}
    last: dict[str, int] = {}
    for i, step in enumerate(core.steps):
        for buffer in step.operation.touches:
            if buffer.name not in last:
                first[buffer.name] = (buffer, i)
            last[buffer.name] = i
    return [Lifetime(buffer, i, last[name]) for name, (buffer, i) in first.items()]


def reuse_operands(program: PimProgram) -> PimProgram:
    """Returns the program with vector operations that write their result over an operand (destination passing).

    The operand must be as long as the result, and not be read again.
    """
    return replace(program, cores={i: _reuse_on_core(core) for i, core in program.cores.items()})


def _reuse_on_core(core: CoreProgram) -> CoreProgram:
    """Renames buffers: a result gets the name of the operand whose memory it takes."""
    last = {life.buffer.name: life.last for life in lifetimes(core)}
    home: dict[str, str] = {}
    """Name of a buffer -> name of the buffer whose memory it takes."""

    def moved(buffer: Buffer) -> Buffer:
        return replace(buffer, name=home[buffer.name]) if buffer.name in home else buffer

    steps: list[Step] = []
    for i, step in enumerate(core.steps):
        op = step.operation
        if isinstance(op, Vector):
            dying = (b for b in op.operands if last[b.name] == i and _same_size(b, op.result))
            operand = next(dying, None)
            if operand is not None:
                home[op.result.name] = moved(operand).name
        affected = any(buffer.name in home for buffer in op.touches)
        steps.append(replace(step, operation=op.map_operands(moved)) if affected else step)
    return replace(core, steps=tuple(steps))


def _same_size(a: Buffer, b: Buffer) -> bool:
    return a.elements == b.elements and a.element == b.element


def allocate(program: PimProgram, arch: Target) -> PimProgram:
    """Returns the program with an address in local memory for every buffer.

    Raises `CapacityError` if the architecture file names a `memory_size`, and a core needs more.
    """
    cores = {i: _allocate_core(core, arch) for i, core in program.cores.items()}
    placed = replace(program, cores=cores)
    if arch.memory_size_enforced and (over := _largest(placed, arch)):
        raise CapacityError(
            "bytes of local memory",
            over.bytes,
            arch.memory_size_bytes,
            where=f"core {over.core}, the fullest of {over.count} that need more, mostly for {over.node}",
            levers=(
                "a larger memory_size in the architecture file",
                f"fewer {option('xbars_per_core')}",
                f"a smaller {option('shapes')}",
            ),
        )
    return placed


@dataclass(frozen=True, slots=True)
class _Over:
    """Cores that need more local memory than they have.

    count: how many. core, bytes: the fullest, and what it needs. node: the ONNX node with most of its steps.
    """

    count: int
    core: int
    bytes: int
    node: str


def _largest(program: PimProgram, arch: Target) -> _Over | None:
    """Finds the cores that need too much local memory; returns None if all fit."""
    sizes = {i: core.local_bytes for i, core in program.cores.items()}
    over = {i: size for i, size in sizes.items() if size > arch.memory_size_bytes}
    if not over:
        return None
    worst = max(over, key=lambda i: (over[i], -i))
    nodes = Counter(step.node for step in program.cores[worst].steps)
    return _Over(len(over), worst, over[worst], nodes.most_common(1)[0][0])


def memory_warnings(program: PimProgram, arch: Target) -> tuple[str, ...]:
    """Returns a warning if cores need more local memory than `memory_size`; nothing if all fit.

    If the architecture file names a size, `allocate` raises instead. The simulator does not enforce its default, 1 MiB.
    """
    over = _largest(program, arch)
    if over is None:
        return ()
    return (
        f"local memory: {over.count} of {len(program.cores)} cores need more than {arch.memory_size_bytes} bytes (the "
        f"simulator's default, which it does not enforce); core {over.core} needs {over.bytes}, mostly for {over.node}",
    )


def _allocate_core(core: CoreProgram, arch: Target) -> CoreProgram:
    """Gives each buffer of a core an address: the largest first, at the lowest address that is free during its life."""
    from raptor.pim.allocate_kernel import first_fit  # compiled code is loaded only where it runs

    lives = lifetimes(core)
    first = np.array([life.first for life in lives], np.int64)
    last = np.array([life.last for life in lives], np.int64)
    size = np.array([room(life.buffer, arch) for life in lives], np.int64)
    start = first_fit(np.argsort(-size, kind="stable"), first, last, size)
    addresses = {life.buffer.name: int(at) for life, at in zip(lives, start, strict=True)}
    return replace(core, addresses=addresses, local_bytes=int((start + size).max(initial=0)))
