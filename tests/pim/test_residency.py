"""Constants and states in local memory: which constants stay, and rules of the verifier, each broken."""

from collections.abc import Callable

import numpy as np
import pytest

from raptor.common.errors import VerifyError
from raptor.compiler import pipeline
from raptor.frontend import load
from raptor.graph.residency import Residency, StatePair
from raptor.mapping.strategies import STRATEGIES
from raptor.pim import PimProgram, verify_pim
from raptor.pim.auxiliary_programs import auxiliary_programs
from raptor.pim.ir import CoreProgram
from raptor.pim.step_columns import LOAD, OPERAND, STORE, StepColumns
from raptor.target.arch import Target
from tests.pipeline import arch_file, chip
from tests.stateful_models import cached_convolution, recurrent_step
from tests.values import replace

ARCH = chip((16, 16), xbars_per_core=8, cores=12)
GRU, CACHE = recurrent_step("GRU"), cached_convolution()
STATE = {"gru": StatePair("h0", "hn"), "cache": StatePair("cache", "cache_out")}


def lowered(name: str, arch: Target = ARCH, *, constants: bool = True, states: bool = True) -> PimProgram:
    graph = load({"gru": GRU, "cache": CACHE}[name]).graph
    graph = replace(graph, residency=Residency(constants, (STATE[name],) if states else ()))
    mapped = pipeline.rewrite_and_map(pipeline.prepare_graph(graph, arch), arch, STRATEGIES["rows"])
    completed = pipeline.complete(mapped, arch)
    return pipeline.run_lowering(completed.mapped, arch, known=completed.known).program


@pytest.fixture(scope="module")
def gru() -> PimProgram:
    return lowered("gru")


def broken(program: PimProgram, change: Callable[[CoreProgram], CoreProgram], constants: bool = False) -> PimProgram:
    """The first core with a state, or with resident constants, changed."""
    kept = (core for core in program.cores.values() if len(core.states if not constants else core.resident))
    core = next(core for core in kept if not constants or len(np.setdiff1d(core.resident, core.states)))
    return replace(program, cores={**program.cores, core.core: change(core)})


def writes(core: CoreProgram) -> list[int]:
    """The steps of a sample that write states."""
    uses = core.steps.uses()
    return sorted({*uses.step[np.isin(uses.buffer, core.states) & (uses.role != OPERAND)].tolist()})


def reordered(core: CoreProgram, order: list[int]) -> CoreProgram:
    return replace(core, steps=core.steps.select(np.array(order, np.int64)))


def test_a_constant_is_loaded_once(gru: PimProgram):
    plain = lowered("gru", constants=False)
    count = sum(int((core.steps.form == LOAD).sum()) for core in gru.cores.values())
    assert 0 < count < sum(int((core.steps.form == LOAD).sum()) for core in plain.cores.values())


def test_constants_stay_as_far_as_they_fit(tmp_path):
    sizes: list[int] = []
    whole = lowered("cache", states=False)
    least = max(core.local_bytes for core in lowered("cache", constants=False, states=False).cores.values())
    most = max(core.local_bytes for core in whole.cores.values())
    assert least < most
    for size in (least, (least + most) // 2, most):
        arch = chip((16, 16), xbars_per_core=8, cores=12, arch=arch_file(tmp_path, memory_size=size))
        program = lowered("cache", arch, states=False)
        verify_pim(program, arch)
        assert all(core.local_bytes <= size for core in program.cores.values())
        sizes.append(sum(core.init_count for core in program.cores.values()))
    assert sizes[0] < sizes[-1] == sum(core.init_count for core in whole.cores.values())
    assert sizes == sorted(sizes)


def test_auxiliary_programs(gru: PimProgram):
    beside = auxiliary_programs(gru)
    assert list(beside) == ["init", "save", "restore"]
    kinds = {name: {int(form) for core in cores.values() for form in core.steps.form} for name, cores in beside.items()}
    assert kinds["save"] == {STORE}
    assert kinds["restore"] == {LOAD}
    elements = {
        name: sum(int(core.steps.buffers.elements[core.steps.used, 0].sum()) for core in cores.values())
        for name, cores in beside.items()
    }
    assert elements["save"] == 8 <= elements["restore"] < elements["init"]
    assert list(auxiliary_programs(lowered("gru", states=False))) == ["init"]
    assert not auxiliary_programs(lowered("gru", constants=False, states=False))


def test_accepted(gru: PimProgram):
    verify_pim(gru, ARCH)


def test_a_state_that_is_not_updated():
    """On one core, no message writes it."""
    arch = chip((16, 16), xbars_per_core=64, cores=1)

    def change(core: CoreProgram) -> CoreProgram:
        return reordered(core, [k for k in range(len(core.steps)) if k not in writes(core)])

    with pytest.raises(VerifyError, match=r"the elements of the state %h0\S* are not written once each"):
        verify_pim(broken(lowered("gru", arch), change), arch)


def test_a_state_that_is_overwritten_before_its_last_use():
    def change(core: CoreProgram) -> CoreProgram:
        uses = core.steps.uses()
        reads = uses.step[np.isin(uses.buffer, core.states) & (uses.role == OPERAND)]
        return replace(core, steps=core.steps.followed_by(core.steps.select(reads[-1:])))

    with pytest.raises(VerifyError, match="which this sample still reads"):
        verify_pim(broken(lowered("cache"), change), ARCH)


def test_a_constant_that_a_sample_overwrites(gru: PimProgram):
    def change(core: CoreProgram) -> CoreProgram:
        constant = next(b for b in core.resident.tolist() if b not in core.states)
        extra = core.init.select(np.flatnonzero(core.init.form == LOAD)[:1])
        extra = replace(extra, used=np.array([constant]))
        return replace(core, steps=core.steps.followed_by(extra))

    with pytest.raises(VerifyError, match=r"overwrites %const\S*, which later samples read"):
        verify_pim(broken(gru, change, constants=True), ARCH)


def test_a_resident_buffer_whose_memory_is_shared(gru: PimProgram):
    def change(core: CoreProgram) -> CoreProgram:
        addresses = core.addresses.copy()
        others = np.setdiff1d(core.steps.used, core.resident)
        addresses[core.states[0]] = addresses[others[0]]
        return replace(core, addresses=addresses)

    with pytest.raises(VerifyError, match="overlaps"):
        verify_pim(broken(gru, change), ARCH)


def test_a_message_after_power_up(gru: PimProgram):
    def change(core: CoreProgram) -> CoreProgram:
        store = replace(core.init.select(np.array([0])), form=np.array([STORE]))
        return replace(core, init=core.init.followed_by(store))

    with pytest.raises(VerifyError, match="runs once after power-up, but meets another core or stores"):
        verify_pim(broken(gru, change), ARCH)


def test_columns_can_be_cut_and_joined(gru: PimProgram):
    steps = next(iter(gru.cores.values())).steps
    half = len(steps) // 2
    parts = [steps.select(np.arange(half)), steps.select(np.arange(half, len(steps)))]
    joined = parts[0].followed_by(parts[1])
    for name in ("form", "node", "number", "peer", "span", "start", "used"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(steps, name))
    assert isinstance(joined, StepColumns)
    assert [str(step) for step in joined] == [str(step) for step in steps]
