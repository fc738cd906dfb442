"""Paces: fixed timing profiles that replace the chip's own times, so that programs do not depend on them.

A mapping that follows the chip's own times jumps when one of them changes, to a program that may be slower on the
better chip. A program made for one of these paces depends on the sizes of the chip alone. On a better chip it is the
same, and hardly ever slower (docs/lab/better-chips.md). So a small graph goes by one of two paces by default, and a
search for it tries programs of several.
"""

from dataclasses import replace
from functools import cache, lru_cache
from typing import Annotated, Literal

from pydantic import Field

from raptor.graph.ir import Graph
from raptor.target.arch import CrossbarHardware, Memory, Network, Target, load
from raptor.target.timing import crossbars_ns, vector_ns

Pace = Literal["own", "bench", "products x4", "products x8", "products x16", "memories x2"]
"""Timing profile of a mapping: the chip's own times, the times of the preset `bench`, or these with slower parts.

Nothing chooses "products x8" now; stored mappings may name it.
"""

StoredPace = Annotated[
    Pace, Field(exclude_if=lambda pace: pace == "own", description="left out for the times of the chip")
]
"""A pace as a field of a file."""

SEARCHED_PACES: tuple[Pace, ...] = ("bench", "products x4", "products x16", "memories x2")
"""Paces that a search tries."""

MOST_SMALL_ELEMENTS = 200_000
"""Largest number of elements in all tensors of a graph that is mapped for a fixed pace.

With LeNet-5 they are 23,880, with ResNet-18 of 64 pixels and a quarter of the channels 183,120, and 8.4 million at full
size. A count, so that the same model always gets the same paces.
"""

SLOW_PRODUCTS = 3.0
"""Time of the crossbars in a product, relative to `bench`, above which products are slow.

Over three small models and 303 better chips, no latency or interval gets longer by more than 0.4 %. Programs take 1.03
times the latency and 1.05 times the interval of those by the chips' own times (geometric means of 30 chips). With
limits of 1.1 to 2.1, two to four intervals of LeNet-5 get longer by up to 4 %, and the programs take 1.01 and 1.03.
"""

SLOW_VECTORS = 8.0
"""Time of a vector instruction, relative to `bench`, above which no fixed pace fits: depthwise layers, for instance,
then belong on crossbars. Of the random chips by which the paces were chosen, the slowest has 5.2."""

_ELEMENTS = 64
"""Length of the vector instruction by which `SLOW_VECTORS` is judged."""

_PRODUCTS: dict[Pace, int] = {"products x4": 4, "products x8": 8, "products x16": 16}
_MEMORIES: dict[Pace, int] = {"memories x2": 2}


def default_pace(graph: Graph, arch: Target) -> Pace:
    """Returns the default pace of a graph: `bench` or slow products for a small graph, else the chip's own times.

    Few improvements of the chip change it: a product that becomes faster than three of `bench`, or a very slow vector
    unit that becomes faster. Larger graphs would lose more by a fixed pace than they gain: MobileNet-v2 on `bench` with
    a quarter of the converters took 1.4 times the latency and 1.6 times the interval.
    """
    if not is_small_graph(graph):
        return "own"
    bench = apply_pace(arch, "bench")
    if bench == arch or vector_ns(arch, _ELEMENTS, 2) > SLOW_VECTORS * vector_ns(bench, _ELEMENTS, 2):
        return "own"
    return "products x4" if crossbars_ns(arch) > SLOW_PRODUCTS * crossbars_ns(bench) else "bench"


def is_small_graph(graph: Graph) -> bool:
    """True if a graph is mapped for fixed paces. It is also so small that a search can compile many programs."""
    return count_elements(graph) <= MOST_SMALL_ELEMENTS


def count_elements(graph: Graph) -> int:
    """Returns the number of elements of all tensors."""
    images = (tensor.image for tensor in graph.tensors.values())
    return sum(image.rows * image.width * image.channels for image in images)


@lru_cache(maxsize=64)
def apply_pace(arch: Target, pace: Pace) -> Target:
    """Returns the target with the same sizes and energies, and the times of a pace.

    It is the preset `bench` with the chip's own sizes put in. So programs for a pace depend only on the properties of
    the hardware that are named here. A network table of the chip is kept.
    """
    if pace == "own":
        return arch
    bench, slower = _bench(), _MEMORIES.get(pace, 1)
    core = replace(
        bench.core,
        rob_size=arch.rob_size,
        xbar_count=arch.core.xbar_count,
        xbar=_timed_xbar(arch.core.xbar, bench.core.xbar, _PRODUCTS.get(pace, 1)),
        memory=_timed(arch.core.memory, bench.core.memory, slower, slower),
        power=arch.core.power,
    )
    return replace(
        bench,
        core_count=arch.core_count,
        chips=arch.chips,
        core=core,
        memory=_timed(arch.memory, bench.memory, slower, 1),
        network=_timed_network(arch.network, bench.network),
        widths=arch.widths,
        simulator=arch.simulator,
        interface=arch.interface,
        notes=arch.notes,
        places=arch.places,
        room=arch.room,
        defects=arch.defects,
    )


@cache
def _bench() -> Target:
    return load("bench")


def _timed_network(network: Network, times: Network) -> Network:
    """Returns a network with the times of `times`, but with its own table and links."""
    return replace(
        times,
        topology=network.topology,
        rows=network.rows,
        cols=network.cols,
        memory_id=network.memory_id,
        table=network.table,
        link=network.link,
    )


def _timed_xbar(xbar: CrossbarHardware, times: CrossbarHardware, products: int) -> CrossbarHardware:
    """Returns a crossbar with the times of `times`, and ADC conversions that take `products` times as long."""
    converters = replace(
        times.converters,
        dacs=xbar.rows,
        adc_bits=xbar.converters.adc_bits,
        adcs=min(times.converters.adcs, xbar.cols),
        adc_cycles=times.converters.adc_cycles * products,
    )
    sizes = {"rows": xbar.rows, "cols": xbar.cols, "cell_bits": xbar.cell_bits}
    return replace(times, **sizes, converters=converters, power=xbar.power)


def _timed(memory: Memory, times: Memory, reads: int, writes: int) -> Memory:
    """Returns a memory with the times of `times`, where reads and writes take `reads` and `writes` times as long."""
    return replace(
        times,
        read_cycles=times.read_cycles * reads,
        write_cycles=times.write_cycles * writes,
        size_bytes=memory.size_bytes,
        size_given=memory.size_given,
        energy=memory.energy,
    )
