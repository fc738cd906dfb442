"""Chooses the cores of a chip on which a compiled program runs, if those that it was compiled for do not do.

A core does not do if it is dead, has fewer working crossbars than the program uses of it, or has dead lines that a
matrix needs; and two cores that exchange messages do not if a dead link cuts the way between them.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.target.avoid_links import find_uncut_places
from raptor.target.chip_file import Chip
from raptor.target.message_partners import find_partners
from raptor.tools.repair.choose_crossbars import CrossbarPart, assign_rows
from validator.program.program import LoadedProgram

Ints = npt.NDArray[np.int64]
_IMPOSSIBLE, _LOST = 1e9, 1e4
"""Costs of a core that cannot hold the matrices, and of each matrix with a dead line; a move costs its hops and 1."""


def choose_cores(program: LoadedProgram, parts: Mapping[int, Sequence[CrossbarPart]], chip: Chip) -> list[int] | None:
    """Returns the core of the chip for each core of a program, a permutation; None if all stay where they are.

    As few matrices as possible have dead lines, and the cores that move go to near ones. `parts`: matrices of each core
    that has some. Raises `UserError` if the working cores and links do not do for the program.
    """
    used = [core for core, records in enumerate(program.streams) if len(records) or core in parts]
    peers = _find_peers(program)
    stay = np.array([_count_lost(parts.get(core, ()), chip, core) for core in used])
    here = np.arange(len(program.streams))
    if not stay.any() and not _find_cut(peers, chip, here):
        return None
    costs = _count_costs(used, parts, chip)
    costs[np.arange(len(used)), used] = stay
    places = here.copy()
    places[used] = assign_rows(costs + _count_hops(used, chip))
    _check_places(chip, used, parts, costs, places)
    idle, free = np.setdiff1d(here, used), np.setdiff1d(here, places[used])
    places[np.setdiff1d(idle, free)] = np.setdiff1d(free, idle)
    places = _avoid_links(chip, peers, used, costs, places)
    return None if (places == here).all() else places.tolist()


def _count_lost(parts: Sequence[CrossbarPart], chip: Chip, core: int) -> float:
    """Returns the cost of a core for some matrices, by the crossbars that suit each."""
    working = chip.list_crossbars(core)
    if core in chip.dead_cores or len(working) < len(parts):
        return _IMPOSSIBLE
    if len(parts) <= chip.count_whole_crossbars(core):
        return 0.0
    lost = np.array([[not _fits(part, chip, core, crossbar) for crossbar in working] for part in parts], np.float64)
    return _LOST * float(lost[np.arange(len(parts)), assign_rows(lost)].sum())


def _fits(part: CrossbarPart, chip: Chip, core: int, crossbar: int) -> bool:
    """Checks whether a crossbar has no dead line that a matrix needs, and that no spare column replaces."""
    layout, (rows, cols) = part.tables.layout, part.matrix.shape
    return all(
        chip.has_whole_lines(core, crossbar, array, rows, cols * layout.slices) for array in range(layout.arrays)
    )


def _count_costs(
    used: Sequence[int], parts: Mapping[int, Sequence[CrossbarPart]], chip: Chip
) -> npt.NDArray[np.float64]:
    """Returns [used cores, cores of the chip]: costs as `_count_lost`, at most, without a look at single matrices."""
    cores = range(chip.size.cores)
    working = np.array([len(chip.list_crossbars(core)) for core in cores])
    whole = np.array([chip.count_whole_crossbars(core) for core in cores])
    needed = np.array([len(parts.get(core, ())) for core in used])[:, None]
    lost = _LOST * np.maximum(needed - whole, 0)
    dead = np.array([core in chip.dead_cores for core in cores])
    return np.where(dead | (working < needed), _IMPOSSIBLE, lost)


def _count_hops(used: Sequence[int], chip: Chip) -> npt.NDArray[np.float64]:
    """Returns [used cores, cores of the chip]: 1 and the hops of each move, 0 for none. Without a mesh, 1."""
    cols = chip.size.mesh_columns or chip.size.cores
    row, col = np.divmod(np.arange(chip.size.cores), cols)
    old = np.array(used)[:, None]
    hops = np.abs(row - old // cols) + (np.abs(col - old % cols) if chip.size.mesh_columns else 0)
    return np.where(np.arange(chip.size.cores) == old, 0.0, 1.0 + hops)


def _check_places(
    chip: Chip,
    used: Sequence[int],
    parts: Mapping[int, Sequence[CrossbarPart]],
    costs: npt.NDArray[np.float64],
    places: Ints,
) -> None:
    """Raises `UserError` if a core of the program got one that cannot hold its matrices."""
    wrong = [core for row, core in enumerate(used) if costs[row, places[core]] >= _IMPOSSIBLE]
    if not wrong:
        return
    most = max(wrong, key=lambda core: len(parts.get(core, ())))
    needs = f"{len(parts.get(most, ()))} crossbars" if most in parts else "a core that works"
    raise UserError(
        f"--chip: chip {chip.file.name!r}: {len(chip.dead_cores)} of {chip.size.cores} cores are dead; the program "
        f"uses {len(used)}, and for {len(wrong)} of them there is no core with as many working crossbars (core {most} "
        f"needs {needs}); compile the model with --chip, which uses what works"
    )


def _find_peers(program: LoadedProgram) -> list[Ints]:
    """Returns the cores with which each core exchanges messages, in ascending order."""
    count = len(program.streams)
    found = [set[int]() for _ in range(count)]
    auxiliary = program.resident.auxiliary.values() if program.resident is not None else ()
    for streams in (program.streams, *auxiliary):
        for core, records in enumerate(streams):
            partners: list[int] = find_partners(records).tolist()
            for other in partners:
                found[core].add(other)
                found[other].add(core)
    return [np.array(sorted(others), np.int64) for others in found]


def _find_cut(peers: Sequence[Ints], chip: Chip, places: Ints) -> list[tuple[int, int]]:
    """Returns the pairs of cores of a program that dead links cut, if the cores are at these places."""
    if chip.cut_routes is None:
        return []
    source = np.repeat(np.arange(len(peers)), [len(others) for others in peers])
    to = np.concatenate([*peers, np.zeros(0, np.int64)])
    cut = chip.cut_routes.cut(places[source], places[to])
    return [(a, b) for a, b in zip(source[cut].tolist(), to[cut].tolist(), strict=True) if a < b]


def _avoid_links(
    chip: Chip, peers: Sequence[Ints], used: Sequence[int], costs: npt.NDArray[np.float64], places: Ints
) -> Ints:
    """Returns places between which no message crosses a dead link, and that hold the matrices no worse than `places`.

    Raises `UserError` if the search finds none.
    """
    if chip.cut_routes is None or not _find_cut(peers, chip, places):
        return places
    forbidden = np.zeros((len(places), len(places)), np.bool_)
    forbidden[used] = costs > costs[np.arange(len(used)), places[used]][:, None]
    every = np.arange(len(places))
    found = find_uncut_places(peers, chip.cut_routes.cut_pairs(every), forbidden, places)
    cut = _find_cut(peers, chip, found)
    if cut or forbidden[every, found].any():
        pairs = sum(len(others) for others in peers) // 2
        raise UserError(
            f"--chip: chip {chip.file.name!r}: {len(chip.file.dead_links)} links are dead; {pairs} pairs of cores "
            f"exchange messages, and at the best places that were tried, {max(1, len(cut))} pairs are cut; compile the "
            "model with --chip, which has other mappings to choose from"
        )
    return found
