"""Typed interface of the compiled model: program and chip -> tables -> times."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.target import isa
from raptor.target.arch import Widths
from raptor.target.isa import OPCODE, REGISTER_COUNT, Timing
from raptor.target.opcode_tables import (
    ENTERS_ROB,
    IS_SIZED,
    MATRIX,
    MISSING,
    NEEDS_WIDTH,
    OPCODE_RULES,
    UNIT,
    VECTOR,
    RuleColumn,
    operand_mask,
    timing_mask,
)
from raptor.target.timing import upper_bound_ns
from validator.errors import ProgramError
from validator.program.pimsim_program import RawProgram
from validator.simulate.cycle import simulated_chip, state_tables
from validator.simulate.cycle.simulated_chip import ChipNumbers, FlitCosts, SimulatedChip
from validator.simulate.cycle.state_tables import (
    CoreColumn,
    DemandColumn,
    GlobalCounter,
    InstructionLog,
    KernelProgram,
    OpColumn,
    PortColumn,
    QueueColumn,
    RunStop,
    RunTables,
)

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

_QUEUE = 64
_DAY_PS = 86400e12
_STAND_INS = {i.name: i.simulated_as for i in isa.INSTRUCTIONS if i.simulated_as}
_IS_MEMORY = timing_mask(Timing.LOAD, Timing.STORE)
_HAS_PARTNER, _HAS_EVENT = operand_mask("core"), operand_mask("event_register")


@dataclass(frozen=True, slots=True, eq=False)
class CycleModel:
    """A program laid out for the kernels: the cores that exist (`cores`), and their streams in one array.

    Core i has the instructions `first[i]` to `first[i + 1]`, each five words, and `groups[i]` array groups, whose
    threads begin at `group_first[i]`. `xbars` is the number of crossbars, by thread. Instructions outside the
    simulator's set are replaced by their stand-ins. `numbers` and `network` determine the times.
    """

    cores: Ints
    words: Words
    first: Ints
    groups: Ints
    group_first: Ints
    xbars: Ints
    network: FlitCosts
    numbers: ChipNumbers
    chip: SimulatedChip
    warnings: tuple[str, ...]

    @property
    def core_count(self) -> int:
        return len(self.cores)

    @property
    def period_ns(self) -> float:
        return self.chip.target.core.period_ns

    @property
    def opcodes(self) -> Words:
        return self.words[:, 0] & 255

    @property
    def unit_index(self) -> npt.NDArray[np.uint8]:
        """Index of the unit in `isa.Unit`, for every instruction."""
        return UNIT[self.opcodes]

    @property
    def is_product(self) -> Mask:
        """True for each instruction that is one of the crossbars."""
        return self.unit_index == MATRIX

    @property
    def is_vector(self) -> Mask:
        """True for each instruction that is one of the vector unit."""
        return self.unit_index == VECTOR

    def timing_mask(self, *timings: Timing) -> Mask:
        """Returns a mask of the instructions that are timed in one of these ways."""
        return timing_mask(*timings)[self.opcodes]

    @property
    def core_index(self) -> Ints:
        """Index of the core in `cores`, for every instruction."""
        return np.repeat(np.arange(self.core_count), np.diff(self.first))

    def instruction_text(self, pc: int) -> str:
        """Writes an instruction as text; `pc` counts from the first instruction of the first core."""
        return isa.format_record(self.words[pc].view(isa.RECORD)[0])


@dataclass(frozen=True, slots=True, eq=False)
class CycleRun:
    """Result of a run.

    For every instruction, in the last round, in ps: `start` and `end` (it enters its unit, it is completed), `waited`
    (for its partner or a token) and `busy` (its unit worked on it). `cause` is the instruction of another core that it
    waited for. `marks`: the tick at which each core began each round. `core`, `thread`, `rob` and `port` are tables of
    `state`.
    """

    stop: RunStop
    core: Ints
    thread: Ints
    rob: Ints
    start: Ints
    end: Ints
    waited: Ints
    busy: Ints
    cause: npt.NDArray[np.int32]
    marks: Ints
    port: Ints
    last_tick: int


def build_cycle_model(program: RawProgram, chip: SimulatedChip, warnings: Sequence[str] = ()) -> CycleModel:
    """Lays out the cores that the program instantiates. `warnings`: earlier warnings, which precede the new ones.

    Raises `ProgramError` for an instruction at which the simulator would crash, `UserError` for a program that does
    not fit the chip.
    """
    cores = np.flatnonzero(program.instantiated).astype(np.int64)
    first = np.zeros(len(cores) + 1, np.int64)
    np.cumsum([len(program.records[i]) for i in cores], out=first[1:])
    words = np.zeros((int(first[-1]), 5), np.int32)
    for at, core in zip(first, cores, strict=False):
        stream = program.records[core]
        words[at : at + len(stream)] = np.ascontiguousarray(stream).view("<i4").reshape(-1, 5)
    found = [*chip.warnings, *program.faults, *warnings, *_use_stand_ins(words)]
    groups = np.array([len(program.groups[i]) for i in cores], np.int64)
    _check_fit(program, chip)
    _check_instructions(words, first, cores, groups)
    base = 1 + state_tables.THREADS_PER_CORE * len(cores)
    group_first = base + np.cumsum(groups) - groups
    xbars = np.zeros(base + int(groups.sum()), np.int64)
    for i, core in enumerate(cores):
        xbars[group_first[i] : group_first[i] + groups[i]] = program.groups[core]
    network = simulated_chip.look_up_flit_costs(chip, cores, _talking_pairs(words, first, cores))
    found += [*_missing_pairs(network, cores), *_missing_widths(words, first, cores)]
    numbers = simulated_chip.make_chip_numbers(chip.target, counting=False)
    return CycleModel(cores, words, first, groups, group_first, xbars, network, numbers, chip, tuple(found))


def _use_stand_ins(words: Words) -> list[str]:
    used: list[str] = []
    opcodes = words[:, 0] & 255
    for name, other in _STAND_INS.items():
        at = opcodes == OPCODE[name]
        if at.any():
            words[at, 0] += OPCODE[other] - OPCODE[name]
            used.append(f"{name} like {other}")
    return [f"not in the simulator's instruction set, charged for: {', '.join(used)}"] if used else []


def _check_fit(program: RawProgram, chip: SimulatedChip) -> None:
    available = chip.target.core_count
    if program.core_cnt > available:
        raise UserError(f"{program.source}: {program.core_cnt} cores, but {chip.source} has {available}")


def _check_instructions(words: Words, first: Ints, cores: Ints, groups: Ints) -> None:
    """Raises `ProgramError` for an instruction that makes the simulator crash or hang, or that kernels cannot index."""
    opcodes, index = words[:, 0] & 255, index_cores(cores)
    core_of = np.repeat(np.arange(len(cores)), np.diff(first))
    partner = np.where((words[:, 1] >= 0) & (words[:, 1] < len(index)), words[:, 1], 0)
    exists = (words[:, 1] >= 0) & (words[:, 1] < len(index)) & (index[partner] >= 0)
    registers = np.maximum((words[:, 0] >> 8) & 255, (words[:, 0] >> 16) & 255)
    mvmul, events, setbw = opcodes == OPCODE["mvmul"], _HAS_EVENT[opcodes], opcodes == OPCODE["setbw"]
    faults = (
        (OPCODE_RULES[opcodes, RuleColumn.TIMING] == MISSING, "the table of instructions gives it no time"),
        (registers >= REGISTER_COUNT, "a register above r31"),
        (
            (OPCODE_RULES[opcodes, RuleColumn.READS_RS2] == 1) & ((words[:, 1] < 0) | (words[:, 1] >= REGISTER_COUNT)),
            "a register outside r0 to r31",
        ),
        (mvmul & ((words[:, 3] < 0) | (words[:, 3] >= groups[core_of])), "no such array group on this core"),
        (mvmul & (words[:, 1] <= 0), "mbiw is not positive, so the simulator divides by zero"),
        (_HAS_PARTNER[opcodes] & ~exists, "the program has no such core"),
        (events & ((words[:, 2] < 0) | (words[:, 2] >= state_tables.EVENT_REGISTERS)), "no such event register"),
        (IS_SIZED[opcodes] & (words[:, 4] < 0), "a negative length"),
        (setbw & ((words[:, 2] < 0) | (words[:, 3] < 0)), "a negative width"),
    )
    for wrong, reason in faults:
        if wrong.any():
            pc = int(np.flatnonzero(wrong)[0])
            core = core_of[pc]
            text = isa.format_record(words[pc].view(isa.RECORD)[0])
            raise ProgramError(int(cores[core]), pc - int(first[core]), text, reason)


def index_cores(cores: Ints) -> Ints:
    """Returns the index in `cores` of each core number of the chip, or -1."""
    index = np.full(int(cores[-1]) + 1, state_tables.NONE, np.int64)
    index[cores] = np.arange(len(cores))
    return index


def _talking_pairs(words: Words, first: Ints, cores: Ints) -> Ints:
    """Returns the pairs (source, destination) that exchange messages, sorted, as indices into `cores`.

    Messages are data, permissions, tokens, and loads and stores; the index len(cores) is global memory.
    """
    opcodes, index = words[:, 0] & 255, index_cores(cores)
    core_of = np.repeat(np.arange(len(cores)), np.diff(first))
    to_core = np.flatnonzero(_HAS_PARTNER[opcodes])
    to_memory = np.flatnonzero(_IS_MEMORY[opcodes])
    pairs = np.concatenate(
        [
            np.stack([core_of[to_core], index[words[to_core, 1]]], axis=1),
            np.stack([core_of[to_memory], np.full(len(to_memory), len(cores))], axis=1),
        ]
    )
    return np.unique(pairs, axis=0).astype(np.int64)


def _missing_pairs(network: FlitCosts, cores: Ints) -> list[str]:
    sources = np.repeat(np.arange(len(cores)), np.diff(network.first))
    missing = np.stack([sources, network.destination], axis=1)[network.is_missing]
    if not len(missing):
        return []
    names = [*map(str, cores), "global memory"]
    shown = ", ".join(f"{names[a]} to {names[b]}" for a, b in missing[:4])
    return [f"network table: {len(missing)} pairs that talk are missing and cost nothing: {shown}"]


def _missing_widths(words: Words, first: Ints, cores: Ints) -> list[str]:
    opcodes = words[:, 0] & 255
    bare: list[int] = []
    for i, core in enumerate(cores):
        stream = opcodes[first[i] : first[i + 1]]
        works = np.flatnonzero(NEEDS_WIDTH[stream])
        widths = np.flatnonzero(stream == OPCODE["setbw"])
        if len(works) and (not len(widths) or widths[0] > works[0]):
            bare.append(int(core))
    if not bare:
        return []
    shown = ", ".join(map(str, bare[:4])) + (", ..." if len(bare) > 4 else "")
    return [
        f"no setbw before the first product or vector on {len(bare)} cores ({shown}): nearly free of time and energy"
    ]


def run_cycle_model(machine: CycleModel, *, rounds: int = 0, counting: bool = False) -> CycleRun:
    """Runs the model to the end of all streams, or until each core has begun its stream `rounds` more times.

    `counting`: also count accesses of decode, registers and scalar unit, for their energy; this is slower. Raises
    `UserError` for times that 64 bits might not hold.
    """
    from validator.simulate.cycle.cycle_kernels import run_cycles  # pyright: ignore[reportUnknownVariableType] a kernel

    _check_time(machine, rounds)
    numbers = machine.numbers._replace(counting=int(counting))
    live = np.diff(machine.first) > 0
    if rounds:
        # Cores without work for a unit would repeat their stream in no time, and nobody waits for them.
        live &= np.bincount(machine.core_index[ENTERS_ROB[machine.opcodes]], minlength=len(live)) > 0
    tables, log = _tables(machine, live, rounds), _log(machine, rounds)
    # The simulator charges both ports of the register file once when it starts.
    tables.port[:, [PortColumn.READS, PortColumn.WRITES]] = int(counting)
    g = np.zeros(len(GlobalCounter), np.int64)
    g[GlobalCounter.UNFINISHED] = np.count_nonzero(live)
    pipeline = None if numbers.rob_size == 1 and not counting else True
    stop = RunStop(run_cycles(numbers, make_kernel_program(machine), tables, log, rounds, g, pipeline))
    return CycleRun(
        stop, tables.core, tables.thread, tables.rob, log.start, log.end, log.waited, log.busy, log.cause, log.marks,
        tables.port, int(g[GlobalCounter.LAST_FINISH]),
    )  # fmt: skip


def _check_time(machine: CycleModel, rounds: int) -> None:
    """Raises `UserError` if times might overflow. The bound is the sum of all times, as if nothing overlapped."""
    total_ps = (rounds + 1) * bound_time_ps(machine)
    if total_ps >= state_tables.NEVER:
        raise UserError(
            f"{machine.chip.source}: the program could take {total_ps / _DAY_PS:.3g} days on this chip, but time is "
            f"counted in picoseconds, to {state_tables.NEVER / _DAY_PS:.0f} days; "
            f"look at its periods, latencies and widths, "
            "and at its network table"
        )


def bound_time_ps(machine: CycleModel) -> float:
    """Returns an upper bound of the time of all instructions one after another, ps."""
    widths = machine.words[machine.opcodes == OPCODE["setbw"], 2:4]
    bits = int(max(widths.max(initial=0), 8))
    target = replace(machine.chip.target, widths=Widths(1, bits, bits))
    xbars, flit_ns = int(machine.xbars.max(initial=1)), float(machine.network.latency_ns.max(initial=0.0))
    return 1000 * upper_bound_ns(machine.words.view(isa.RECORD)[:, 0], xbars, target, flit_ns)


def compute_demands(machine: CycleModel) -> Ints:
    """Returns the least times of every instruction (columns `DemandColumn`, ps), as if it never waited; scalars have 0.

    The time of a receive assumes that its sender sends as many bytes.
    """
    from validator.simulate.cycle.cost_kernels import fill_demands as fill  # pyright: ignore[reportUnknownVariableType] a kernel

    core = _cores(machine, np.diff(machine.first) > 0)
    out = np.zeros((len(machine.words), len(DemandColumn)), np.int64)
    fill(machine.numbers, make_kernel_program(machine), core, np.zeros(len(OpColumn), np.int64), out)
    return out


def make_kernel_program(machine: CycleModel) -> KernelProgram:
    """Returns the parts of a program that the kernels take."""
    index, flit_ns = index_cores(machine.cores), machine.network.latency_table
    return KernelProgram(OPCODE_RULES, machine.words, index, machine.group_first, machine.xbars, flit_ns)


def _tables(machine: CycleModel, live: Mask, rounds: int) -> RunTables:
    """Makes the tables of a run, in their initial state. `live`: the cores that run."""
    thread, queue_first = _threads(machine), _queues(machine, rounds)
    count, threads, slots = machine.core_count, len(thread), machine.numbers.rob_size
    return RunTables(
        core=_cores(machine, live),
        thread=thread,
        rob=np.zeros((count, slots + 1, len(OpColumn)), np.int64),
        heap_time=np.zeros(threads + 2, np.int64),
        heap_thread=np.zeros(threads + 2, np.int64),
        earlier_heap=np.zeros(threads + 2, np.int64),
        calendar=np.zeros(count * (4 * slots + 16), np.int64),
        run=np.zeros(4 * threads + 64, np.int64),
        next_delta=np.zeros(4 * threads + 64, np.int64),
        queue=np.zeros((int(queue_first[-1]), len(QueueColumn)), np.int64),
        queue_first=queue_first,
        tokens=np.zeros((count, state_tables.EVENT_REGISTERS), np.int64),
        registers=np.zeros((count, REGISTER_COUNT), np.int64),
        port=np.zeros((count, len(PortColumn)), np.int64),
    )


def _log(machine: CycleModel, rounds: int) -> InstructionLog:
    count = len(machine.words)
    start, end, waited, busy = (np.zeros(count, np.int64) for _ in range(4))
    cause = np.full(count, state_tables.NONE, np.int32)
    return InstructionLog(start, end, cause, np.zeros((machine.core_count, max(rounds, 1)), np.int64), waited, busy)


def _cores(machine: CycleModel, live: npt.NDArray[np.bool_]) -> Ints:
    core = np.zeros((machine.core_count, len(CoreColumn)), np.int64)
    core[:, CoreColumn.FIRST], core[:, CoreColumn.LAST] = machine.first[:-1], machine.first[1:]
    for column in (
        CoreColumn.FINISH,
        CoreColumn.RECV_FROM,
        CoreColumn.OPEN_TO,
        CoreColumn.WAIT_EVENT,
        CoreColumn.INSERT_AT,
        CoreColumn.HELD_SLOT,
    ):
        core[:, column] = state_tables.NONE
    core[~live, CoreColumn.ENDED] = 1
    core[~live, CoreColumn.FINISH] = 0
    return core


def _threads(machine: CycleModel) -> Ints:
    thread = np.zeros((len(machine.xbars), len(OpColumn)), np.int64)
    last = 1 + state_tables.THREADS_PER_CORE * machine.core_count
    for unit in (state_tables.VECTOR, state_tables.TRANSFER, state_tables.SWITCH):
        rows = thread[1 + unit : last : state_tables.THREADS_PER_CORE]
        rows[:, OpColumn.UNIT], rows[:, OpColumn.CORE] = unit, np.arange(machine.core_count)
    thread[last:, OpColumn.UNIT], thread[last:, OpColumn.CORE] = (
        state_tables.GROUP,
        np.repeat(np.arange(machine.core_count), machine.groups),
    )
    return thread


def _queues(machine: CycleModel, rounds: int) -> Ints:
    """Returns the first row of each switch in the table of messages, and the number of rows.

    There is room for all tokens, because they may pile up, and for some messages of the other kinds.
    """
    syncs = np.bincount(machine.core_index[machine.opcodes == OPCODE["sync"]], minlength=machine.core_count)
    return np.concatenate([[0], np.cumsum(_QUEUE + syncs * max(rounds, 1))]).astype(np.int64)
