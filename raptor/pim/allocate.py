"""Buffers get addresses: results in place of operands that die, memory shared by buffers not alive together."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from raptor.common.errors import CapacityError
from raptor.common.spelling import option
from raptor.pim.ir import Buffer, CoreProgram, PimProgram, Step
from raptor.spatial.operations import Vector
from raptor.target.arch import Arch

GAP_ELEMENTS = 1
"""Left free after each buffer: the simulator takes adjacent buffers for overlapping ones (both ends inclusive)."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer is written by step `first` and read last by step `last`."""

    buffer: Buffer
    first: int
    last: int


def lifetimes(core: CoreProgram) -> list[Lifetime]:
    """In order of first use."""
    first: dict[str, tuple[Buffer, int]] = {}
    last: dict[str, int] = {}
    for i, step in enumerate(core.steps):
        for buffer in step.operation.touches:
            if buffer.name not in last:
                first[buffer.name] = (buffer, i)
            last[buffer.name] = i
    return [Lifetime(buffer, i, last[name]) for name, (buffer, i) in first.items()]


def reuse_operands(program: PimProgram) -> PimProgram:
    """A vector operation whose operand dies with it writes its result there (destination passing)."""
    return replace(program, cores={i: _reuse_on_core(core) for i, core in program.cores.items()})


def _reuse_on_core(core: CoreProgram) -> CoreProgram:
    last = {life.buffer.name: life.last for life in lifetimes(core)}
    home: dict[str, str] = {}
    """By name of a buffer: that of the buffer whose memory it takes."""

    def moved(buffer: Buffer) -> Buffer:
        return replace(buffer, name=home[buffer.name]) if buffer.name in home else buffer

    steps: list[Step] = []
    for i, step in enumerate(core.steps):
        op = step.operation
        if isinstance(op, Vector):
            dying = (b for b in op.operands if last[b.name] == i and b.elements == op.result.elements)
            operand = next(dying, None)
            if operand is not None:
                home[op.result.name] = moved(operand).name
        affected = any(buffer.name in home for buffer in op.touches)
        steps.append(replace(step, operation=op.map_operands(moved)) if affected else step)
    return replace(core, steps=tuple(steps))


def allocate(program: PimProgram, arch: Arch) -> PimProgram:
    """Gives every buffer an address in local memory.

    Raises `CapacityError` where a core needs more than the `memory_size` that the architecture file names.
    """
    cores = {i: _allocate_core(core) for i, core in program.cores.items()}
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
    """Cores that need more local memory than there is: how many, the fullest, and the node most of it is for."""

    count: int
    core: int
    bytes: int
    node: str


def _largest(program: PimProgram, arch: Arch) -> _Over | None:
    sizes = {i: core.local_elements * arch.element_bytes for i, core in program.cores.items()}
    over = {i: size for i, size in sizes.items() if size > arch.memory_size_bytes}
    if not over:
        return None
    worst = max(over, key=lambda i: (over[i], -i))
    nodes = Counter(step.node for step in program.cores[worst].steps)
    return _Over(len(over), worst, over[worst], nodes.most_common(1)[0][0])


def memory_warnings(program: PimProgram, arch: Arch) -> tuple[str, ...]:
    """What to tell when cores need more than `memory_size`.

    Only a warning where the architecture file does not name it: the simulator's default of 1 MiB is not enforced.
    """
    over = _largest(program, arch)
    if over is None:
        return ()
    return (
        f"local memory: {over.count} of {len(program.cores)} cores need more than {arch.memory_size_bytes} bytes (the "
        f"simulator's default, which it does not enforce); core {over.core} needs {over.bytes}, mostly for {over.node}",
    )


def _allocate_core(core: CoreProgram) -> CoreProgram:
    """Largest buffer first, each at the lowest address free during its life."""
    from raptor.pim.allocate_kernel import first_fit  # compiled code is loaded only where it runs

    lives = lifetimes(core)
    first = np.array([life.first for life in lives], np.int64)
    last = np.array([life.last for life in lives], np.int64)
    size = np.array([life.buffer.elements + GAP_ELEMENTS for life in lives], np.int64)
    start = first_fit(np.argsort(-size, kind="stable"), first, last, size)
    addresses = {life.buffer.name: int(at) for life, at in zip(lives, start, strict=True)}
    return replace(core, addresses=addresses, local_elements=int((start + size).max(initial=0)))
