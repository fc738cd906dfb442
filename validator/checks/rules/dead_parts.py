"""Rules on the defects of one chip: what a program uses that is dead. They run if there is a chip file."""

from collections.abc import Iterator
from typing import Any

import networkx as nx
import numpy as np

from raptor.target.arch import Target
from raptor.target.chip_file import CellState, Chip
from validator.checks.findings import RuleHit, RuleTopic, Severity
from validator.checks.rule_registry import register_rule
from validator.checks.rule_subject import CheckSubject

ERROR, TOPIC = Severity.ERROR, RuleTopic.DEFECTS
_COMPILE = "compile the model with --chip, which avoids what is dead"


def _used_cores(subject: CheckSubject) -> list[int]:
    """Returns the cores that have instructions or array groups."""
    groups = zip(subject.streams, subject.groups, strict=True)
    return [core for core, (records, held) in enumerate(groups) if len(records) or held]


@register_rule(
    "chip-size",
    ERROR,
    TOPIC,
    "Chip file of another kind of chip, or of another chip",
    effect="the simulator knows no defects; the chip may not have what the program uses",
    advice="give the file of the chip that the program is for, with --chip",
)
def chip_size(subject: CheckSubject) -> Iterator[RuleHit]:
    """The chip has the cores, crossbars, rows and columns of the architecture. A repaired program is for one chip."""
    chip, repair = subject.defects, subject.repair
    if chip is None:
        return
    if subject.core_count > chip.size.cores:
        yield RuleHit(f"the program has {subject.core_count} cores, the chip {chip.size.cores}")
    if subject.chip is not None:
        target, size = subject.chip.target, chip.size
        wanted = (target.core_count, target.xbars_per_core, target.xbar_rows, target.xbar_cols)
        if wanted != (size.cores, size.crossbars, size.rows, size.columns):
            yield RuleHit("the architecture has other numbers of cores, crossbars, rows or columns")
        if chip.file.dead_links and target.mesh_cols != size.mesh_columns:
            yield RuleHit(f"the mesh has rows of {target.mesh_cols} cores, the chip's of {size.mesh_columns}")
    if repair is not None and repair.chip_sha256 != chip.digest:
        yield RuleHit(f"the program is repaired for chip {repair.chip!r}, not for this file of {chip.file.name!r}")


@register_rule(
    "dead-core",
    ERROR,
    TOPIC,
    "A dead core is used",
    effect="the simulator runs it, the chip cannot",
    advice=_COMPILE,
)
def dead_core(subject: CheckSubject) -> Iterator[RuleHit]:
    if subject.defects is not None:
        for core in _used_cores(subject):
            if core in subject.defects.dead_cores:
                yield RuleHit(f"core {core} is dead", core=core)


@register_rule(
    "dead-link",
    ERROR,
    TOPIC,
    "A message over a dead link",
    effect="the simulator has no links, and delivers it",
    advice=f"{_COMPILE}, or repair the program, which moves cores",
)
def dead_link(subject: CheckSubject) -> Iterator[RuleHit]:
    """A message goes along the row of its sender, then along the column of its receiver. A `recv` answers the `send`
    on a route of its own, so both routes of the two cores must work; those of a `sync`, too.
    """
    routes = subject.defects.cut_routes if subject.defects is not None else None
    if routes is None:
        return
    s, count = subject.columns, subject.defects.size.cores if subject.defects is not None else 0
    at = s.find_named("send", "recv", "sync")
    at = at[(s.a[at] >= 0) & (s.a[at] < count) & (s.core[at] < count)]
    source, to = s.core[at].astype(np.int64), s.a[at].astype(np.int64)
    cut = np.flatnonzero(routes.cut(source, to))
    pairs = np.unique(source[cut] * count + to[cut], return_index=True)[1]
    for k in cut[np.sort(pairs)].tolist():
        mine = np.flatnonzero((source == source[k]) & (to == to[k]))
        yield RuleHit(f"messages between cores {source[k]} and {to[k]} cross a dead link", at[mine])


@register_rule(
    "dead-crossbar",
    ERROR,
    TOPIC,
    "More crossbars than work, or a dead one",
    effect="the simulator counts crossbars that the chip does not have",
    advice=_COMPILE,
)
def dead_crossbar(subject: CheckSubject) -> Iterator[RuleHit]:
    """A program without `repair.json` may use any working crossbars of a core; a repaired one names them."""
    chip = subject.defects
    if chip is None:
        return
    for core in _used_cores(subject):
        if core >= chip.size.cores or core in chip.dead_cores:
            continue
        working, places = chip.list_crossbars(core), _places(subject, core)
        needed = sum(subject.groups[core] or ())
        if needed > len(working):
            yield RuleHit(f"core {core} uses {needed} crossbars, {len(working)} work", core=core)
        named = [k for held in places or () for k in held]
        for crossbar in sorted(set(named) - set(working)):
            yield RuleHit(f"core {core} uses crossbar {crossbar}, which is dead or not there", core=core)
        if len(set(named)) != len(named):
            yield RuleHit(f"core {core} has two matrices in one crossbar", core=core)


@register_rule(
    "dead-line",
    ERROR,
    TOPIC,
    "A dead row or column of a crossbar is used",
    effect="the simulator knows no rows and columns; what the chip holds there adds nothing to any sum",
    advice="compile the model with --chip, which avoids such crossbars, or repair the program, which makes up for them",
)
def dead_line(subject: CheckSubject) -> Iterator[RuleHit]:
    """A matrix may be in any working crossbar of its core. It takes rows and columns of cells from 0 on, and spare
    columns replace dead ones. The rule finds cores whose matrices have no such places; what a repair makes of dead
    lines is in `repair.json`, so repaired programs have no finding.
    """
    chip = subject.defects
    if chip is None or subject.shapes is None or subject.repair is not None or subject.chip is None:
        return
    for core in _used_cores(subject):
        if core >= chip.size.cores or core in chip.dead_cores or core >= len(subject.shapes):
            continue
        parts, working = list(_list_parts(subject, subject.chip.target, core)), chip.list_crossbars(core)
        if len(parts) > len(working):
            continue  # `dead-crossbar`
        graphs: Any = nx
        fits = graphs.Graph()
        fits.add_nodes_from(("part", i) for i in range(len(parts)))
        fits.add_edges_from(
            (("part", i), k) for i, part in enumerate(parts) for k in working if _has_room(chip, core, k, *part)
        )
        placed = graphs.bipartite.maximum_matching(fits, [("part", i) for i in range(len(parts))])
        missing = sum(("part", i) not in placed for i in range(len(parts)))
        if missing:
            found = f"core {core}: for {missing} of its {len(parts)} crossbars there is none without dead lines"
            yield RuleHit(found, core=core)


def _list_parts(subject: CheckSubject, target: Target, core: int) -> Iterator[tuple[int, int]]:
    """Yields rows and columns of cells that each crossbar of a core needs, group by group."""
    s = subject.columns
    products = s.find_named("mvmul")
    mine = products[s.core[products] == core]
    shapes = (subject.shapes or ())[core] or ()
    for group, ((rows, cols), count) in enumerate(zip(shapes, subject.groups[core] or (), strict=False)):
        bits = int(s.a[mine[s.c[mine] == group]].max(initial=0)) or target.widths.weights
        cells = -(-cols // count) * -(-bits // target.cell_bits)
        yield from [(rows, min(cells, target.xbar_cols))] * count


def _has_room(chip: Chip, core: int, crossbar: int, rows: int, columns: int) -> bool:
    """Checks whether a crossbar has no dead line among its first rows and columns that no spare column replaces."""
    for array in range(chip.size.arrays):
        dead = chip.read_states(core, crossbar, array) == CellState.DEAD
        lines = dead.all(axis=0)
        spares = chip.size.spare_columns - int(lines[chip.size.columns :].sum())
        if dead.all(axis=1)[:rows].any() or int(lines[:columns].sum()) > spares:
            return False
    return True


def _places(subject: CheckSubject, core: int) -> list[tuple[int, ...]] | None:
    """Returns the crossbars of each array group of a core of a repaired program; None for other programs."""
    if subject.repair is None:
        return None
    return [place.crossbars for place in subject.repair.groups if place.core == core]
