"""Choice of the constants of a core that its free crossbars produce by one product, in place of loads."""

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, load_ns, mvmul_ns

K = TypeVar("K", bound=Hashable)


def choose_produced(elements: Mapping[K, int], free: int, arch: Target) -> set[K]:
    """Returns the constants that fit into `free` crossbars, the largest first; none if their loads take no longer.

    elements: number of elements of each constant.
    """
    room, kept = free * arch.outputs_per_xbar, set[K]()
    for key, size in sorted(elements.items(), key=lambda item: -item[1]):
        if size <= room:
            room -= size
            kept.add(key)
    product = product_ns([elements[key] for key in kept], arch) + load_ns(arch, 1) + 2 * ISSUE_NS
    return kept if product < sum(load_ns(arch, elements[key]) + ISSUE_NS for key in kept) else set()


def count_crossbars(sizes: Iterable[int], arch: Target) -> int:
    """Returns the number of crossbars that hold constants of these numbers of elements."""
    return -(-sum(sizes) // arch.outputs_per_xbar)


def product_ns(sizes: Iterable[int], arch: Target) -> float:
    """Returns the time in ns of the product that produces constants of these numbers of elements."""
    return mvmul_ns(arch, count_crossbars(sizes, arch))
