"""Rules on the defects of one chip: what a program uses that is dead. They run if there is a chip file."""

from collections.abc import Iterator, Sequence

import numpy as np

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
    """Matrices of a program without `repair.json` are in the working crossbars of their core in order, and take rows
    and columns from 0 on. Spare columns replace dead ones. What a repair lets a dead line cost is in `repair.json`.
    """
    chip = subject.defects
    if chip is None or subject.shapes is None or subject.repair is not None or subject.chip is None:
        return
    for core in _used_cores(subject):
        if core >= chip.size.cores or core in chip.dead_cores or core >= len(subject.shapes):
            continue
        free = iter(chip.list_crossbars(core))
        for (rows, cols), count in zip(subject.shapes[core] or (), subject.groups[core] or (), strict=False):
            crossbars = [k for k, _ in zip(free, range(count), strict=False)]
            yield from _dead_lines(chip, core, crossbars, rows, -(-cols // count))


def _dead_lines(chip: Chip, core: int, crossbars: Sequence[int], rows: int, cols: int) -> Iterator[RuleHit]:
    """Yields the crossbars that have dead lines among `rows` rows, or too few columns for `cols` weights."""
    for crossbar in crossbars:
        for array in range(chip.size.arrays):
            dead = chip.read_states(core, crossbar, array) == CellState.DEAD
            bad_rows = np.flatnonzero(dead.all(axis=1)[:rows])
            bad_columns = int(dead.all(axis=0).sum())
            if len(bad_rows):
                yield RuleHit(f"core {core}, crossbar {crossbar}: row {bad_rows[0]} is dead", core=core)
            if bad_columns > chip.size.spare_columns and cols:
                found = f"{bad_columns} columns are dead, {chip.size.spare_columns} spare"
                yield RuleHit(f"core {core}, crossbar {crossbar}: {found}", core=core)


def _places(subject: CheckSubject, core: int) -> list[tuple[int, ...]] | None:
    """Returns the crossbars of each array group of a core of a repaired program; None for other programs."""
    if subject.repair is None:
        return None
    return [place.crossbars for place in subject.repair.groups if place.core == core]
