"""Rules on array groups: their declaration and counts, the products that use them, and their matrices."""

from collections.abc import Iterator
from typing import cast

import numpy as np

from raptor.target.arch import Target
from raptor.target.isa import WIDTH_SETTERS
from validator.checks.findings import Indices, RuleHit, RuleTopic, Severity
from validator.checks.rule_registry import register_rule
from validator.checks.rule_subject import CheckSubject

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
TOPIC = RuleTopic.GROUPS
_PADDING = "nothing needs to change: these weights meet nothing but padding; --mapping rows places them on no crossbar"


def _target(subject: CheckSubject) -> Target | None:
    return subject.chip.target if subject.chip else None


def _dac_bits(subject: CheckSubject) -> int | None:
    return subject.chip.target.core.xbar.converters.dac_bits if subject.chip else None


@register_rule(
    "group-map",
    ERROR,
    TOPIC,
    "Array groups not declared as they should be",
    effect="pimsim-nn refuses to load the program (older versions take `group` for a number of crossbars)",
    advice="give config.json an array_group_map with an entry for every core: positive numbers of crossbars, or [] for "
    "a core without groups; group is then the index into this list",
)
def group_map(subject: CheckSubject) -> Iterator[RuleHit]:
    entries = subject.config.get("array_group_map")
    if not isinstance(entries, dict):
        yield RuleHit("array_group_map is missing")
        return
    named = cast(dict[str, object], entries)
    present = [core for core, there in enumerate(subject.instantiated) if there]
    missing = [core for core in present if not isinstance(named.get(f"core{core}"), list)]
    if missing:
        yield RuleHit(f"array_group_map has no list for {len(missing)} cores", core=missing[0], count=len(missing))
    for core in present:
        counts = named.get(f"core{core}")
        bad = [n for n in cast(list[object], counts) if not _is_count(n)] if isinstance(counts, list) else []
        if bad:
            yield RuleHit(f"array_group_map.core{core} has the count {bad[0]!r:.20}", core=core)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31


@register_rule(
    "group-range",
    ERROR,
    TOPIC,
    "Array group out of range",
    effect="pimsim-nn refuses to load the program",
    advice="group is the index into the core's list in array_group_map, from 0",
)
def group_range(subject: CheckSubject) -> Iterator[RuleHit]:
    s = subject.columns
    products = s.find_named("mvmul")
    counts = np.array([-1 if g is None else len(g) for g in subject.groups], np.int64)
    limit = counts[s.core[products]]
    group = s.c[products]
    at = products[(limit >= 0) & ((group < 0) | (group >= limit))]
    if len(at):
        core = s.core[at[0]]
        yield RuleHit(f"group {s.c[at[0]]}, but core {core} has {counts[core]}", at)


@register_rule(
    "group-unused",
    WARNING,
    TOPIC,
    "Array group never used",
    effect="its crossbars count against xbar_array_count and do nothing",
    advice="drop the group from array_group_map, or use it",
)
def group_unused(subject: CheckSubject) -> Iterator[RuleHit]:
    """A note in programs of RAPTOR: its mapping `raptor` also places weights that meet nothing but padding."""
    s, first = subject.columns, subject.group_starts
    products = _in_range(subject)
    used = np.zeros(int(first[-1]), np.bool_)
    used[first[s.core[products]] + s.c[products]] = True
    unused = np.flatnonzero(~used)
    if len(unused):
        cores = np.searchsorted(first, unused, side="right") - 1
        core, group = int(cores[0]), int(unused[0] - first[cores[0]])
        severity, advice = (NOTE, _PADDING) if subject.made_by_raptor else (None, None)
        fact = f"group {group} of core {core} has no mvmul"
        yield RuleHit(fact, core=core, count=len(unused), severity=severity, advice=advice)


def _in_range(subject: CheckSubject) -> Indices:
    """Returns the products whose array group exists."""
    s = subject.columns
    products = s.find_named("mvmul")
    counts = np.diff(subject.group_starts)[s.core[products]]
    return products[(s.c[products] >= 0) & (s.c[products] < counts)]


@register_rule(
    "group-capacity",
    ERROR,
    TOPIC,
    "More crossbars than a core has",
    effect="pimsim-nn refuses to load the program",
    advice="spread the groups over more cores, or raise matrix_config.xbar_array_count",
)
def group_capacity(subject: CheckSubject) -> Iterator[RuleHit]:
    target = _target(subject)
    if target is None:
        return
    sums = [sum(counts or ()) for counts in subject.groups]
    over = [core for core, total in enumerate(sums) if total > target.xbars_per_core]
    if over:
        fact = f"core {over[0]} takes {sums[over[0]]} crossbars, the chip has {target.xbars_per_core} a core"
        yield RuleHit(fact, core=over[0], count=len(over))


@register_rule(
    "group-count",
    ERROR,
    TOPIC,
    "Crossbars of a group do not match its matrix",
    effect="the simulator believes the count: with too few, the bytes and energy of columns that are there are not "
    "counted; with too many, those of columns that are not",
    advice="count = ceil(columns / floor(cell_precision * xbar columns / mbiw)), and at most xbar rows of rows a group",
)
def group_count(subject: CheckSubject) -> Iterator[RuleHit]:
    target, shapes = _target(subject), subject.shapes
    if target is None or shapes is None:
        return
    bits = _weight_bits(subject)
    for core, counts in enumerate(subject.groups):
        there = shapes[core] if core < len(shapes) else None
        for group, (count, shape) in enumerate(zip(counts or (), there or (), strict=False)):
            width = int(bits[int(subject.group_starts[core]) + group])
            fact, severity = _judge_count(target, count, shape, width)
            if fact:
                yield RuleHit(f"group {group} of core {core} {fact}", core=core, severity=severity)


def _judge_count(target: Target, count: int, shape: tuple[int, int], bits: int) -> tuple[str, Severity]:
    rows, cols = shape
    if rows > target.xbar_rows:
        return f"holds a matrix of {rows} rows, a crossbar has {target.xbar_rows}", ERROR
    outputs = target.cell_bits * target.xbar_cols // bits if bits > 0 else 0
    if outputs == 0:
        return "", ERROR
    needed = -(-cols // outputs)
    if count == needed:
        return "", ERROR
    return f"has {count} crossbars, its matrix of {cols} columns needs {needed}", ERROR if count < needed else WARNING


def _weight_bits(subject: CheckSubject) -> Indices:
    """Returns the widest mbiw of the products of each group, 0 for unused groups."""
    s, first = subject.columns, subject.group_starts
    products = _in_range(subject)
    bits = np.zeros(int(first[-1]), np.int64)
    np.maximum.at(bits, first[s.core[products]] + s.c[products], s.a[products])
    return bits


@register_rule(
    "mvmul-outputs",
    ERROR,
    TOPIC,
    "Weights wider than a crossbar row",
    effect="floor(cell_precision * xbar columns / mbiw) is 0: the product writes nothing",
    advice="use narrower weights, wider cells or wider crossbars",
)
def mvmul_outputs(subject: CheckSubject) -> Iterator[RuleHit]:
    target, s = _target(subject), subject.columns
    if target is None:
        return
    products = s.find_named("mvmul")
    at = products[s.a[products] > target.cell_bits * target.xbar_cols]
    if len(at):
        bits = target.cell_bits * target.xbar_cols
        yield RuleHit(f"mbiw={s.a[at[0]]}, but a row of cells holds {bits} bits", at)


@register_rule(
    "input-resolution",
    ERROR,
    TOPIC,
    "DAC resolution above the input width",
    effect="floor(ibiw / dac_resolution) is 0 cycles: a product costs almost no time and no energy",
    advice="lower matrix_config.dac_resolution to ibiw at most",
)
def input_resolution(subject: CheckSubject) -> Iterator[RuleHit]:
    dac_bits, s = _dac_bits(subject), subject.columns
    if dac_bits is None:
        return
    sets = s.find_named(*WIDTH_SETTERS)
    at = sets[(s.b[sets] > 0) & (s.b[sets] < dac_bits)]
    if len(at):
        yield RuleHit(f"dac_resolution {dac_bits} with inputs of {s.b[at[0]]} bits", at)


@register_rule(
    "input-rounding",
    Severity.NOTE,
    TOPIC,
    "Input width not a multiple of the DAC resolution",
    effect="the simulator rounds the number of input cycles down and charges for less than the hardware does",
    advice="choose a dac_resolution that divides ibiw",
)
def input_rounding(subject: CheckSubject) -> Iterator[RuleHit]:
    dac_bits, s = _dac_bits(subject), subject.columns
    if dac_bits is None or not len(products := s.find_named("mvmul")):
        return
    sets = s.find_named(*WIDTH_SETTERS)
    sets = sets[np.isin(s.core[sets], np.unique(s.core[products]))]
    at = sets[(s.b[sets] > dac_bits) & (s.b[sets] % dac_bits != 0)]
    if len(at):
        yield RuleHit(f"dac_resolution {dac_bits} with inputs of {s.b[at[0]]} bits", at)
