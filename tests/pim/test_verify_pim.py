"""Rules of `pim.verify`, each on a program that breaks it."""

from typing import Any

import pytest

from raptor.common.errors import VerifyError
from raptor.pim import PimProgram, verify_pim
from raptor.pim.ir import CoreProgram
from raptor.pim.operations import Receive, Send
from raptor.pim.step_columns import PimStep, StepColumns
from tests.pim.programs import at_addresses, steps_of
from tests.pipeline import THESIS_CHIP, Passes, chip, passes, thesis_model
from tests.values import replace

ARCH = chip((3, 3), xbars_per_core=5, cores=16)


@pytest.fixture(scope="module")
def good() -> Passes:
    return passes(thesis_model(4, 8), **THESIS_CHIP)


def with_core(program: PimProgram, at: int, **changes: Any) -> PimProgram:
    return replace(program, cores={**program.cores, at: replace(program.cores[at], **changes)})


def placed_at(program: PimProgram, addresses: dict[str, int], local_bytes: int) -> PimProgram:
    """Buffers of the first core at other addresses."""
    core = replace(at_addresses(program.cores[0], addresses), local_bytes=local_bytes)
    return replace(program, cores={**program.cores, 0: core})


def with_step(program: PimProgram, at: int, kind: type, **changes: Any) -> PimProgram:
    """The first step of a kind on a core, changed."""
    steps = list(program.cores[at].steps)
    index = next(i for i, s in enumerate(steps) if isinstance(s.operation, kind))
    steps[index] = replace(steps[index], operation=replace(steps[index].operation, **changes))
    return with_core(program, at, steps=steps_of(steps))


def without(core: CoreProgram, kind: type) -> StepColumns:
    return steps_of(s for s in core.steps if not isinstance(s.operation, kind))


def test_accepted(good: Passes):
    for program in (good.placed, good.reused, good.program):
        verify_pim(program, ARCH)


def test_a_channel_used_twice(good: Passes):
    with pytest.raises(VerifyError, match="conv: channel 1 is used twice"):
        verify_pim(with_step(good.placed, 0, Send, channel=1), ARCH)


@pytest.mark.parametrize("kind", [Send, Receive])
def test_a_channel_with_one_end(good: Passes, kind: type):
    core = 0 if kind is Send else 1
    broken = with_core(good.placed, core, steps=without(good.placed.cores[core], kind))
    with pytest.raises(VerifyError, match=r"channel 0: send .* and receive .* disagree"):
        verify_pim(broken, ARCH)


def test_a_channel_whose_ends_differ_in_size(good: Passes):
    step = next(s for s in good.placed.cores[1].steps if isinstance(s.operation, Receive))
    shorter = replace(step.operation.result, rows=1, width=47, channels=1)
    with pytest.raises(VerifyError, match=r"send \(0, 1, 48\) and receive \(0, 1, 47\) disagree"):
        verify_pim(with_step(good.placed, 1, Receive, result=shorter), ARCH)


def test_a_send_to_another_core_than_the_one_that_receives(good: Passes):
    with pytest.raises(VerifyError, match=r"send \(0, 2, 48\) and receive \(0, 1, 48\) disagree"):
        verify_pim(with_step(good.placed, 0, Send, core=2), ARCH)


def test_fewer_channels_than_promised(good: Passes):
    with pytest.raises(VerifyError, match="channels are declared"):
        verify_pim(replace(good.placed, channel_count=good.placed.channel_count + 1), ARCH)


def test_a_channel_to_itself(good: Passes):
    moved = with_step(with_step(good.placed, 0, Send, core=0), 1, Receive, core=0)
    receive = next(s for s in moved.cores[1].steps if isinstance(s.operation, Receive))
    broken = with_core(moved, 0, steps=steps_of([*moved.cores[0].steps, receive]))
    broken = with_core(broken, 1, steps=without(broken.cores[1], Receive))
    with pytest.raises(VerifyError, match="channel 0 goes from core 0 to itself"):
        verify_pim(broken, ARCH)


def test_channels_out_of_the_global_order(good: Passes):
    steps = list(good.placed.cores[3].steps)
    sends = [i for i, s in enumerate(steps) if isinstance(s.operation, Send)]
    first, second = sends[-2:]
    steps[first], steps[second] = steps[second], steps[first]
    with pytest.raises(VerifyError, match="core 3 meets its channels out of the global order"):
        verify_pim(with_core(good.placed, 3, steps=steps_of(steps)), ARCH)


def test_more_crossbars_than_a_core_has(good: Passes):
    with pytest.raises(VerifyError, match="core 0 of 16 holds 5 of 4 crossbars"):
        verify_pim(good.placed, chip((3, 3), xbars_per_core=4, cores=16))


def test_a_core_that_the_chip_does_not_have(good: Passes):
    with pytest.raises(VerifyError, match="core 10 of 10 holds"):
        verify_pim(good.placed, chip((3, 3), xbars_per_core=5, cores=10))


def test_a_buffer_used_before_it_is_defined(good: Passes):
    core = good.placed.cores[0]
    with pytest.raises(VerifyError, match=r"core 0 step 0 \(conv\): %x\.0 is used before it is defined"):
        verify_pim(with_core(good.placed, 0, steps=steps_of(list[PimStep](core.steps)[1:])), ARCH)


@pytest.mark.parametrize("shift", [0, 48, -48])
def test_buffers_alive_together_that_overlap_or_touch(good: Passes, shift: int):
    """x.0 has 48 elements; with a gap of one the output may start 49 above it, or end one below it."""
    x, out = 60, 60 + shift
    broken = placed_at(good.program, {"x.0": x, "y.0.0": out}, 300)
    with pytest.raises(VerifyError, match=r"core 0 step 1 \(conv\): %y\.0\.0 at \d+ overlaps x\.0"):
        verify_pim(broken, ARCH)


@pytest.mark.parametrize("shift", [49, -49])
def test_buffers_alive_together_that_keep_the_gap(good: Passes, shift: int):
    addresses = {"x.0": 60, "y.0.0": 60 + shift, "y.0.0.accum": 200}
    verify_pim(placed_at(good.program, addresses, 300), ARCH)


def test_a_buffer_outside_local_memory(good: Passes):
    used = good.program.cores[0].local_bytes
    with pytest.raises(VerifyError, match="overlaps the end of local memory"):
        verify_pim(with_core(good.program, 0, local_bytes=used - 1), ARCH)
    with pytest.raises(VerifyError, match=r"%x\.0 at -1 overlaps the end of local memory"):
        verify_pim(placed_at(good.program, {"x.0": -1}, used), ARCH)
