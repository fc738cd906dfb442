"""Passes of a user: their results are verified, used, and noted; a wrong one is refused by its name."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import raptor
from raptor.common.errors import UserError, VerifyError
from raptor.compiler.pass_driver import Driver
from raptor.pim import PimProgram
from tests.mlir.mutations import text_of
from tests.mlir.test_wrong_modules import compile_from
from tests.pipeline import THESIS_CHIP, thesis_model
from tests.segmented_models import sandwich
from tests.tiny_models import node

OPTIONS: dict[str, Any] = {"mapping": "raptor", **THESIS_CHIP}
MODEL = thesis_model(3, 5)


def without_the_last_core(program: PimProgram) -> PimProgram:
    *others, _ = program.cores.items()
    return replace(program, cores=dict(others))


def fail(_: PimProgram) -> PimProgram:
    raise KeyError("lost")


def beyond_memory(program: PimProgram) -> PimProgram:
    """Moves all buffers of the first core by 3 bytes, so that the last one leaves the memory in use."""
    first, core = next(iter(program.cores.items()))
    assert core.addresses is not None
    return replace(program, cores={**program.cores, first: replace(core, addresses=core.addresses + 3)})


def late_fault(program: PimProgram) -> PimProgram:
    """Drops the end of the last step of each core."""
    cores = {
        k: replace(core, steps=replace(core.steps, start=core.steps.start[:-1])) for k, core in program.cores.items()
    }
    return replace(program, cores=cores)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("lower", without_the_last_core, r"passes\['lower'\]: the verifier refuses its result: pim: "),
        ("allocate", beyond_memory, r"passes\['allocate'\]: the verifier refuses its result: .* overlaps the end"),
        ("lower", fail, r"passes\['lower'\]: KeyError: 'lost'"),
        ("lower", lambda _: None, r"passes\['lower'\]: returned NoneType, expected PimProgram"),
        ("lower", late_fault, r"passes\['lower'\]: its result cannot be verified: "),
        ("map", lambda decision: decision, "nothing verifies the result of map"),
        ("lunch", lambda program: program, "expected one of: load, "),
    ],
)
def test_a_wrong_pass_is_refused(name: str, change: Callable[[Any], Any], says: str):
    with pytest.raises(UserError, match=says):
        raptor.compile(MODEL, passes={name: change}, **OPTIONS)


def test_the_fault_of_a_later_pass_names_the_pass_of_the_user(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise VerifyError("streams are wrong")

    monkeypatch.setattr("raptor.codegen.pimsim.back_end.verify_streams", refuse)
    with pytest.raises(UserError, match=r"passes\['lower'\]: a later pass fails on this program: .*streams are wrong"):
        raptor.compile(MODEL, passes={"lower": lambda program: program}, **OPTIONS)


@pytest.mark.parametrize("passes", [3, "lower", {"lower": 3}, {3: len}])
def test_what_are_no_passes(passes: Any):
    with pytest.raises(UserError, match=r"passes.*: expected functions by name of a pass"):
        raptor.compile(MODEL, passes=passes, **OPTIONS)


def test_a_graph_is_passed_on_and_noted():
    seen: list[str] = []

    def look(graph: Any) -> Any:
        seen.append(type(graph).__name__)
        return graph

    program = raptor.compile(MODEL, passes={"fold_relu": look, "partition": look, "schedule": look}, **OPTIONS)
    assert seen == ["Graph", "Partition", "Schedule"]
    assert "passes['schedule'] has changed the result of schedule" in program.report.warnings
    assert program.validate().passed


def test_not_before_the_pass():
    with pytest.raises(UserError, match=r"passes\['lower'\]: not with stop_after='schedule', before lower"):
        raptor.compile(MODEL, passes={"lower": fail}, driver=Driver(stop_after="schedule"), **OPTIONS)


def test_not_for_several_programs():
    model = sandwich([node("Mul", "a a", "b", name="square")])
    with pytest.raises(UserError, match="of one program, but the model is compiled as several"):
        raptor.compile(model, host_nodes=["square"], passes={"lower": fail}, xbar=8, cores=4)


def test_what_computes_something_else_is_found_by_validate(tmp_path: Any):
    text = re.sub(r"vadd", "vsub", text_of("thesis"))
    assert text != text_of("thesis")
    assert not compile_from(tmp_path / "changed.mlir", text).validate().passed


def test_operands_may_be_swapped():
    def swap_operands(program: PimProgram) -> PimProgram:
        """Swaps the operands of sums, in columns."""
        cores = {}
        for number, core in program.cores.items():
            sums = np.flatnonzero(core.steps.forms.counts[core.steps.form, 0] == 2)
            first, used = core.steps.start[sums], core.steps.used.copy()
            used[first], used[first + 1] = core.steps.used[first + 1], core.steps.used[first]
            cores[number] = replace(core, steps=replace(core.steps, used=used))
        return replace(program, cores=cores)

    assert raptor.compile(MODEL, passes={"lower": swap_operands}, **OPTIONS).validate().passed
