"""Trees in which cores combine their partial results, and pass the inputs of a fully connected layer on to one another.

A core that adds the sums of n others receives n messages; in a tree it receives log2(n + 1) at most.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FEWEST_IN_TREE = 4
"""Fewest cores whose sums are added as a tree, and fewest cores to which inputs are passed on as a tree."""

MOST_POOLED_IN_CHAIN = 8
"""Largest number of cores of a global pool for which one core combines all partial results, each when it is ready.

Cores with neighbouring columns of an image are ready one after another, so a few take no longer than in a tree.
"""


@dataclass(frozen=True, slots=True)
class TreeSum:
    """The sum of the partial sums from `begin` to `end`, made of those up to `middle` and of the rest.

    `place`: number of the partial sum on whose core it is; `given`: that of the core which sends its part there.
    """

    begin: int
    middle: int
    end: int
    place: int
    given: int


def tree_sums(count: int, home: int, number: int) -> Iterator[TreeSum]:
    """Yields the sums of a tree over `count` partial sums, each before those that read it; the last is at `home`.

    Neighbours are added first. The cores of the other sums alternate with `number`, that of the output tile, so that
    different tiles occupy different cores.
    """

    def sums(begin: int, end: int) -> Iterator[TreeSum]:
        if end - begin > 1:
            middle = middle_of(begin, end)
            yield from sums(begin, middle)
            yield from sums(middle, end)
            places = place_of(begin, middle), place_of(middle, end)
            own = keeps_right(begin, middle, end)
            yield TreeSum(begin, middle, end, places[own], places[1 - own])

    def middle_of(begin: int, end: int) -> int:
        return (begin + end) // 2

    def keeps_right(begin: int, middle: int, end: int) -> bool:
        return home >= middle if begin <= home < end else bool(number >> (end - begin).bit_length() & 1)

    def place_of(begin: int, end: int) -> int:
        while end - begin > 1:
            middle = middle_of(begin, end)
            begin, end = (middle, end) if keeps_right(begin, middle, end) else (begin, middle)
        return begin

    yield from sums(0, count)


def combines_in_tree(cores: int) -> bool:
    """True if a tree, not one core, combines the partial results of a global pool that is spread over `cores` cores."""
    return cores > MOST_POOLED_IN_CHAIN


def passing_place(number: int) -> int | None:
    """Returns which of the cores with some inputs passes them on to the one after `number` of these; None: the source.

    The source sends to the first of them, and to those whose number is a power of two.
    """
    passed = number + 1 - (1 << ((number + 1).bit_length() - 1))
    return passed - 1 if number + 1 >= FEWEST_IN_TREE and passed else None


def sum_messages(cores: Sequence[int], home: int, number: int, *, as_tree: bool) -> Iterator[tuple[int, int]]:
    """Yields the sender and the receiver of each partial sum of output tile `number`; `home`: place of its last sum."""
    if as_tree and len(cores) >= FEWEST_IN_TREE:
        yield from ((cores[each.given], cores[each.place]) for each in tree_sums(len(cores), home, number))
    else:
        yield from ((core, cores[home]) for core in cores if core != cores[home])
