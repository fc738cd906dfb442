"""Draws the defects of chips for studies. Each defect is a function of the seed and of its place."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.target.chip_file import ArrayDefects, ChipFile, ChipSize
from validator.crossbar import counter_rng

_MOST_DRAWN = 2**26
"""Most cells that are drawn to be stuck: their numbers fill the largest file that is read."""
_CELLS, _ROWS, _COLUMNS, _CONVERTERS, _CROSSBARS, _CORES, _LINKS = range(7)
"""Parts of the keys of random numbers: the kind of defect that is drawn."""
Uniforms = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DefectRates:
    """Probabilities of defects. `stuck`: of a cell; `on_share`: share of stuck cells that are on.

    `dead_rows`, `dead_columns`, `dead_converters`, `dead_crossbars`: of each. `dead_cores`, `dead_links`: numbers of
    cores, and of links between neighbours.
    """

    stuck: float = 0.0
    on_share: float = 0.5
    dead_rows: float = 0.0
    dead_columns: float = 0.0
    dead_converters: float = 0.0
    dead_crossbars: float = 0.0
    dead_cores: int = 0
    dead_links: int = 0

    def describe(self) -> str:
        """Returns the rates as text, without those that are 0."""
        names = [field.name for field in fields(self) if field.name != "on_share"]
        found = [f"{name} {getattr(self, name):g}" for name in names if getattr(self, name)]
        return ", ".join([*found, f"on_share {self.on_share:g}"] if self.stuck else found) or "no defects"


def draw_chip(
    size: ChipSize, rates: DefectRates, seed: int, places: Iterable[tuple[int, int]] | None = None
) -> ChipFile:
    """Returns a chip with random defects. Raises `UserError` for rates that the chip cannot have.

    `places`: pairs of core and crossbar whose arrays are drawn; None for all. What is drawn does not depend on it.
    """
    if rates.dead_cores > size.cores:
        raise UserError(f"{spell_option('dead_cores', rates.dead_cores)}: the chip has {size.cores} cores")
    if rates.dead_converters and not size.converters:
        raise UserError(f"{spell_option('dead_converters')}: the number of converters of an array is not known")
    links = size.list_links()
    if rates.dead_links > len(links):
        known = f"has {len(links)} links between neighbours" if size.mesh_columns else "has no mesh that is known"
        raise UserError(f"{spell_option('dead_links', rates.dead_links)}: the chip {known}")
    every = ((core, k) for core in range(size.cores) for k in range(size.all_crossbars))
    drawn = sorted(set(every if places is None else places))
    cells = len(drawn) * size.arrays * size.rows * size.all_columns
    if cells * rates.stuck > _MOST_DRAWN:
        raise UserError(
            f"{spell_option('stuck', rates.stuck)}: {cells * rates.stuck:.3g} stuck cells of {cells}; a file holds at "
            f"most {_MOST_DRAWN}"
        )
    found = (_draw_array(size, rates, seed, (*place, array)) for place in drawn for array in range(size.arrays))
    return ChipFile(
        version=1,
        name=f"drawn-{seed}",
        source=f"drawn from seed {seed}: {rates.describe()}",
        size=size,
        dead_cores=_draw_some(size.cores, rates.dead_cores, seed, _CORES),
        dead_links=tuple(links[k] for k in _draw_some(len(links), rates.dead_links, seed, _LINKS)),
        dead_crossbars=tuple(_draw_dead_crossbars(size, rates, seed)),
        arrays=tuple(array for array in found if array is not None),
    )


def _draw_some(count: int, chosen: int, seed: int, what: int) -> tuple[int, ...]:
    """Returns `chosen` of `count` numbers, in ascending order."""
    order = np.argsort(_uniforms(seed, (what,), count), kind="stable")
    return tuple(sorted(order[:chosen].tolist()))


def _draw_dead_crossbars(size: ChipSize, rates: DefectRates, seed: int) -> Iterator[tuple[int, int]]:
    if not rates.dead_crossbars:
        return
    drawn = _uniforms(seed, (_CROSSBARS,), size.cores * size.all_crossbars)
    for k in np.flatnonzero(drawn < rates.dead_crossbars).tolist():
        yield divmod(k, size.all_crossbars)


def _draw_array(size: ChipSize, rates: DefectRates, seed: int, place: tuple[int, int, int]) -> ArrayDefects | None:
    """Returns the defects of an array; None without any."""

    def below(what: int, count: int, rate: float) -> tuple[int, ...]:
        found = np.flatnonzero(_uniforms(seed, (what, *place), count) < rate) if rate else np.zeros(0, np.int64)
        return tuple(found.tolist())

    drawn = _uniforms(seed, (_CELLS, *place), size.rows * size.all_columns if rates.stuck else 0)
    on = rates.stuck * rates.on_share
    lists = {
        "rows": below(_ROWS, size.rows, rates.dead_rows),
        "columns": below(_COLUMNS, size.all_columns, rates.dead_columns),
        "converters": below(_CONVERTERS, size.converters, rates.dead_converters),
        "off": tuple(np.flatnonzero(drawn < rates.stuck - on).tolist()),
        "on": tuple(np.flatnonzero(drawn > 1 - on).tolist()),
    }
    if not any(lists.values()):
        return None
    core, crossbar, array = place
    return ArrayDefects(core=core, crossbar=crossbar, array=array, **lists)


def _uniforms(seed: int, key: tuple[int, ...], count: int) -> Uniforms:
    return counter_rng.draw_uniforms(counter_rng.make_key(seed, counter_rng.DEFECTS, *key), count)
