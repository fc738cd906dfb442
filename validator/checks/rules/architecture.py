"""Rules on the architecture file and the network table."""

from collections.abc import Iterator

import numpy as np

from raptor.target.arch.chip_area import list_differences
from raptor.target.components.adc_model import estimate_adc
from validator.checks.findings import RuleHit, RuleTopic, Severity
from validator.checks.rule_registry import register_rule
from validator.checks.rule_subject import ArchitectureFile, CheckSubject
from validator.program.network_table import COST_KINDS, CostKind, NetworkTable

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
TOPIC = RuleTopic.ARCHITECTURE

_DEFAULT_TIMEOUT_MS = 60000
_ABORTING_LEVEL = 2
_LEAST_DAC_PJ, _SHORT = 0.05, 10
"""Energy of a row below which a DAC is suspect, if it is charged for less than a tenth of a read."""
_ADC_RANGE = (0.16, 47.0)
_USUAL_NODE_NM = 32.0

# Effect in the simulator of a value that the schema refuses, keyed by the last part of the field's name.
_EFFECTS = {
    "period": "the clock of the core does not advance and the simulator hangs; memories and crossbars take no time",
    "rob_size": "no instruction can ever be issued: every core hangs",
    "data_width": "reading and writing take no time",
    "vector_width": "vector instructions take no time",
    "bus_width": "pimsim-nn refuses the file",
    "layout": "pimsim-nn refuses the file: both numbers must be given and positive",
    "core_cnt": "pimsim-nn refuses the file",
    "sim_mode": "pimsim-nn refuses the file: 0 is throughput, 1 is latency",
    "sim_time": "pimsim-nn refuses the file",
    "latency_timeout_ms": "pimsim-nn refuses the file",
    "dac_count": "it prints Division by zero! and counts no steps",
    "adc_count": "it prints Division by zero! and counts no steps",
    "dac_resolution": "it prints Division by zero! and counts no steps",
}


@register_rule(
    "arch-unknown-field",
    ERROR,
    TOPIC,
    "Field that does not exist",
    effect="the simulator ignores it and uses its default for the field that was meant",
    advice="correct the name (raptor arch show lists all)",
)
def arch_unknown_field(subject: CheckSubject) -> Iterator[RuleHit]:
    for name, meant in _chip(subject).unknown_fields:
        yield _hit(subject, f"{name}{f' (perhaps {meant})' if meant else ''}")


@register_rule(
    "arch-value",
    ERROR,
    TOPIC,
    "Value that makes no sense",
    effect="some such values are refused, most are accepted: a core period of 0 or a rob_size of 0 hangs, a "
    "data_width of 0 makes memory free",
    advice="correct the value (docs/schemas/arch.schema.json has units and ranges)",
)
def arch_value(subject: CheckSubject) -> Iterator[RuleHit]:
    for name, why in _chip(subject).impossible_fields:
        effect = _EFFECTS.get(name.rpartition(".")[2])
        yield _hit(subject, f"{name}: {why}{f' ({effect})' if effect else ''}")


@register_rule(
    "arch-core-count",
    ERROR,
    TOPIC,
    "Program with more cores than the chip",
    effect="pimsim-nn refuses to load the program",
    advice="raise chip_config.core_cnt, or compile for fewer cores",
)
def arch_core_count(subject: CheckSubject) -> Iterator[RuleHit]:
    cores = _chip(subject).target.core_count
    if subject.core_count > cores:
        yield _hit(subject, f"{subject.core_count} cores, the chip has {cores}")


@register_rule(
    "arch-dac-count",
    ERROR,
    TOPIC,
    "More DACs than rows",
    effect="floor(rows / dac_count) is 0 steps: a product costs almost no time and no energy",
    advice="lower matrix_config.dac_count to the rows of a crossbar",
)
def arch_dac_count(subject: CheckSubject) -> Iterator[RuleHit]:
    xbar = _chip(subject).target.core.xbar
    if xbar.converters.dacs > xbar.rows:
        yield _hit(subject, f"dac_count {xbar.converters.dacs}, {xbar.rows} rows")


@register_rule(
    "arch-dac-passes",
    NOTE,
    TOPIC,
    "Fewer DACs than rows",
    effect="a product takes that many times the time and energy; compare it with chips that need as many passes",
    advice="set matrix_config.dac_count to the rows of a crossbar for one pass; raptor arch show says what it comes to",
)
def arch_dac_passes(subject: CheckSubject) -> Iterator[RuleHit]:
    xbar = _chip(subject).target.core.xbar
    dacs = xbar.converters.dacs
    if xbar.rows // dacs > 1:
        yield _hit(subject, f"{xbar.rows // dacs} passes: {xbar.rows} rows by {dacs} DAC{'s' * (dacs > 1)}")


@register_rule(
    "arch-adc-count",
    ERROR,
    TOPIC,
    "More ADCs than columns",
    effect="floor(columns / adc_count) is 0 steps: conversion takes less than no time, and no energy",
    advice="lower matrix_config.adc_count to the columns of a crossbar",
)
def arch_adc_count(subject: CheckSubject) -> Iterator[RuleHit]:
    xbar = _chip(subject).target.core.xbar
    if xbar.converters.adcs > xbar.cols:
        yield _hit(subject, f"adc_count {xbar.converters.adcs}, {xbar.cols} columns")


@register_rule(
    "arch-dac-energy",
    WARNING,
    TOPIC,
    "DACs that drive a row for nearly nothing",
    effect="the simulator multiplies the power of a DAC by dac_latency_cycle, not by the time of a read, for which the "
    "row is driven; published DACs take 0.3 pJ and more a row",
    advice="give matrix_config.dac_dynamic_power as the energy of a row by dac_latency_cycle times the period",
)
def arch_dac_energy(subject: CheckSubject) -> Iterator[RuleHit]:
    xbar = _chip(subject).target.core.xbar
    driven_ns = xbar.converters.dac_cycles * xbar.converters.period_ns
    row_pj = xbar.power.dac_mw * driven_ns
    if 0 < row_pj < _LEAST_DAC_PJ and driven_ns * _SHORT < xbar.read_ns:
        yield _hit(subject, f"{row_pj:.2g} pJ a row: {driven_ns:g} ns of a read of {xbar.read_ns:g} ns")


@register_rule(
    "arch-adc-energy",
    WARNING,
    TOPIC,
    "ADC energy that does not follow from its bits",
    effect="the simulator takes the power and ignores adc_resolution; such ADCs take another energy",
    advice="look at matrix_config.adc_dynamic_power, adc_latency_cycle and adc_resolution; raptor arch new "
    "--components makes them agree",
)
def arch_adc_energy(subject: CheckSubject) -> Iterator[RuleHit]:
    """Compares with a regression over published converters; 90 % of them take 0.16 to 47 times its energy."""
    target = _chip(subject).target
    parts, node_nm = target.core.xbar.converters, target.area.node_nm if target.area else _USUAL_NODE_NM
    ns = parts.adc_cycles * parts.period_ns
    pj = target.core.xbar.power.adc_mw * ns
    try:
        usual = estimate_adc(parts.adc_bits, 1 / ns, node_nm).pj if pj else 0.0
    except ValueError:
        return  # outside the range of the regression
    if pj and not _ADC_RANGE[0] <= pj / usual <= _ADC_RANGE[1]:
        yield _hit(
            subject,
            f"{pj:.2g} pJ a conversion of {parts.adc_bits} bits in {ns:g} ns; the regression has {usual:.2g} pJ",
        )


@register_rule(
    "arch-area",
    NOTE,
    TOPIC,
    "Areas of another chip",
    effect="the area of this chip is not known",
    advice="give areas for these sizes in the section area, or leave it out",
)
def arch_area(subject: CheckSubject) -> Iterator[RuleHit]:
    target = _chip(subject).target
    if target.area is not None:
        for difference in list_differences(target.area, target):
            yield _hit(subject, difference)


@register_rule(
    "arch-rounding",
    NOTE,
    TOPIC,
    "Converters that do not divide the crossbar",
    effect="the simulator rounds the number of steps down and charges for less than the hardware does",
    advice="choose a dac_count that divides the rows and an adc_count that divides the columns",
)
def arch_rounding(subject: CheckSubject) -> Iterator[RuleHit]:
    xbar = _chip(subject).target.core.xbar
    converters = xbar.converters
    for name, count, size in (("dac_count", converters.dacs, xbar.rows), ("adc_count", converters.adcs, xbar.cols)):
        if count < size and size % count:
            yield _hit(subject, f"{name} {count} with {size}: {size // count} steps instead of {-(-size // count)}")


@register_rule(
    "arch-memory-switch",
    ERROR,
    TOPIC,
    "Global memory with two addresses",
    effect="the first ld or st ends the simulator without a message (SIGSEGV)",
    advice="give chip_config and core_config the same global_memory_switch_id, the one of the network table (-10)",
)
def arch_memory_switch(subject: CheckSubject) -> Iterator[RuleHit]:
    chip = _chip(subject)
    memory_id, other = chip.target.memory_id, chip.core_memory_id
    if other is not None:
        yield _hit(subject, f"global_memory_switch_id {memory_id} in chip_config, {other} in core_config")
    elif 0 <= memory_id < chip.target.core_count:
        yield _hit(subject, f"global_memory_switch_id {memory_id} is the number of a core")


@register_rule(
    "arch-layout",
    WARNING,
    TOPIC,
    "Mesh smaller than the chip",
    effect="the simulator does not use the layout; a network table made from it has cores on no place",
    advice="give network_config.layout as many places as there are cores",
)
def arch_layout(subject: CheckSubject) -> Iterator[RuleHit]:
    chip = _chip(subject)
    rows, cols, count = chip.target.network.rows, chip.target.network.cols, chip.target.core_count
    if rows * cols < count and not any(name.endswith("layout") for name, _ in chip.impossible_fields):
        yield _hit(subject, f"layout {rows}x{cols} for {count} cores")


@register_rule(
    "arch-timeout",
    WARNING,
    TOPIC,
    "Timeout that cannot be right",
    effect="latency_timeout_ms is simulated time: a program that hangs runs on until then (60000 ms take hours of wall "
    "clock), and one that needs longer is stopped without a result",
    advice="set sim_config.latency_timeout_ms to a few times the latency expected",
)
def arch_timeout(subject: CheckSubject) -> Iterator[RuleHit]:
    """A core needs one cycle for each instruction at least."""
    target = _chip(subject).target
    if not target.simulator.is_latency_mode:
        return
    timeout = target.simulator.timeout_ms
    longest = int(subject.columns.stream_lengths().max(initial=0))
    least_ms = longest * target.core.period_ns / 1e6
    if timeout >= _DEFAULT_TIMEOUT_MS:
        yield _hit(subject, f"latency_timeout_ms {timeout:g}")
    elif timeout < least_ms:
        yield _hit(subject, f"latency_timeout_ms {timeout:g}, but {longest} instructions take {least_ms:g} ms at least")


@register_rule(
    "arch-verbose",
    ERROR,
    TOPIC,
    "Report level that aborts",
    effect="level 2 ends the simulator with 'invalid format string' after the whole simulation has run",
    advice="set sim_config.report_verbose_level to 0 or 1",
)
def arch_verbose(subject: CheckSubject) -> Iterator[RuleHit]:
    level = _chip(subject).target.simulator.verbosity
    if level >= _ABORTING_LEVEL:
        yield _hit(subject, f"report_verbose_level {level}")


@register_rule(
    "network-file",
    ERROR,
    TOPIC,
    "Network table that cannot be read",
    effect="the simulator stops before it begins",
    advice="write a table with the objects latency and energy (raptor arch new makes one), and name it in "
    "network_config.net_config_file_path, relative to the architecture file",
)
def network_file(subject: CheckSubject) -> Iterator[RuleHit]:
    if subject.network_fault:
        yield _hit(subject, subject.network_fault)


@register_rule(
    "network-pair",
    ERROR,
    TOPIC,
    "Incomplete network table",
    effect="a pair that is missing costs 0 time and 0 energy",
    advice="complete the table for every ordered pair that exchanges messages (both directions: permissions travel "
    'back) and from each core to the global memory, "-10"',
)
def network_pair(subject: CheckSubject) -> Iterator[RuleHit]:
    if subject.network is None:
        return
    for kind in COST_KINDS:
        missing = _missing_pairs(subject, subject.network, kind)
        if missing:
            src, dst = missing[0]
            more = f" and {len(missing) - 1} more pairs" if len(missing) > 1 else ""
            yield _hit(subject, f"{kind} from {src} to {dst}{more}", count=len(missing))


def _missing_pairs(subject: CheckSubject, network: NetworkTable, kind: CostKind) -> list[tuple[str, str]]:
    pairs = _all_pairs(_chip(subject)) if subject.is_chip_only else sorted(_needed_pairs(subject))
    return [pair for pair in pairs if network.cost(kind, *pair) is None]


def _all_pairs(chip: ArchitectureFile) -> Iterator[tuple[str, str]]:
    """Returns the pairs that any program may need: every two cores, and each core and the global memory."""
    cores = list(map(str, range(chip.target.core_count)))
    memory = str(chip.target.memory_id)
    return ((a, b) for a in cores for b in (*cores, memory) if a != b)


def _needed_pairs(subject: CheckSubject) -> set[tuple[str, str]]:
    s = subject.columns
    memory = _chip(subject).target.memory_id
    pairs: set[tuple[int, int]] = set()
    for names, both in ((("send", "recv"), True), (("sync",), False)):
        at = s.find_named(*names)
        keys = np.unique(s.core[at].astype(np.int64) << 32 | (s.a[at].astype(np.int64) & 0xFFFFFFFF))
        found = {(int(k) >> 32, int(k) & 0xFFFFFFFF) for k in keys}
        pairs |= found | ({(b, a) for a, b in found} if both else set())
    exchanged = {(a, b) for a, b in pairs if a != b and max(a, b) < s.core_count}
    loaders = {(int(core), memory) for core in np.unique(s.core[s.find_named("ld", "st")])}
    return {(str(a), str(b)) for a, b in exchanged | loaders}


def _chip(subject: CheckSubject) -> ArchitectureFile:
    """Returns the chip. Rules of this topic run only if there is one."""
    if subject.chip is None:
        raise ValueError("a rule on the architecture needs one")
    return subject.chip


def _hit(subject: CheckSubject, fact: str, count: int = 1) -> RuleHit:
    return RuleHit(fact, file=_chip(subject).path, count=count)
