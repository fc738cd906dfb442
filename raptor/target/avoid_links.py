"""Search for places of cores between which no message crosses a dead link: a tabu search by swaps (Glover 1989)."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_STEPS_PER_CORE, _FEWEST_STEPS = 20, 1000
"""Most swaps that are tried: so many for each core, and at least these."""
_TURNS = 8
"""Parts of a circle by which places are moved along for further starts of the search."""
_MOST_REST = 13
"""Most steps for which cores that were swapped stay, unless a move is the best so far; they vary in a cycle."""


def find_uncut_places(peers: Sequence[Ints], cut: Bools, forbidden: Bools | None, start: Ints) -> Ints:
    """Returns the place of each core [cores], a permutation with as few faults as the search finds.

    A fault is a core at a place that is forbidden for it, or two cores with messages at places that are cut. `peers`:
    the cores with which each exchanges messages. `cut` [places, places], symmetric. `forbidden` [cores, places]; None
    if every core may be everywhere. `start`: places to begin with, of which most stay.
    """
    found, fewest = start, len(start) ** 2
    for begin in _list_starts(peers, cut, start):
        tried, left = _search(peers, cut, forbidden, begin)
        if left < fewest:
            found, fewest = tried, left
        if not left:
            break
    return found


def _list_starts(peers: Sequence[Ints], cut: Bools, start: Ints) -> Iterator[Ints]:
    """Yields places to begin with: those given, with the cores that talk gathered, and moved along in a circle."""
    yield start
    yield _gather(peers, cut, start)
    yield from (np.roll(start, len(start) * turn // _TURNS) for turn in range(1, _TURNS))


def list_clear_places(cut: Bools) -> list[int]:
    """Returns places of which no two are cut, as many as are found: first those with the fewest cuts."""
    clear: list[int] = []
    for place in np.argsort(cut.sum(axis=1), kind="stable").tolist():
        if not cut[place, clear].any():
            clear.append(place)
    return clear


def _gather(peers: Sequence[Ints], cut: Bools, start: Ints) -> Ints:
    """Returns places with the cores that exchange messages where no two are cut, as far as there are such places.

    Cores at such places stay.
    """
    clear = list_clear_places(cut)
    at, places = np.argsort(start), start.copy()
    talks = np.array([len(others) > 0 for others in peers])
    free = [place for place in clear if not talks[at[place]]]
    inside = set(clear)
    for core in np.flatnonzero(talks).tolist():
        mine = int(places[core])
        if mine in inside or not free:
            continue
        place = free.pop(0)
        other = int(at[place])
        places[core], places[other], at[mine], at[place] = place, mine, other, core
    return places


def _search(peers: Sequence[Ints], cut: Bools, forbidden: Bools | None, start: Ints) -> tuple[Ints, int]:
    """Returns the places with the fewest faults that are found from `start`, and the number of their faults."""
    places = start.copy()
    at = np.argsort(places)  # the core at each place
    faults = _count_faults(peers, cut, forbidden, places)
    cores, rests = np.arange(len(places)), np.zeros(len(places), np.int64)
    here = faults[cores, places]
    total, best, found = int(here.sum()), int(here.sum()), places.copy()
    rest = 1 + min(_MOST_REST, len(places) // 2)
    for step in range(max(_FEWEST_STEPS, _STEPS_PER_CORE * len(places))):
        wrong = np.flatnonzero(here)
        if not len(wrong):
            break
        core = int(wrong[step % len(wrong)])
        mine = places[core]
        change = faults[core] - here[core] + faults[at, mine] - here[at]
        change[places[peers[core]]] += 2 * cut[mine, places[peers[core]]]  # the two stay apart by a cut
        # Faults between cores count for both of them, those of a place once: `total` only has to be 0 at the end.
        resting = (np.maximum(rests[at], rests[core]) > step) & (total + 2 * change >= best)
        change[mine] = np.iinfo(np.int64).max
        change[resting] = np.iinfo(np.int64).max
        place = int(change.argmin())
        if change[place] == np.iinfo(np.int64).max:
            continue
        other = int(at[place])
        for moved, before, after in ((core, mine, place), (other, place, mine)):
            faults[peers[moved]] += cut[after].astype(np.int64) - cut[before]
        places[core], places[other], at[mine], at[place] = place, mine, other, core
        here = faults[cores, places]
        total = int(here.sum())
        rests[core] = step + 1 + step % rest
        if total < best:
            best, found = total, places.copy()
    return found, best


def _count_faults(peers: Sequence[Ints], cut: Bools, forbidden: Bools | None, places: Ints) -> Ints:
    """Returns the faults that each core would have at each place, if all other cores stayed: [cores, places]."""
    faults = np.zeros((len(places), len(places)), np.int64) if forbidden is None else forbidden.astype(np.int64)
    for core, others in enumerate(peers):
        faults[core] += cut[places[others]].sum(axis=0)
    return faults
