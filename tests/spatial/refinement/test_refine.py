"""Choices about single computes: they replay from the file, and records that break a program are refused."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from raptor.common.errors import CapacityError, UserError
from raptor.mapping.refinement import (
    MovedComputes,
    ProducedConstants,
    Refinement,
    RefinementError,
    Relay,
    RelayedTile,
)
from raptor.mapping.strategies import STRATEGIES
from raptor.spatial import partition, refine, verify_partition
from raptor.spatial.lowering.lower_graph import lower_graph
from raptor.spatial.refinement.move_computes import move_computes, moves_to
from raptor.target.isa import OPCODE
from tests.mapping.test_mapping_file import mutated
from tests.pipeline import Passes, conv_model, line_flow, passes
from tests.spatial.refinement.test_first_readers import MADE
from tests.spatial.refinement.test_first_readers import partition as partition_of
from tests.spatial.refinement.test_load_balancing import CHIP as FEW
from tests.spatial.refinement.test_load_balancing import detector
from tests.spatial.refinement.test_make_constants import CHIP as ROOMY
from tests.spatial.refinement.test_make_constants import MODEL as ATTENTION
from tests.spatial.refinement.test_sink_input_work import gated
from tests.spatial.refinement.test_value_relays import CHIP as IDLE
from tests.spatial.refinement.test_value_relays import both_ways, deep

Case = tuple[ModelProto, Mapping[str, Any]]
Change = Callable[[Refinement], Refinement]

CASES: dict[str, Case] = {
    "sunk": (gated(), FEW),
    "constants": (ATTENTION, ROOMY),
    "balanced": (detector(), {"cores": 200}),
    "near": (both_ways("RNN"), {"xbar": 16, "xbars_per_core": 12, "cores": 100}),
    "relays": (deep(), IDLE),
}
"""For each field of a refinement, a model and a chip with records in it."""


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, Passes]:
    model, chip = CASES[request.param]
    return request.param, passes(model, mapping="rows", **chip)


def refinement(found: Passes) -> Refinement:
    assert found.decision.refinement is not None
    return found.decision.refinement


def test_records_make_the_same_program_again(case: tuple[str, Passes]):
    """Nothing is searched: `partition` and `schedule` have the complete decision only."""
    field, found = case
    assert getattr(refinement(found), field)
    again = partition(found.chosen, found.decision, found.arch)
    assert (again.cores, again.positions) == (found.partition.cores, found.partition.positions)
    assert str(again.graph) == str(found.partition.graph)


SEARCHES = (
    ("refine", "sink_to_readers"),
    ("refine", "choose_constants"),
    ("refine", "balance_load"),
    ("refine", "choose_moves_and_relays"),
    ("choose_placement", "find_placement"),
    ("choose_order", "choose_step_order"),
)


@pytest.mark.parametrize("name", [*CASES, *sorted(STRATEGIES.keys() - {"rows"})])
def test_a_file_replays_without_a_search(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model, chip = CASES.get(name, (conv_model((1, 3, 6, 6), 4), {"cores": 8}))
    strategy = "rows" if name in CASES else name
    first = raptor.compile(model, mapping=strategy, emit_mapping=tmp_path / "m.json", **chip)

    def searched(*_: Any) -> None:
        pytest.fail("a stored decision is complete")

    for search in SEARCHES:
        module, function = search
        monkeypatch.setattr(import_module(f"raptor.spatial.{module}"), function, searched)
    again = raptor.compile(model, mapping=tmp_path / "m.json", **chip)
    assert streams(again) == streams(first)


def streams(program: raptor.Program) -> dict[int, bytes]:
    assert program.artifacts is not None
    return {core: records.tobytes() for core, records in program.artifacts.machine.records.items()}


@pytest.mark.parametrize("name", CASES)
def test_records_replay_on_a_faster_chip_of_the_same_sizes(name: str, tmp_path: Path):
    """Records depend on times; the computes that they number do not."""
    model, chip = CASES[name]
    raptor.compile(model, mapping="rows", emit_mapping=tmp_path / "m.json", **chip)
    fields = {"matrix_config.adc_latency_cycle": 1}
    again = raptor.compile(model, mapping=tmp_path / "m.json", fields=fields, **chip)
    assert again.report.warnings[-1].endswith("differs in something else; replayed as it is")


def test_computes_may_move_before_relays_begin(skipped: Passes):
    records = replace(refinement(skipped), near=(MovedComputes(FREE, FREE + 1, 59),))
    found = partition(skipped.chosen, replace(skipped.decision, refinement=records), skipped.arch)
    verify_partition(found, skipped.arch)
    changed = [
        i for i, cores in enumerate(zip(found.cores, skipped.partition.cores, strict=True)) if len(set(cores)) > 1
    ]
    assert changed == [FREE]
    assert found.cores[FREE] == 59


def test_a_refined_decision_stays_as_it_is(case: tuple[str, Passes]):
    _, found = case
    again = refine(found.chosen, found.decision, found.arch)
    assert again.decision is found.decision
    assert again.partition is None


def test_layer_by_layer_nothing_moves(case: tuple[str, Passes]):
    _, found = case
    flow = replace(line_flow(found.decision), streamed=False)
    refined = refine(found.chosen, replace(found.decision, flow=flow, refinement=None), found.arch).decision.refinement
    assert refined is not None
    assert replace(refined, constants=(), lowering="") == Refinement()


# The form


def test_moves_are_runs_of_computes_on_one_core():
    before = partition_of(MADE, cores=(1, 2, 0))
    after = [3, 3, 2, 3]
    moves = moves_to(np.array(after), before)
    assert moves == (MovedComputes(0, 2, 3), MovedComputes(3, 4, 3))
    assert list(move_computes(before, moves).cores) == after
    assert moves_to(np.array(before.cores), before) == ()
    assert move_computes(before, ()) is before


def test_neighbours_that_produce_all_their_constants_are_one_record():
    model, chip = CASES["constants"]
    (run,) = refinement(passes(model, mapping="rows", **chip)).constants
    assert run.stop - run.first > 1


# Wrong records


@pytest.fixture(scope="module")
def skipped() -> Passes:
    """A model with one relay, of one tile that one compute reads."""
    return passes(deep(), **IDLE, mapping="rows")


def relayed(**changed: Any) -> Change:
    """The only relay is another one."""
    return lambda records: replace(records, relays=(replace(records.relays[0], **changed),))


def taken(**changed: Any) -> Change:
    """The only tile of the only relay is another one, or has another reader."""
    return lambda records: relayed(tiles=(replace(records.relays[0].tiles[0], **changed),))(records)


def moved(field: str, *moves: MovedComputes) -> Change:
    return lambda records: replace(records, **{field: moves})


def produced(*runs: ProducedConstants) -> Change:
    return lambda records: replace(records, constants=runs)


MATRIX, FREE = 0, 2
"""Numbers of a compute with a matrix, and of one that can move."""

WRONG: tuple[tuple[Change, str], ...] = (
    (lambda records: replace(records, lowering="0"), "lowering: made for other computes"),
    (
        moved("balanced", MovedComputes(0, 10**30, 0)),
        r"balanced\[0\]: computes 0:1000+ on core 0, expected some of 0 to",
    ),
    (moved("balanced", MovedComputes(-1, 1, 0)), r"balanced\[0\]: computes -1:1 on core 0, expected"),
    (moved("balanced", *[MovedComputes(FREE, FREE + 1, 0)] * 2), r"balanced\[1\]: .* expected some of \d+ to"),
    (moved("near", MovedComputes(3, 3, 0)), r"near\[0\]: computes 3:3 on core 0, expected"),
    (moved("near", MovedComputes(1, 2, 60)), r"near\[0\]: computes 1:2 on core 60 of 60"),
    (moved("sunk", MovedComputes(MATRIX, 1, 1)), r"sunk\[0\]: compute 0 of dense0 cannot move"),
    (produced(ProducedConstants(0, 61)), r"constants\[0\]: cores 0:61, expected some of 0 to 60"),
    (produced(ProducedConstants(59, 60)), r"constants\[0\]: cores 59:60, but the constants of core 59 are \(\)"),
    (relayed(cores=()), r"relays\[0\]\.cores: \(\), expected some of 60"),
    (relayed(cores=(40, 40)), r"relays\[0\]\.cores: \(40, 40\), expected some of 60, each once"),
    (relayed(cores=(60,)), r"relays\[0\]\.cores: \(60,\), expected"),
    (relayed(tiles=()), r"relays\[0\]\.tiles: expected tiles of equal channels"),
    (
        lambda records: replace(records, relays=records.relays * 2),
        r"relays\[1\]\.tiles\[0\]: t0\.0 is relayed .* twice",
    ),
    (taken(tile="none"), r"relays\[0\]\.tiles\[0\]\.tile: no compute makes none"),
    (taken(tile="x.0"), r"relays\[0\]\.tiles\[0\]\.tile: no compute makes x\.0"),
    (taken(reader=MATRIX), r"relays\[0\]\.tiles\[0\]\.reader: compute 0 does not take t0\.0"),
    (taken(reader=-1), r"relays\[0\]\.tiles\[0\]\.reader: compute -1 does not take t0\.0"),
    (taken(reader=2**70), r"relays\[0\]\.tiles\[0\]\.reader: compute 1180591620717411303424 does not take t0\.0"),
)


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_record_is_refused(change: Change, message: str, skipped: Passes):
    decision = replace(skipped.decision, refinement=change(refinement(skipped)))
    with pytest.raises(RefinementError, match=f"^{message}"):
        partition(skipped.chosen, decision, skipped.arch)


def test_constants_need_free_crossbars():
    found = passes(ATTENTION, mapping="rows", **ROOMY)
    with pytest.raises(RefinementError, match=r"constants\[0\]: need \d+ crossbars of core \d+, it has -?\d+ free"):
        partition(found.chosen, found.decision, found.arch.with_xbars_per_core(0))
    flow = replace(line_flow(found.decision), makes_constants=False)
    with pytest.raises(RefinementError, match="constants: the flow of this mapping makes none"):
        partition(found.chosen, replace(found.decision, flow=flow), found.arch)


def test_a_value_cannot_be_relayed_before_it_is_made(skipped: Passes):
    """A relay of the first and the last value of a chain: the first would wait for the last, which is made of it."""
    records = refinement(skipped)
    lowered = lower_graph(skipped.chosen, skipped.decision, skipped.arch)
    pairs = [(tile.name, i) for i, compute in enumerate(lowered.graph.computes) for tile in compute.inputs]
    early, late = next(p for p in pairs if p[0] == "t1.0"), next(p for p in pairs if p[0] == "t9.0")
    relay = Relay(records.relays[0].cores, (RelayedTile(*early), RelayedTile(*late)))
    decision = replace(skipped.decision, refinement=replace(records, relays=(relay,)))
    with pytest.raises(RefinementError, match="a value would have to be relayed before it is made"):
        partition(skipped.chosen, decision, skipped.arch)


def test_a_wrong_file_is_named(tmp_path: Path):
    path = tmp_path / "m.json"
    raptor.compile(deep(), mapping="rows", emit_mapping=path, **IDLE)
    stored = json.loads(path.read_bytes())
    stored["decision"]["refinement"]["lowering"] = "0"
    path.write_text(json.dumps(stored))
    message = r"m\.json'?: decision\.refinement: lowering: made for other computes.*; null has it decided anew"
    with pytest.raises(UserError, match=message):
        raptor.compile(deep(), mapping=path, **IDLE)


def test_a_wrong_file_is_named_when_its_placement_is_decided_anew(tmp_path: Path):
    path = tmp_path / "m.json"
    raptor.compile(deep(), mapping="rows", emit_mapping=path, **IDLE)
    stored = json.loads(path.read_bytes())
    stored["decision"]["refinement"]["lowering"], stored["decision"]["placement"] = "0", None
    path.write_text(json.dumps(stored))
    with pytest.raises(UserError, match=r"m\.json'?: decision\.refinement: lowering: made for other computes"):
        raptor.compile(deep(), mapping=path, **IDLE)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 60), marks=pytest.mark.slow)])
def test_a_changed_refinement_is_refused_or_right(name: str, seeds: range, tmp_path: Path):
    model, chip = CASES[name]
    raptor.compile(model, mapping="rows", emit_mapping=tmp_path / "m.json", **chip)
    stored = json.loads((tmp_path / "m.json").read_bytes())
    for seed in seeds:
        changed, how = mutated(stored, Random(seed), ("decision", "refinement"))
        (tmp_path / "changed.json").write_text(json.dumps(changed))
        try:
            program = raptor.compile(model, mapping=tmp_path / "changed.json", **chip)
        except CapacityError:
            continue  # such as local memory: no fault of the file
        except UserError as e:
            said = str(e)
        except raptor.RaptorError as e:
            pytest.fail(f"seed {seed}, {how}: {e}")
        else:
            said = "changed.json"
            assert program.validate(samples=1).verdict == "pass", f"seed {seed}, {how}"
        assert "changed.json" in said, f"seed {seed}, {how}: {said}"


@pytest.mark.parametrize("fields", [("refinement",), ("placement",), ("refinement", "placement")])
def test_what_a_file_lacks_is_decided_anew(fields: tuple[str, ...], tmp_path: Path):
    """All else that the file has stays, such as the order."""
    model, chip = CASES["near"]
    path = tmp_path / "m.json"
    first = raptor.compile(model, mapping="rows", emit_mapping=path, **chip)
    stored = json.loads(path.read_bytes())
    assert stored["decision"]["placement"]["places"]
    stored["decision"] |= dict.fromkeys(fields)
    path.write_text(json.dumps(stored))
    assert streams(raptor.compile(model, mapping=path, **chip)) == streams(first)


def test_a_placement_in_a_file_is_applied(tmp_path: Path):
    """Without one, cores are those of their numbers; backwards, the same work is on the chip from its last core on.

    The order of messages depends on their ways, and the number of registers that are set on the order.
    """
    model, chip = CASES["sunk"]
    path, found = tmp_path / "m.json", list[dict[int, int]]()
    raptor.compile(model, mapping="rows", emit_mapping=path, **chip)
    stored = json.loads(path.read_bytes())
    for places in ([], [*reversed(range(stored["cores"]))]):
        stored["decision"]["placement"] = {"places": places}
        path.write_text(json.dumps(stored))
        artifacts = raptor.compile(model, mapping=path, **chip).artifacts
        assert artifacts is not None
        records = artifacts.machine.records.items()
        found.append({core: int(np.count_nonzero(each["opcode"] != OPCODE["sldi"])) for core, each in records})
    numbered, backwards = found
    assert backwards == {stored["cores"] - 1 - core: size for core, size in numbered.items()}
