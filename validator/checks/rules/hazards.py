"""Rules for rob_size above 1: differences between the simulator's hazard check and the real memory accesses."""

from collections.abc import Iterator

import numpy as np

from raptor.target.opcode_tables import OPCODE_RULES, Bytes
from validator.checks.findings import Indices, RuleHit, RuleTopic, Severity, hits
from validator.checks.rule_registry import register_rule
from validator.checks.rule_subject import CheckSubject
from validator.checks.rules.memory_accesses import known_matrix_shapes

WARNING, NOTE = Severity.WARNING, Severity.NOTE
TOPIC = RuleTopic.HAZARDS

_WIDEST_WINDOW = 1024


def _faults(subject: CheckSubject) -> Bytes:
    """Returns the faults of the hazard kernel, computed once. With rob_size 1 there are none: nothing overlaps."""
    from validator.checks.check_kernels import find_hazards

    s = subject.columns
    faults: Bytes | None = subject.computed.get("_hazards")
    if faults is not None:
        return faults
    faults = np.zeros(len(s), np.uint8)
    if subject.rob_size > 1:
        find_hazards(
            s.starts, s.opcode, s.b, s.c, s.d, s.flag_column(), subject.trace.values, subject.trace.widths,
            OPCODE_RULES, known_matrix_shapes(subject), _simulated_shapes(subject), subject.group_starts,
            min(subject.rob_size, _WIDEST_WINDOW), faults,
        )  # fmt: skip
    subject.computed["_hazards"] = faults
    return faults


def _simulated_shapes(subject: CheckSubject) -> Indices:
    """Returns the rows and columns that the simulator assumes for a product of each group: whole crossbars."""
    shapes = np.ones((int(subject.group_starts[-1]), 2), np.int64)
    if subject.chip is None:
        return shapes
    target = subject.chip.target
    s, first = subject.columns, subject.group_starts
    products = s.find_named("mvmul")
    inside = (s.c[products] >= 0) & (s.c[products] < np.diff(first)[s.core[products]])
    products = products[inside]
    bits = np.ones(len(shapes), np.int64)
    bits[first[s.core[products]] + s.c[products]] = np.maximum(s.a[products], 1)
    counts = np.array([n for g in subject.groups for n in g or ()], np.int64)
    shapes[:, 0] = target.xbar_rows
    shapes[:, 1] = target.cell_bits * target.xbar_cols // bits * counts
    return shapes


def _where(subject: CheckSubject, fault: int) -> Indices:
    return np.flatnonzero(_faults(subject) & fault)


@register_rule(
    "hazard-unseen",
    WARNING,
    TOPIC,
    "Dependency that the hazard check does not see",
    effect="ld, st, vmv, the tail of an lldi and an lmv without size report other addresses than they use: the "
    "instruction may start before the data are there, and the time is too short",
    advice="pass the local address of ld in offset_value with offset_select 1, that of st in offset_value with bit 1 "
    "of the value set; use lmv instead of vmv and give it len and size; or set rob_size 1",
)
def hazard_unseen(subject: CheckSubject) -> Iterator[RuleHit]:
    from validator.checks.check_kernels import UNSEEN

    yield from hits("", _where(subject, UNSEEN))


@register_rule(
    "hazard-order",
    WARNING,
    TOPIC,
    "Two writes of the same bytes in flight",
    effect="write after write is not checked: the two overlap in time and on a chip the first could come last",
    advice="write to another buffer, or read the first result before",
)
def hazard_order(subject: CheckSubject) -> Iterator[RuleHit]:
    from validator.checks.check_kernels import LOST_ORDER

    yield from hits("", _where(subject, LOST_ORDER))


@register_rule(
    "hazard-adjacent",
    NOTE,
    TOPIC,
    "Adjacent buffers",
    effect="ranges are compared with both ends inclusive: neighbours that share no byte wait for each other, and the "
    "time is too long",
    advice="leave at least one byte between buffers that are used at the same time",
)
def hazard_adjacent(subject: CheckSubject) -> Iterator[RuleHit]:
    from validator.checks.check_kernels import ADJACENT

    yield from hits("", _where(subject, ADJACENT))


@register_rule(
    "hazard-false",
    NOTE,
    TOPIC,
    "Conflict that is none",
    effect="ld and st are taken to touch the bottom of the local memory, products whole crossbars, strided "
    "instructions contiguous bytes: what shares no byte waits, and the time is too long",
    advice="keep hot buffers away from address 0; pass the local address of ld and st in offset_value (docs of "
    "hazard-unseen)",
)
def hazard_false(subject: CheckSubject) -> Iterator[RuleHit]:
    from validator.checks.check_kernels import BOTTOM

    yield from hits("", _where(subject, BOTTOM))


@register_rule(
    "lmv-size",
    WARNING,
    TOPIC,
    "lmv without size",
    effect="the hazard check takes its ranges from size, which is 0: dependencies through the copy go unnoticed",
    advice="give lmv both len and size; .pim has no place for size, so use JSON",
)
def lmv_size(subject: CheckSubject) -> Iterator[RuleHit]:
    s = subject.columns
    at = (
        np.flatnonzero(s.named_mask("lmv") & (s.flag_column() & 1 == 1))
        if subject.rob_size > 1
        else np.zeros(0, np.int64)
    )
    yield from hits("", at)


@register_rule(
    "send-registers",
    WARNING,
    TOPIC,
    "send with two addresses",
    effect="the transfer takes its data from rd, the hazard check looks at rs1",
    advice="give the same address in rd and rs1",
)
def send_registers(subject: CheckSubject) -> Iterator[RuleHit]:
    s, values = subject.columns, subject.trace.values
    at = s.find_named("send")
    at = at[values[at, 0] != values[at, 1]]
    if len(at):
        yield RuleHit(f"r{s.rd[at[0]]} holds {values[at[0], 0]}, r{s.rs1[at[0]]} holds {values[at[0], 1]}", at)
