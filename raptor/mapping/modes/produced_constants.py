"""Choice of the constants of a core that its free crossbars produce by one product, in place of loads."""

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, global_port_ns, load_ns, mvmul_ns

K = TypeVar("K", bound=Hashable)

PORT_SHARE = 0.7
"""Largest time at the port of global memory, relative to the work of the busiest core, at which it does not bind.

Transfers of several samples meet at the port. Simulated intervals on `bench` with 400 cores for shares of 1, 0.7 and
0.4, in us: eleven layers of a signal 36.1, 30.8, 30.8; an instance norm of a signal 72.8, 51.7, 51.2; an attention of
few queries 83.9, 71.2, 83.0.
"""


def choose_produced(elements: Mapping[K, int], free: int, arch: Target) -> set[K]:
    """Returns the constants that fit into `free` crossbars, the largest first; none if their loads take no longer.

    elements: number of elements of each constant.
    """
    kept = fit_constants(elements, free, arch)
    product = product_ns([elements[key] for key in kept], arch) + load_ns(arch, 1) + 2 * ISSUE_NS
    return kept if product < sum(load_ns(arch, elements[key]) + ISSUE_NS for key in kept) else set()


def fit_constants(elements: Mapping[K, int], free: int, arch: Target) -> set[K]:
    """Returns the constants that fit into `free` crossbars, the largest first. `elements`: see `choose_produced`."""
    room, kept = free * arch.outputs_per_xbar, set[K]()
    for key, size in sorted(elements.items(), key=lambda item: -item[1]):
        if size <= room:
            room -= size
            kept.add(key)
    return kept


def relieve_port(
    spare: Mapping[int, Mapping[K, int]], core_ns: Mapping[int, float], port_ns: float, arch: Target
) -> list[int]:
    """Returns the cores that produce their `spare` constants so that the port of global memory does not bind.

    The cores with least work come first, until the port is busy for `PORT_SHARE` of the time of the busiest core. No
    core works longer by its product than the busiest one or the port did.

    spare: constants of each core that it has crossbars for, with their numbers of elements. core_ns, port_ns: time for
    which a sample occupies each core and the port if all of them are loaded.
    """
    busiest_ns, found = max(core_ns.values(), default=0.0), list[int]()
    for core in sorted(spare, key=lambda core: (core_ns.get(core, 0.0), core)):
        sizes = spare[core].values()
        if port_ns <= PORT_SHARE * busiest_ns:
            break
        saved_ns = loads_at_port_ns(sizes, arch) - global_port_ns(arch, 1)  # the input of the product is loaded
        with_product_ns = core_ns.get(core, 0.0) + product_ns(sizes, arch)
        if saved_ns > 0 and with_product_ns <= max(busiest_ns, port_ns):
            busiest_ns = max(busiest_ns, with_product_ns)
            port_ns -= saved_ns
            found.append(core)
    return found


def loads_at_port_ns(sizes: Iterable[int], arch: Target) -> float:
    """Returns the ns for which loads of constants of these numbers of elements occupy the port of global memory."""
    return sum(global_port_ns(arch, size) for size in sizes)


def count_crossbars(sizes: Iterable[int], arch: Target) -> int:
    """Returns the number of crossbars that hold constants of these numbers of elements."""
    return -(-sum(sizes) // arch.outputs_per_xbar)


def product_ns(sizes: Iterable[int], arch: Target) -> float:
    """Returns the time in ns of the product that produces constants of these numbers of elements."""
    return mvmul_ns(arch, count_crossbars(sizes, arch))
