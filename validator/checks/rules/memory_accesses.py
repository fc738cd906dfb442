"""Rules on addresses: beyond a memory, in another buffer, or of bytes that were never written."""

from collections.abc import Iterator

import numpy as np

from raptor.target.opcode_tables import DEFINE, OPCODE_RULES, Bytes, RuleColumn
from validator.checks.findings import Indices, RuleHit, RuleTopic, Severity, hits
from validator.checks.rule_registry import register_rule
from validator.checks.rule_subject import CheckSubject
from validator.program.coding import element_bytes

ERROR, WARNING = Severity.ERROR, Severity.WARNING
TOPIC = RuleTopic.MEMORY

_DEFAULT_BYTES = 2**20
_REMEMBERED_BYTES = 2**24
_LOCAL = "chip_config.core_config.local_memory_config.memory_size"
_GLOBAL = "chip_config.global_memory_config.memory_size"


def known_matrix_shapes(subject: CheckSubject) -> Indices:
    """Returns rows and columns of the matrix of every group, 1 x 1 if they are not known."""
    total = int(subject.group_starts[-1])
    shapes = np.ones((total, 2), np.int64)
    for core, known in enumerate(subject.shapes or ()):
        if known and core < subject.core_count:
            first, last = subject.group_starts[core], subject.group_starts[core + 1]
            count = min(len(known), int(last - first))
            shapes[first : first + count] = np.reshape(known[:count], (count, 2))
    return shapes


def _most_columns(subject: CheckSubject) -> Indices:
    """Returns the columns of all crossbars of each group; `ANY_COLUMNS` if the chip is unknown."""
    from validator.checks.check_kernels import ANY_COLUMNS

    counts = np.array([n for g in subject.groups for n in g or ()], np.int64)
    if subject.chip is None:
        return np.full(len(counts), ANY_COLUMNS, np.int64)
    return counts * subject.chip.target.xbar_cols


def _limit(subject: CheckSubject, name: str) -> tuple[int, bool]:
    """Returns the bytes of a memory, and true if the architecture file sets them, not pimsim-nn's default."""
    if subject.chip is None:
        return _DEFAULT_BYTES, False
    target = subject.chip.target
    memory = target.core.memory if name == _LOCAL else target.memory
    # NOTE: written files often name every field, so the default counts as not named.
    return memory.size_bytes, memory.size_given and memory.size_bytes != _DEFAULT_BYTES


def _accesses(subject: CheckSubject) -> Bytes:
    """Returns the faults of local memory accesses, computed once."""
    from validator.checks.check_kernels import check_accesses

    known: Bytes | None = subject.computed.get("_accesses")
    if known is not None:
        return known
    s, trace = subject.columns, subject.trace
    used = np.full(subject.core_count, -1, np.int64)
    if subject.memory is not None:
        count = min(subject.core_count, len(subject.memory.local_bytes))
        used[:count] = subject.memory.local_bytes[:count]
    faults = np.zeros(len(s), np.uint8)
    limit, _ = _limit(subject, _LOCAL)
    check_accesses(
        s.starts, s.opcode, s.b, s.c, s.d, trace.values, trace.widths, OPCODE_RULES, known_matrix_shapes(subject),
        _most_columns(subject), subject.group_starts, limit, used, *_resident(subject),
        np.zeros(_REMEMBERED_BYTES, np.uint8), faults,
    )  # fmt: skip
    subject.computed["_accesses"] = faults
    return faults


def _resident(subject: CheckSubject) -> tuple[Indices, Indices]:
    """Returns the first span of each core and [spans, 2]: first byte and end of what keeps its value from before."""
    by_core = {kept.core: kept.spans for kept in (subject.resident.cores if subject.resident else ())}
    spans = [(low, low + size) for core in range(subject.core_count) for low, size in by_core.get(core, ())]
    counts = [len(by_core.get(core, ())) for core in range(subject.core_count)]
    return np.cumsum([0, *counts]).astype(np.int64), np.array(spans, np.int64).reshape(-1, 2)


@register_rule(
    "local-negative",
    ERROR,
    TOPIC,
    "Negative local address",
    effect="the simulator moves no data and does not notice; a chip would",
    advice="addresses are int32: keep them, with the sizes, below 2^31",
)
def local_negative(subject: CheckSubject) -> Iterator[RuleHit]:
    from validator.checks.check_kernels import BELOW_ZERO

    yield from hits("", np.flatnonzero(_accesses(subject) & BELOW_ZERO))


@register_rule(
    "local-range",
    ERROR,
    TOPIC,
    "Address beyond the local memory",
    effect="the simulator does not enforce memory_size: the program runs, on a chip it could not",
    advice="use less local memory (more cores, smaller bands), or raise local_memory_config.memory_size",
)
def local_range(subject: CheckSubject) -> Iterator[RuleHit]:
    """A warning if the size is only the simulator's default."""
    from validator.checks.check_kernels import BEYOND_MEMORY

    limit, named = _limit(subject, _LOCAL)
    at = np.flatnonzero(_accesses(subject) & BEYOND_MEMORY)
    if len(at):
        kind = "" if named else " (the simulator's default)"
        yield RuleHit(f"beyond {limit} bytes{kind}", at, severity=ERROR if named else WARNING)


@register_rule(
    "local-buffers",
    ERROR,
    TOPIC,
    "Address beyond the buffers of the core",
    effect="the simulator does not notice; memory.json says that the core uses less, so the address is wrong",
    advice="report it: the compiler's addresses and its memory map disagree",
)
def local_buffers(subject: CheckSubject) -> Iterator[RuleHit]:
    from validator.checks.check_kernels import BEYOND_USED

    at = np.flatnonzero(_accesses(subject) & BEYOND_USED)
    if len(at):
        core = int(subject.columns.core[at[0]])
        used = subject.memory.local_bytes[core] if subject.memory else 0
        yield RuleHit(f"beyond the {used} bytes of core {core} in {'memory.json'}", at)


@register_rule(
    "local-unwritten",
    WARNING,
    TOPIC,
    "Read of local memory that nothing has written",
    effect="the simulator moves no data and does not notice; the values are whatever was there",
    advice="check the address: it may point into another buffer; or fill the bytes with lldi first",
)
def local_unwritten(subject: CheckSubject) -> Iterator[RuleHit]:
    from validator.checks.check_kernels import UNWRITTEN

    s = subject.columns
    at = np.flatnonzero(_accesses(subject) & UNWRITTEN)
    at = at[~subject.trace.unset_registers[at].astype(np.bool_)]
    yield from hits(f"{len(np.unique(s.opcode[at]))} kinds of instruction read unwritten bytes", at)


def _global(subject: CheckSubject) -> tuple[Indices, Indices, Indices]:
    """Returns index, first byte and end (the byte after the last) of every ld and st."""
    s, values = subject.columns, subject.trace.values
    at = s.find_named("ld", "st")
    store = s.named_mask("st")[at]
    pair = np.where(store, s.rd[at], s.rs1[at]).astype(np.int64)
    high = np.asarray(np.where(store, values[at, 0], values[at, 1]), np.int64)
    low = _next_register(subject, at, pair)
    address = (high << 32) | (low.astype(np.int64) & 0xFFFFFFFF)
    return at, address, address + s.d[at]


def _next_register(subject: CheckSubject, at: Indices, pair: Indices) -> Indices:
    """Returns the last value written to the register after `pair`, before each of the instructions `at`."""
    s = subject.columns
    result = np.zeros(len(at), np.int64)
    defines = s.look_up_opcodes(OPCODE_RULES[:, RuleColumn.ROLE_RD] == DEFINE)
    for register in np.unique(pair + 1):
        writes = np.flatnonzero(defines & (s.rd == register))
        mine = np.flatnonzero(pair + 1 == register)
        if not len(writes):
            continue
        last = np.searchsorted(writes, at[mine]) - 1
        found = last >= 0
        found &= s.core[writes[last]] == s.core[at[mine]]
        source = writes[last[found]]
        # NOTE: only sldi and saddi are followed here. An sld counts as 0: the load is from the table's first row.
        added = np.where(s.named_mask("saddi")[source], subject.trace.values[source, 1], 0)
        result[mine[found]] = np.where(s.named_mask("sldi", "saddi")[source], s.a[source] + added, 0)
    return result


@register_rule(
    "global-range",
    ERROR,
    TOPIC,
    "Address beyond the global memory",
    effect="the simulator does not enforce memory_size and does not even read the address: the program runs, on a chip "
    "it could not",
    advice="correct the address (high word in the even register, low word in the next), or raise "
    "global_memory_config.memory_size",
)
def global_range(subject: CheckSubject) -> Iterator[RuleHit]:
    at, first, end = _global(subject)
    if subject.memory is not None:
        limit, named, source = subject.memory.size_bytes, True, "memory.json"
    else:
        limit, named = _limit(subject, _GLOBAL)
        source = "the architecture file" if named else "the simulator's default"
    wrong = at[(first < 0) | (end > limit)]
    if len(wrong):
        yield RuleHit(f"beyond {limit} bytes ({source})", wrong, severity=ERROR if named else WARNING)


@register_rule(
    "global-overwrite",
    ERROR,
    TOPIC,
    "Store into another live buffer of the global memory",
    effect="the simulator moves no data and does not notice; the model's inputs or constants would be lost",
    advice="store into the tiles that memory.json gives the outputs",
)
def global_overwrite(subject: CheckSubject) -> Iterator[RuleHit]:
    if subject.memory is None:
        return
    at, first, end = _global(subject)
    stores = subject.columns.named_mask("st")[at]
    at, first, end = at[stores], first[stores], end[stores]
    for name, low, high in _read_only(subject):
        wrong = at[(first < high) & (end > low)]
        if len(wrong):
            yield RuleHit(f"writes {name}, at {low} to {high - 1}", wrong)


def _read_only(subject: CheckSubject) -> Iterator[tuple[str, int, int]]:
    """Yields name, first byte and end of the tensors in memory.json that a program may only read."""
    memory = subject.memory
    if memory is None:
        return
    width = memory.element_bytes
    constants = memory.constants
    yield "the constants", constants.address, constants.address + constants.elements * width
    for place in memory.inputs:
        for tile in place.tiles:
            size = tile.region.elements(place.image) * element_bytes(place.coding, width)
            yield f"input {place.name}", tile.address, tile.address + size
