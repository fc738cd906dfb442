"""The pipeline: all passes run in the order of their list, what is known is not run again, and results are verified."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

import raptor
from raptor.codegen.pimsim import InstructionStreams
from raptor.codegen.pimsim.back_end import PIMSIM_BACKEND
from raptor.common.errors import CapacityError, InternalError, UserError
from raptor.compiler import pipeline
from raptor.compiler.compilation import PASS_OPTION
from raptor.compiler.pass_driver import Driver, PassResults, StoppedAfterPass
from raptor.frontend import load
from raptor.graph.ir import Graph
from raptor.mapping.strategies import RAPTOR, ROWS, STRATEGIES
from raptor.pim import PimProgram
from raptor.pim.operations import Load, Store
from raptor.spatial import Partition, PlacedGraph, Schedule, place_cores
from tests.pipeline import chip, conv_model, passes

MODEL = conv_model((1, 3, 6, 6), 4)
SMALL_CHIP = chip(cores=4)


@pytest.mark.parametrize("mapping", STRATEGIES)
def test_the_passes_of_the_list_run_in_its_order(mapping: str):
    driver = Driver()
    raptor.compile(MODEL, cores=4, mapping=mapping, driver=driver)
    assert tuple(driver.done) == PASS_OPTION.choices
    assert len(set(PASS_OPTION.choices)) == len(PASS_OPTION.choices)


@dataclass
class _Levels(Driver):
    """A driver that compares the verifier of each pass with the type of its result."""

    def run(self, step: Any, verify: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().run(step, verify, *args, **kwargs)
        levels = Graph, Partition, PlacedGraph, Schedule, PimProgram, InstructionStreams
        assert isinstance(result, levels) <= (verify is not None), step.__name__
        assert not ("map" in self.done and isinstance(result, Graph)), "the decision is about another graph"
        return result


def test_every_level_of_the_program_is_verified():
    raptor.compile(MODEL, cores=4, driver=_Levels())


@pytest.mark.parametrize("name", PASS_OPTION.choices)
def test_a_compilation_stops_after_any_pass_with_a_text(name: str):
    with pytest.raises(StoppedAfterPass) as stopped:
        raptor.compile(MODEL, cores=4, driver=Driver(stop_after=name))
    assert stopped.value.text.strip()


def test_a_pass_that_is_none():
    with pytest.raises(UserError, match=f"stop_after='lunch': expected one of: {', '.join(PASS_OPTION.choices)}"):
        raptor.compile(MODEL, cores=4, driver=Driver(stop_after="lunch"))


def test_the_program_of_each_core_is_there_for_another_instruction_set():
    graph = pipeline.prepare_graph(load(MODEL).graph, SMALL_CHIP)
    completed = pipeline.complete(pipeline.rewrite_and_map(graph, SMALL_CHIP, ROWS), SMALL_CHIP)
    program = pipeline.run_lowering(completed.mapped, SMALL_CHIP, known=completed.known).program
    operations = [(core, step.operation) for core in program.cores.values() for step in core.steps]
    assert {Load, Store} <= {type(operation) for _, operation in operations}
    assert all(buffer.name in core.address_of for core, each in operations for buffer in each.operands)


def test_a_pass_whose_result_is_known_is_not_run_again_but_checked():
    result, known = passes(MODEL, mapping="rows", cores=4), PassResults()
    given, first, again = (result.mapped, result.arch), Driver(verified=False), Driver()
    lowered = pipeline.run_lowering(*given, driver=first, kept=known)
    streams = pipeline.generate_code(lowered, PIMSIM_BACKEND, driver=first, kept=known)
    steps = *pipeline.PASSES[:-1], PIMSIM_BACKEND.generate
    assert all(known.get(step) is not None for step in steps if step.__name__ in first.done)
    repeated = pipeline.run_lowering(*given, driver=again, known=known)
    assert pipeline.generate_code(repeated, PIMSIM_BACKEND, driver=again, known=known) is streams
    assert again.done == first.done
    known.put(place_cores, replace(lowered.schedule.placed, cores=(0,) * len(lowered.schedule.placed.cores)))
    with pytest.raises(InternalError, match=r"place_cores failed after .*'partition'.*"):
        pipeline.run_lowering(*given, known=known)


def test_what_is_tried_is_not_verified_and_what_is_kept_is():
    result, trial = passes(MODEL, cores=4), Driver(verified=False)
    broken = Graph(result.graph.name, result.graph.tensors, (), result.graph.inputs, result.graph.outputs)
    pipeline.prepare_graph(broken, result.arch, driver=trial)
    assert trial.done[-1] == "choose_recipes"
    with pytest.raises(InternalError, match=r"drop_dead_channels failed after .*: output y is never defined"):
        pipeline.prepare_graph(broken, result.arch)


def test_a_pass_that_changes_nothing_is_not_checked_again(monkeypatch: pytest.MonkeyPatch):
    given, checked = passes(MODEL, cores=4).graph, list[Graph]()

    def check(graph: Graph) -> None:
        checked.append(graph)

    monkeypatch.setattr(pipeline, "verify_graph", check)
    assert pipeline.rewrite_and_map(given, chip(), RAPTOR, driver=Driver()).graph is given
    assert not checked


def test_on_a_chip_too_small_to_stream_any_layer_the_fallback_begins_anew():
    driver, graph = Driver(), passes(MODEL, cores=4).graph
    with pytest.raises(CapacityError):
        pipeline.rewrite_and_map(graph, chip((4, 4), xbars_per_core=1, cores=1), ROWS, driver=driver)
    assert driver.done.count("compose_gathers") == 2
    assert "map" not in driver.done
