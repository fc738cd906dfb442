"""The list of passes: each finds what it takes, all of them run in the order that is promised."""

from dataclasses import replace
from typing import get_type_hints

import pytest

import raptor
from raptor.codegen import InstructionStreams
from raptor.common.errors import CapacityError, InternalError, UserError
from raptor.compiler import pipeline
from raptor.compiler.compilation import ALL_PASSES, PASS_OPTION
from raptor.compiler.pass_driver import Driver, StoppedAfterPass
from raptor.frontend import load
from raptor.graph.ir import Graph
from raptor.mapping.decide import MappingState
from raptor.mapping.decision import Decision
from raptor.mapping.strategies import RAPTOR, ROWS
from raptor.pim import PimProgram
from raptor.pim.operations import Load, Store
from raptor.spatial import Partition
from raptor.spatial.scheduling.order_selection import OrderObjective
from raptor.target.arch import Target
from raptor.transforms.choose_recipes import RequantMethod
from tests.pipeline import Recorder, chip, conv_model, passes

MODEL = conv_model((1, 3, 6, 6), 4)
SMALL_CHIP = chip(cores=4)


def test_every_pass_finds_what_it_takes():
    known = {Graph, Target, RequantMethod}
    for step in pipeline.PREPARATION:
        assert set(pipeline.parameter_types(step)) <= known
        known.add(get_type_hints(step)["return"])
    known = {Graph, Target, MappingState}
    for step in pipeline.DECISION:
        assert set(pipeline.parameter_types(step)) <= known
        known.add(get_type_hints(step)["return"])
    known |= {Decision, OrderObjective}
    for step in (*pipeline.COMPLETION, *pipeline.LOWERING):
        assert set(pipeline.parameter_types(step)) <= known
        known.add(get_type_hints(step)["return"])
    for kind, check in pipeline.INVARIANTS.items():
        assert {kind, *pipeline.parameter_types(check)} <= known


def test_passes_run_in_their_order_under_their_names():
    recorder = Recorder()
    raptor.compile(MODEL, cores=4, driver=recorder)
    assert tuple(recorder.results) == PASS_OPTION.choices
    assert len(set(PASS_OPTION.choices)) == len(ALL_PASSES)


@pytest.mark.parametrize("name", PASS_OPTION.choices)
def test_a_compilation_stops_after_any_pass_with_a_text(name: str):
    with pytest.raises(StoppedAfterPass) as stopped:
        raptor.compile(MODEL, cores=4, driver=Driver(stop_after=name))
    assert stopped.value.text.strip()


def test_no_pass_rewrites_the_graph_after_the_decision_about_it():
    after = (*pipeline.DECISION[-1:], *pipeline.COMPLETION, *pipeline.LOWERING)
    assert [step.__name__ for step in after if get_type_hints(step)["return"] is Graph] == []


def test_a_pass_that_is_none():
    with pytest.raises(UserError, match=f"stop_after='lunch': expected one of: {', '.join(PASS_OPTION.choices)}"):
        raptor.compile(MODEL, cores=4, driver=Driver(stop_after="lunch"))


def test_lowering_up_to_a_pass():
    result = passes(MODEL, mapping="rows", cores=4)
    values = pipeline.run_lowering(result.mapped, result.arch, upto="partition")
    assert values[Partition].graph.computes
    assert [c.results for c in values[Partition].graph.computes] == [c.results for c in result.spatial.computes]


def test_the_program_of_each_core_is_there_for_another_instruction_set():
    graph = pipeline.prepare_graph(load(MODEL).graph, SMALL_CHIP)
    completed = pipeline.complete(pipeline.rewrite_and_map(graph, SMALL_CHIP, ROWS), SMALL_CHIP)
    program = pipeline.run_lowering(completed.mapped, SMALL_CHIP, upto="allocate", known=completed.known)[PimProgram]
    operations = [(core, step.operation) for core in program.cores.values() for step in core.steps]
    assert {Load, Store} <= {type(operation) for _, operation in operations}
    assert all(buffer.name in core.address_of for core, each in operations for buffer in each.operands)


def test_a_pass_whose_result_is_known_is_not_run_again_but_checked():
    result, known = passes(MODEL, mapping="rows", cores=4), pipeline.PassResults()
    given = result.mapped, result.arch
    values = pipeline.run_lowering(*given, driver=Driver(verified=False), kept=known)
    assert list(known) == [step.__name__ for step in pipeline.LOWERING]
    again = Driver()
    assert pipeline.run_lowering(*given, driver=again, known=known)[InstructionStreams] is values[InstructionStreams]
    assert again.done == list(known)
    known["place_cores"] = replace(known["place_cores"], cores=(0,) * len(known["place_cores"].cores))
    with pytest.raises(InternalError, match=r"place_cores failed after .*'partition'.*"):
        pipeline.run_lowering(*given, known=known)


def test_what_is_tried_is_not_verified_and_what_is_kept_is():
    result, trial = passes(MODEL, cores=4), Driver(verified=False)
    broken = Graph(result.graph.name, result.graph.tensors, (), result.graph.inputs, result.graph.outputs)
    pipeline.prepare_graph(broken, result.arch, driver=trial)
    assert trial.done == ["fold_relu", "choose_recipes"]
    with pytest.raises(InternalError, match=r"fold_relu failed after .*: output y is never defined"):
        pipeline.prepare_graph(broken, result.arch)


def test_a_pass_that_changes_nothing_is_not_checked_again(monkeypatch: pytest.MonkeyPatch):
    given, checked = passes(MODEL, cores=4).graph, list[Graph]()

    def check(graph: Graph) -> None:
        checked.append(graph)

    monkeypatch.setitem(pipeline.INVARIANTS, Graph, check)
    assert pipeline.rewrite_and_map(given, chip(), RAPTOR, driver=Driver()).graph is given
    assert not checked


def test_on_a_chip_too_small_to_stream_any_layer_the_fallback_begins_anew():
    driver, graph = Driver(), passes(MODEL, cores=4).graph
    with pytest.raises(CapacityError):
        pipeline.rewrite_and_map(graph, chip((4, 4), xbars_per_core=1, cores=1), ROWS, driver=driver)
    assert driver.done.count("compose_gathers") == 2
    assert "map" not in driver.done
