"""Paces: fixed times of the parts of a chip, in place of its own, for programs that do not depend on them.

A mapping that follows the chip's own times jumps when one of them changes, to a program that may be slower on the
better chip. A program made for one of these paces depends on the sizes of the chip alone. So a search among such
programs finds the same ones on the better chip, where none is slower (docs/design.md, "A better chip").
"""

from dataclasses import replace
from typing import Literal, get_args

from raptor.graph.ir import Graph
from raptor.target.arch import Memory, Target

Pace = Literal["own", "bench", "products x4", "products x16", "memories x2"]
"""Times by which a mapping goes: the chip's own, those of the preset `bench`, or these with slower parts."""

FIXED: tuple[Pace, ...] = tuple(pace for pace in get_args(Pace) if pace != "own")

SMALL = 200_000
"""Largest number of elements in all tensors of a graph for which a search goes by fixed paces.

With LeNet-5 they are 23,880, with ResNet-18 of 64 pixels and a quarter of the channels 183,120, and 8.4 million at full
size. A count, so that the same model always gets the same candidates.
"""

_PRODUCTS: dict[Pace, int] = {"products x4": 4, "products x16": 16}
_MEMORIES: dict[Pace, int] = {"memories x2": 2}


def is_small(graph: Graph) -> bool:
    """Tells whether a graph goes by fixed paces: a search can then compile many programs of it."""
    images = (tensor.image for tensor in graph.tensors.values())
    return sum(image.rows * image.width * image.channels for image in images) <= SMALL


def paced(arch: Target, pace: Pace) -> Target:
    """Returns the target of the same sizes with the times of a pace. Links that a table describes stay as they are."""
    if pace == "own":
        return arch
    slower = _MEMORIES.get(pace, 1)
    converters = replace(
        arch.core.xbar.converters,
        period_ns=1,
        pipelined=True,
        dac_bits=1,
        dacs=arch.xbar_rows,
        dac_cycles=1,
        sample_hold_cycles=1,
        adcs=min(16, arch.xbar_cols),
        adc_cycles=20 * _PRODUCTS.get(pace, 1),
        shift_add_cycles=1,
        output_buffer_cycles=1,
    )
    core = replace(
        arch.core,
        period_ns=1,
        vector_width=32,
        vector_step_ns=4,
        xbar=replace(arch.core.xbar, read_ns=7, converters=converters),
        memory=_timed(arch.core.memory, 64, 20 * slower, 30 * slower),
    )
    memory = _timed(arch.memory, 32, 40 * slower, 50)
    return replace(arch, core=core, memory=memory, network=replace(arch.network, flit_bytes=32))


def _timed(memory: Memory, beat_bytes: int, read_cycles: int, write_cycles: int) -> Memory:
    return replace(memory, beat_bytes=beat_bytes, period_ns=1, read_cycles=read_cycles, write_cycles=write_cycles)
