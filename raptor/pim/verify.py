"""Invariants of PimIR (docs/design.md, 3)."""

from collections.abc import Mapping

from raptor.common.errors import VerifyError
from raptor.pim.allocate import granule, lifetimes, room
from raptor.pim.ir import Buffer, CoreProgram, LoadRows, PimProgram, Receive, Send, Span, span_of
from raptor.target.arch import Target
from raptor.target.element import ElementType


def verify(program: PimProgram, arch: Target) -> None:
    """Checks a program, before or after allocation. Raises `VerifyError` that names core, step and ONNX node."""
    _check_channels(program, arch)
    _check_order(program)
    for core in program.cores.values():
        _check_core(core, arch)
        if core.addresses is not None:
            _check_addresses(core, core.addresses, arch)


def _check_channels(program: PimProgram, arch: Target) -> None:
    """Checks that each channel has one send and one receive, of one size, on different cores that name each other."""
    sends: dict[int, tuple[int, int, int]] = {}
    receives: dict[int, tuple[int, int, int]] = {}
    for core in program.cores.values():
        for step in core.steps:
            op = step.operation
            if isinstance(op, Send):
                _add_end(sends, op.channel, (core.core, op.core, _size(op.source, op.span, arch)), step.node)
            elif isinstance(op, Receive):
                _add_end(receives, op.channel, (op.core, core.core, _size(op.result, op.span, arch)), step.node)
    for channel in sorted(sends.keys() | receives.keys()):
        send, receive = sends.get(channel), receives.get(channel)
        if send != receive:
            raise VerifyError(f"pim: channel {channel}: send {send} and receive {receive} disagree")
    if sorted(sends) != list(range(program.channel_count)):
        raise VerifyError(f"pim: {program.channel_count} channels are declared, {len(sends)} are used")
    for channel, (source, target, _) in sends.items():
        if source == target:
            raise VerifyError(f"pim: channel {channel} goes from core {source} to itself")


def _size(buffer: Buffer, span: Span | None, arch: Target) -> int:
    """Returns the bytes of a span of a buffer."""
    return span_of(buffer, span)[1] * arch.bytes_of(buffer.element)


def _add_end(ends: dict[int, tuple[int, int, int]], channel: int, end: tuple[int, int, int], node: str) -> None:
    if channel in ends:
        raise VerifyError(f"pim: {node}: channel {channel} is used twice")
    ends[channel] = end


def _check_order(program: PimProgram) -> None:
    """Checks that each core meets its channels in rising order, that of the schedule: so no cores wait in a ring."""
    for core in program.cores.values():
        channels = [s.operation.channel for s in core.steps if isinstance(s.operation, Send | Receive)]
        if channels != sorted(channels):
            raise VerifyError(f"pim: core {core.core} meets its channels out of the global order")


def _check_core(core: CoreProgram, arch: Target) -> None:
    """Checks that the core exists, has crossbars for its groups, and defines buffers before it reads them."""
    xbars = sum(g.matrix.xbars for g in core.groups)
    if xbars > arch.xbars_per_core or core.core >= arch.core_count:
        raise VerifyError(
            f"pim: core {core.core} of {arch.core_count} holds {xbars} of {arch.xbars_per_core} crossbars"
        )
    defined: dict[str, tuple[int, ElementType]] = {}
    """Number and type of the elements of each buffer, by name."""
    for i, step in enumerate(core.steps):
        for buffer in step.operation.operands:
            if defined.get(buffer.name) != (buffer.elements, buffer.element):
                raise VerifyError(
                    f"pim: core {core.core} step {i} ({step.node}): {buffer} is used before it is defined"
                )
        if isinstance(step.operation, LoadRows):
            _check_rows(f"pim: core {core.core} step {i} ({step.node})", step.operation, arch)
        for buffer in step.operation.results:
            defined[buffer.name] = buffer.elements, buffer.element


def _check_rows(where: str, op: LoadRows[Buffer], arch: Target) -> None:
    """Checks that a load of rows has an id for each pixel, and that a pixel takes no more than a row."""
    if len(op.ids) != op.result.pixels:
        raise VerifyError(f"{where}: {op.result} has {op.result.pixels} pixels, but {len(op.ids)} ids")
    if op.result.channels * arch.bytes_of(op.result.element) > op.stride:
        raise VerifyError(f"{where}: {op.result} takes more than the {op.stride} bytes from one row to the next")


def _check_addresses(core: CoreProgram, addresses: Mapping[str, int], arch: Target) -> None:
    """Checks that buffers alive together are apart and aligned, and that all lie inside the memory used."""
    lives = lifetimes(core)
    starting: dict[int, list[Buffer]] = {}
    ending: dict[int, list[Buffer]] = {}
    for life in lives:
        starting.setdefault(life.first, []).append(life.buffer)
        ending.setdefault(life.last, []).append(life.buffer)
    alive: dict[str, tuple[int, int]] = {}
    for i, step in enumerate(core.steps):
        for buffer in starting.get(i, ()):
            low = addresses[buffer.name]
            high = low + room(buffer, arch)
            clash = next((name for name, (a, b) in alive.items() if a < high and low < b), None)
            where = f"pim: core {core.core} step {i} ({step.node})"
            if low % granule(buffer, arch):
                raise VerifyError(f"{where}: {buffer} at {low} is not aligned")
            if clash or low < 0 or high > core.local_bytes:
                raise VerifyError(f"{where}: {buffer} at {low} overlaps {clash or 'the end of local memory'}")
            alive[buffer.name] = (low, high)
        for buffer in ending.get(i, ()):
            del alive[buffer.name]
    assert all(b.name in addresses for step in core.steps for b in step.operation.touches)
