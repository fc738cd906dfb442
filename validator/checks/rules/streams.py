"""Rules on the instructions of one stream: widths, ends, registers, operands."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from raptor.target.computed_loads import ComputedLoadError
from raptor.target.isa import (
    INSTRUCTIONS,
    INT32_MAX,
    OPCODE,
    REGISTER_COUNT,
    WIDTH_SETTERS,
)
from raptor.target.opcode_tables import (
    HAS_OFFSET,
    IS_SIZED,
    NEEDS_WIDTH,
    NO_REGISTER,
    PAIR,
    REGISTER_SLOTS,
    ROLES,
    SCALAR,
    UNIT,
    USE,
)
from validator.checks.findings import Indices, RuleHit, RuleTopic, Severity, hits
from validator.checks.instruction_table import Bytes, Column, instruction_spec, opcode_mask
from validator.checks.json_faults import OFFSET_VALUE
from validator.checks.rule_registry import register_rule
from validator.checks.rule_subject import CheckSubject
from validator.program.lookup_bounds import find_row_counts

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
TOPIC = RuleTopic.STREAMS

_OPERAND = {"rd": "rd", "rs1": "rs1", "a": "rs2"}
_EXTENSIONS = opcode_mask(*(i.name for i in INSTRUCTIONS if i.extension))
_SELF_SOURCE = ("sadd", "ssub", "smul", "saddi", "smuli")
_SIZED = {i.opcode: o.name for i in INSTRUCTIONS for o in i.operands if o.slot == "d"}


def _by_op(subject: CheckSubject, at: Indices) -> Iterator[tuple[str, Indices]]:
    """Yields the instructions `at`, grouped by name."""
    found = subject.columns.opcode[at]
    for opcode in np.unique(found):
        yield instruction_spec(int(opcode)).name, at[found == opcode]


@register_rule(
    "width-unset",
    ERROR,
    TOPIC,
    "Bit width never set before a matrix or vector instruction",
    effect="until its first setbw a core counts 0 bytes an element: a product takes about a hundredth of its time and "
    "no energy, a vector instruction neither reads nor writes",
    advice="start the stream of every core that has matrix or vector instructions with setbw; one on another core "
    "does not help",
)
def width_unset(subject: CheckSubject) -> Iterator[RuleHit]:
    """Per core: everything that needs a width before the first setbw."""
    s = subject.columns
    needs = s.look_up_opcodes(NEEDS_WIDTH)
    sets = s.find_named(*WIDTH_SETTERS)
    for first in np.unique(s.core[sets], return_index=True)[1].tolist():
        needs[sets[first] : s.starts[s.core[sets[first]] + 1]] = False
    at = np.flatnonzero(needs)
    yield from hits(f"no setbw before {len(at)} matrix and vector instructions", at)


@register_rule(
    "width-range",
    ERROR,
    TOPIC,
    "Element width that makes no sense",
    effect="the simulator takes any number: 0 bits make work free, others times and energies of no real machine",
    advice="give setbw an ibiw and obiw of 1 to 32 bits",
)
def width_range(subject: CheckSubject) -> Iterator[RuleHit]:
    s = subject.columns
    sets = s.find_named(*WIDTH_SETTERS)
    for name, column in (("ibiw", s.b), ("obiw", s.c)):
        at = sets[(column[sets] < 1) | (column[sets] > 32)]
        if len(at):
            yield RuleHit(f"{name}={column[at[0]]}", at)


@register_rule(
    "weight-width",
    ERROR,
    TOPIC,
    "Weight width that makes no sense",
    effect="mbiw 0 ends the simulator with a division by zero (SIGFPE, no message); others give a nonsense output size",
    advice="give mvmul the bits of a weight, 1 to 32, in mbiw",
)
def weight_width(subject: CheckSubject) -> Iterator[RuleHit]:
    s = subject.columns
    products = s.find_named("mvmul")
    at = products[(s.a[products] < 1) | (s.a[products] > 32)]
    if len(at):
        yield RuleHit(f"mbiw={s.a[at[0]]}", at)


@register_rule(
    "stream-end",
    ERROR,
    TOPIC,
    "Stream that cannot finish: its last instruction is a scalar or setbw",
    effect="in latency mode the core never counts as finished and the run ends by its timeout (exit 1)",
    advice="drop what follows the last vector, matrix or transfer instruction",
)
def stream_end(subject: CheckSubject) -> Iterator[RuleHit]:
    last = _last(subject)
    s = subject.columns
    scalar_only = np.zeros(s.core_count, np.bool_)
    scalar_only[_scalar_only(subject)] = True
    at = last[(UNIT[s.opcode[last]] == SCALAR) & ~scalar_only[s.core[last]] & (s.opcode[last] != OPCODE["nop"])]
    yield from hits("", at)


@register_rule(
    "scalar-only",
    ERROR,
    TOPIC,
    "Stream of scalar instructions only",
    effect="in latency mode the core never counts as finished and the run ends by its timeout (exit 1)",
    advice="write an empty stream for a core without work",
)
def scalar_only(subject: CheckSubject) -> Iterator[RuleHit]:
    s = subject.columns
    cores = _scalar_only(subject)
    at = s.starts[:-1][cores]
    yield from hits("", at[s.opcode[at] != OPCODE["nop"]])


def _last(subject: CheckSubject) -> Indices:
    s = subject.columns
    return (s.starts[1:] - 1)[s.stream_lengths() > 0]


def _scalar_only(subject: CheckSubject) -> Indices:
    """Returns the cores that have instructions, all of them scalar."""
    s = subject.columns
    scalar = s.look_up_opcodes(UNIT == SCALAR)
    only = [scalar[first:end].all() for first, end in pairwise(s.starts.tolist())]
    return np.flatnonzero((s.stream_lengths() > 0) & only)


@register_rule(
    "nop",
    ERROR,
    TOPIC,
    "nop",
    effect="a nop enters the reorder buffer and never leaves it: the core hangs there, or the simulator crashes "
    "(SIGSEGV)",
    advice="drop it; there is nothing to wait for in this machine",
)
def nop(subject: CheckSubject) -> Iterator[RuleHit]:
    yield from hits("", subject.columns.find_named("nop"))


@register_rule(
    "extension-op",
    ERROR,
    TOPIC,
    "Instruction that pimsim-nn does not have",
    effect="pimsim-nn refuses to load the program",
    advice="compile with --isa base, which lists the nodes that need such instructions; vrequant: with --requant exact",
)
def extension_op(subject: CheckSubject) -> Iterator[RuleHit]:
    """Only a note if the compiler's user allowed extensions: the validator executes them."""
    s = subject.columns
    for name, at in _by_op(subject, np.flatnonzero(s.look_up_opcodes(_EXTENSIONS))):
        yield RuleHit(f"{name} is not in the published set", at, severity=NOTE if subject.allows_extensions else None)


@register_rule(
    "scalar-self-source",
    ERROR,
    TOPIC,
    "Scalar instruction that overwrites its own source",
    effect="it is executed again in every cycle in which decode is stalled: r1 = r1 + 1 has been seen to add 302",
    advice="write the result to another register",
)
def scalar_self_source(subject: CheckSubject) -> Iterator[RuleHit]:
    s = subject.columns
    same = s.named_mask(*_SELF_SOURCE) & (s.rd == s.rs1)
    same |= s.named_mask("sadd", "ssub", "smul") & (s.rd == s.a)
    for name, at in _by_op(subject, np.flatnonzero(same)):
        yield RuleHit(f"{name} reads and writes r{s.rd[at[0]]}", at)


@register_rule(
    "sld",
    ERROR,
    TOPIC,
    "Load of a register from memory",
    effect="sld loads nothing: the simulator has no data, leaves rd as it is and sets r0 to 0",
    advice="compute the value with sldi; or use it for the global address of an ld only, as sld, smuli, saddi, ld, and "
    "name the table of the rows loaded in memory.json",
)
def sld(subject: CheckSubject) -> Iterator[RuleHit]:
    """Lookups in a table that memory.json names are accepted: their time does not depend on the address."""
    s = subject.columns
    tables = subject.memory.tables if subject.memory else ()
    cores: list[int] = np.unique(s.core[s.find_named("sld")]).tolist()
    for core in cores:
        try:
            find_row_counts(s.streams[core], tables)
        except ComputedLoadError as e:
            yield RuleHit(e.reason if tables else "", np.array([s.starts[core] + e.pc]))


@register_rule(
    "register-unset",
    WARNING,
    TOPIC,
    "Register used before written",
    effect="the simulator starts all registers at 0, real hardware need not; the address is then 0",
    advice="write the register with sldi first",
)
def register_unset(subject: CheckSubject) -> Iterator[RuleHit]:
    unset = subject.trace.unset_registers
    for slot, field in enumerate(REGISTER_SLOTS):
        for name, at in _by_op(subject, np.flatnonzero(unset & (1 << slot))):
            register = int(_column(subject, field)[at[0]])
            paired = ROLES[OPCODE[name], slot] == PAIR
            what = f"r{register} and r{register + 1}" if paired else f"r{register}"
            which = "at least one of which" if paired else "which"
            yield RuleHit(f"{name} reads {what} ({_OPERAND[field]}), {which} nothing has written", at)


def _column(subject: CheckSubject, slot: str) -> Column | Bytes:
    return {"rd": subject.columns.rd, "rs1": subject.columns.rs1, "a": subject.columns.a}[slot]


@register_rule(
    "register-range",
    ERROR,
    TOPIC,
    "Register that does not exist",
    effect="there are 32 registers and no check: another variable of the simulator is read or overwritten, or it "
    "crashes",
    advice="use registers 0 to 31",
)
def register_range(subject: CheckSubject) -> Iterator[RuleHit]:
    s = subject.columns
    for slot, field in enumerate(REGISTER_SLOTS):
        column = _column(subject, field)
        used = s.look_up_opcodes(ROLES[:, slot] != NO_REGISTER)
        for name, at in _by_op(subject, np.flatnonzero(used & ((column < 0) | (column >= REGISTER_COUNT)))):
            yield RuleHit(f"{name} names register {column[at[0]]} as {_OPERAND[field]}", at)


@register_rule(
    "register-pair",
    WARNING,
    TOPIC,
    "Pair of registers that is not a pair",
    effect="a global address takes an even register (high word) and the next one (low word); the simulator takes any, "
    "and 31 reads beyond the last register",
    advice="put the high word in an even register below 31 and the low word in the next one",
)
def register_pair(subject: CheckSubject) -> Iterator[RuleHit]:
    s = subject.columns
    for slot, field in enumerate(REGISTER_SLOTS):
        column = _column(subject, field)
        pairs = np.flatnonzero(s.look_up_opcodes(ROLES[:, slot] == PAIR))
        odd = pairs[column[pairs] % 2 == 1]
        for beyond in (True, False):
            where = odd[(column[odd] == REGISTER_COUNT - 1) == beyond]
            for name, at in _by_op(subject, where):
                yield RuleHit(f"{name} takes the pair from r{column[at[0]]}", at, severity=ERROR if beyond else None)


@register_rule(
    "offset-misread",
    WARNING,
    TOPIC,
    "Offset that the simulator misreads",
    effect="it adds offset_value to rs1 if bit 1 of the *value* is set and to rs2 if bit 2 is, whatever offset_select "
    "says: the hazard check sees another address",
    advice="add the offset to the register with sldi and leave offset_value 0",
)
def offset_misread(subject: CheckSubject) -> Iterator[RuleHit]:
    """ld and st are left to the hazard rules, because an offset in them avoids another fault of the simulator."""
    s = subject.columns
    able = np.flatnonzero(s.look_up_opcodes(HAS_OFFSET & ~opcode_mask("ld", "st", "vmv")) & (s.c != 0))
    wrong = np.zeros(len(able), np.bool_)
    for slot, bit in ((1, 2), (2, 4)):
        wrong |= (ROLES[s.opcode[able], slot] == USE) & ((s.b[able] & bit) != (s.c[able] & bit))
    for name, at in _by_op(subject, able[wrong]):
        yield RuleHit(f"{name} with offset_select={s.b[at[0]]}, offset_value={s.c[at[0]]}", at)


@register_rule(
    "offset-ignored",
    WARNING,
    TOPIC,
    "Offset that the simulator ignores",
    effect="mvmul and vmv have no offset in the simulator: the register's address alone counts",
    advice="add the offset to the register with sldi",
)
def offset_ignored(subject: CheckSubject) -> Iterator[RuleHit]:
    s = subject.columns
    yield from hits("vmv with an offset", np.flatnonzero(s.named_mask("vmv") & (s.c != 0)))
    for core, faults in subject.text.items():
        first = int(s.starts[core])
        given = np.flatnonzero(faults.odd & OFFSET_VALUE) + first
        given = given[s.opcode[given] == OPCODE["mvmul"]]
        if len(given):
            yield RuleHit("mvmul with an offset", given)


@register_rule(
    "size-range",
    ERROR,
    TOPIC,
    "Length or size that is negative or zero",
    effect="a negative one hangs the core or moves nothing; with 0 nothing is moved, in a few cycles",
    advice="give the number of elements (vector instructions) or bytes (transfers), at least 1",
)
def size_range(subject: CheckSubject) -> Iterator[RuleHit]:
    s = subject.columns
    sized = s.look_up_opcodes(IS_SIZED)
    for severity, wrong in ((ERROR, s.d < 0), (WARNING, s.d == 0)):
        for name, at in _by_op(subject, np.flatnonzero(sized & wrong)):
            yield RuleHit(f"{name} with {_SIZED[OPCODE[name]]}={s.d[at[0]]}", at, severity=severity)
    at = np.flatnonzero(s.named_mask("lldi") & (s.d == INT32_MAX))
    yield from hits(f"lldi of {INT32_MAX} bytes", at)


@register_rule(
    "throughput-single",
    WARNING,
    TOPIC,
    "Stream of one instruction in throughput mode",
    effect="such a core runs its stream once and stops, so the rounds counted are 1 at most",
    advice="use latency mode, or repeat the instruction",
)
def throughput_single(subject: CheckSubject) -> Iterator[RuleHit]:
    if subject.chip is None or subject.chip.target.simulator.is_latency_mode:
        return
    s = subject.columns
    yield from hits("", s.starts[:-1][s.stream_lengths() == 1])
