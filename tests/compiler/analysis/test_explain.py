"""`raptor explain`: figures against the streams, the cost formulas, the mapping itself and the simulation."""

import json
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import models
import raptor
from benchmarks.programs.block_models import BlockBuilder
from benchmarks.programs.slow_models import skipped_signal
from raptor.compiler.analysis.explain import ExplainedLayer, GridChoice, MappingExplanation, explain
from raptor.graph.ir import Filter, Graph
from raptor.graph.layers import filter_key
from raptor.mapping.decision import Decision, LineUnfolding
from raptor.mapping.modes.plan_cache import PlanCache
from raptor.mapping.row_mapping import map_rows
from raptor.mapping.strategies import STRATEGIES, Strategy
from raptor.output import files
from raptor.target import arch as architectures
from raptor.target.arch import Target
from raptor.target.isa import OPCODE
from raptor.target.timing import mvmul_ns
from raptor.tools.cli import app
from tests.pipeline import by_line, passes
from tests.spatial.refinement.test_refine import CASES
from tests.tiny_models import make_model, node, random
from validator.program.pimsim_program import read_program
from validator.simulate import builtin
from validator.simulate.analysis.core_work import compute_least_work
from validator.simulate.cycle import cycle_model, simulated_chip

MAPPINGS = ("raptor", "rows")


@pytest.fixture(scope="module")
def squeezenet() -> onnx.ModelProto:
    return models.build("squeezenet", seed=0, width=0.25, image_size=64)


@pytest.fixture(scope="module")
def outputs(squeezenet: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("explain")
    return {m: _compiled(squeezenet, folder / m, mapping=m) for m in MAPPINGS}


@pytest.fixture(scope="module")
def explained(outputs: Mapping[str, Path]) -> Mapping[str, MappingExplanation]:
    return {m: explain(out) for m, out in outputs.items()}


def _compiled(source: onnx.ModelProto, out: Path, **options: Any) -> Path:
    return raptor.compile(source, **options).save(out, stream_format="pim", weight_format="npz")


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_times_agree_with_the_simulation(
    outputs: Mapping[str, Path], explained: Mapping[str, MappingExplanation], mapping: str
):
    out, found = outputs[mapping], explained[mapping]
    report = builtin.simulate(out, out / files.ARCH, mode="throughput")
    assert (found.latency_ns, found.interval_ns) == (report.latency_ns, report.interval_ns)
    ends = {core.core: core for core in report.cores}
    for layer in found.layers:
        assert sum(astuple(layer.split)) == pytest.approx(ends[layer.core].finish_ns)
        assert layer.split.wait_send <= ends[layer.core].wait_send_ns
        assert layer.split.wait_receive <= ends[layer.core].wait_recv_ns
        assert min(astuple(layer.split)) >= 0


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_products_are_those_of_the_streams(
    outputs: Mapping[str, Path], explained: Mapping[str, MappingExplanation], mapping: str
):
    """A product takes what the formula says, and two cycles to be entered and noticed."""
    found, arch = explained[mapping], architectures.load()
    program = read_program(outputs[mapping])
    products: dict[int, list[float]] = {}
    for core, (records, groups) in enumerate(zip(program.records, program.groups, strict=True)):
        used = records["c"][records["opcode"] == OPCODE["mvmul"]]
        products[core] = [math.ceil(mvmul_ns(arch, groups[group])) + 2 for group in used]
    assert sum(layer.products_ns for layer in found.layers) == sum(map(sum, products.values()))
    assert found.bounds.products == pytest.approx(sum(map(sum, products.values())) / arch.core_count)
    for layer in found.layers:
        # An end that meets a clock edge may be noticed a cycle late.
        least = sum(products[layer.core])
        assert least <= layer.split.matrix <= least + len(products[layer.core])


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_bounds(outputs: Mapping[str, Path], explained: Mapping[str, MappingExplanation], mapping: str):
    found = explained[mapping]
    bounds = found.bounds
    assert 0 < bounds.products < bounds.average < bounds.busiest
    assert bounds.tightest_ns <= found.interval_ns <= found.latency_ns
    memory = architectures.load().memory
    port = 0
    for records in read_program(outputs[mapping]).records:
        for name, cycles in (("ld", memory.read_cycles), ("st", memory.write_cycles)):
            sizes = records["d"][records["opcode"] == OPCODE[name]].astype(np.int64)
            port += int((-(-sizes // memory.beat_bytes)).sum()) * cycles
    assert bounds.port == port


@pytest.mark.parametrize("rob_size", [1, 4])
def test_no_instruction_is_faster_than_its_least_time(outputs: Mapping[str, Path], tmp_path: Path, rob_size: int):
    out = tmp_path / "out"
    shutil.copytree(outputs["rows"], out)
    arch = json.loads((out / files.ARCH).read_text())
    arch["chip_config"]["core_config"]["rob_size"] = rob_size
    (out / files.ARCH).write_text(json.dumps(arch))
    machine = cycle_model.build_cycle_model(read_program(out), simulated_chip.read_simulated_chip(out / files.ARCH))
    run, work = cycle_model.run_cycle_model(machine), compute_least_work(machine)
    assert (run.end - run.start >= work.least).all()
    found = explain(out)
    assert found.bounds.tightest_ns <= found.interval_ns
    for layer in found.layers:
        assert sum(astuple(layer.split)) == pytest.approx(layer.finish_ns)


def test_the_grids_are_those_of_the_mapping(squeezenet: onnx.ModelProto, explained: Mapping[str, MappingExplanation]):
    done = passes(squeezenet, mapping="rows")
    lines = _lines(done.chosen, done.decision)
    layers = {layer.node: layer for layer in explained["rows"].layers}
    places = dict(zip(done.partition.cores, done.on_chip.cores, strict=True))
    assert lines
    assert set(layers) == set(lines)
    assert all(_is_that(layers[node], line, places) for node, line in lines.items())


def _lines(graph: Graph, decision: Decision) -> dict[str, LineUnfolding]:
    nodes = {filter_key(n): n.name for n in graph.nodes if isinstance(n.operator, Filter)}
    return {nodes[key]: line for key, line in by_line(decision).items()}


def _is_that(layer: ExplainedLayer, line: LineUnfolding, places: Mapping[int | None, int | None]) -> bool:
    return set(layer.cores) == {places[core] for core in line.cores} and _grid(layer) == _grid_of(line)


def _grid(layer: ExplainedLayer) -> tuple[int, int, int] | None:
    chosen = layer.options.chosen
    return chosen and (chosen.columns, chosen.inputs, chosen.outputs)


def _grid_of(line: LineUnfolding) -> tuple[int, int, int]:
    return len(line.grid.cols), len(line.grid.ins), len(line.grid.outs)


def _expects(choice: GridChoice | None) -> float:
    assert choice is not None
    return choice.predicted_ns


def test_alternatives_are_sorted(explained: Mapping[str, MappingExplanation]):
    found = [layer.options for layer in explained["rows"].layers]
    assert any(o.smaller for o in found)
    assert any(o.larger for o in found)
    for options in found:
        row = [o for o in (options.smaller, options.chosen, options.larger) if o]
        assert [o.cores for o in row] == sorted({o.cores for o in row})
        assert [o.predicted_ns for o in row] == sorted({o.predicted_ns for o in row}, reverse=True)


def test_no_alternatives_are_invented(explained: Mapping[str, MappingExplanation]):
    for layer in explained["raptor"].layers:
        assert layer.options.chosen is layer.options.smaller is layer.options.larger is None
        assert layer.options.unknown == "strategy raptor has one way to place a layer"


def _explained_by(
    pixels: int, source: onnx.ModelProto, out: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Mapping[str, LineUnfolding], tuple[ExplainedLayer, ...]]:
    """Decisions by node, and what is said of them: every layer in blocks of `pixels` pixels."""
    made: list[dict[str, LineUnfolding]] = []

    def narrow(graph: Graph, arch: Target, cache: PlanCache) -> Decision:
        chosen = map_rows(graph, arch, cache)
        lines = {
            key: replace(line, grid=replace(line.grid, height=1, pixels=pixels, outputs=0))
            for key, line in by_line(chosen).items()
        }
        decision = replace(chosen, layers={**chosen.layers, **lines})
        made.append(_lines(graph, decision))
        return decision

    monkeypatch.setitem(STRATEGIES, "rows", Strategy(narrow, streaming=True))
    layers = explain(_compiled(source, out, mapping="rows")).layers
    return made[0], layers


def test_a_grid_that_is_not_among_the_best_is_found(
    squeezenet: onnx.ModelProto,
    explained: Mapping[str, MappingExplanation],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """Every layer in products of single pixels, which the formulas know and never prefer."""
    lines, layers = _explained_by(1, squeezenet, tmp_path / "out", monkeypatch)
    assert set(lines) == {layer.node for layer in layers}
    assert all(_grid(layer) == _grid_of(lines[layer.node]) for layer in layers)
    expected = {layer.node: layer.options.chosen for layer in explained["rows"].layers}
    slower = [layer for layer in layers if _expects(layer.options.chosen) > _expects(expected[layer.node])]
    assert len(slower) > len(layers) / 2


def test_a_grid_that_no_formula_knows_is_not_guessed(
    squeezenet: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Blocks are halved from the largest on; there are none of three pixels."""
    lines, layers = _explained_by(3, squeezenet, tmp_path / "out", monkeypatch)
    assert set(lines) == {layer.node for layer in layers}
    for layer in layers:
        assert layer.options.chosen is layer.options.smaller is layer.options.larger is None
        assert layer.options.unknown == "what was compiled is none of the grids that this version would consider"


def test_layers_between_attentions_are_chosen_together(tmp_path: Path):
    model = models.build("bert_tiny", seed=0, tokens=8, dim=16, depth=1)
    out = raptor.compile(model, xbar=16, xbars_per_core=16, cores=40).save(tmp_path / "out")
    layers = explain(out).layers
    reason = "in a chain of layers between two attentions, whose cores are chosen together"
    chained = [x.node for x in layers if x.options.unknown == reason]
    assert chained == [x.node for x in layers if x.unfolding == "line 1x1"] != []


def test_what_binds(explained: Mapping[str, MappingExplanation]):
    """In one mapping one core does nearly all work, in the other the port is nearly full."""
    found = explained["raptor"]
    conv1 = found.layers[0].products_ns / found.bounds.busiest
    assert found.bounds.node == found.layers[0].node == "conv1"
    assert 0.5 < conv1 < found.bounds.node_share < 1.1 * conv1
    assert found.binds.startswith(f"Core 0 ({found.bounds.node_share:.0%} of it for conv1) binds: it works 100%")
    assert "the port of global memory, the fullest, is busy 90%" in explained["rows"].binds


def test_waiting_binds_where_no_part_is_full(tmp_path: Path):
    """Each step of an LSTM waits for the one before it."""
    binds = explain(_compiled(models.build("lstm", seed=0), tmp_path / "out")).binds
    fullest = r"core \d+ \(100% of it for lstm\), the fullest, works|the port of global memory, the fullest, is busy"
    assert re.match(rf"Waiting binds: no part is full; ({fullest}) \d+%", binds)


def test_the_port_binds_if_each_step_loads_and_stores(tmp_path: Path):
    found = explain(_compiled(models.build("wavenet_cell", seed=0), tmp_path / "out", cores=200))
    assert found.binds.startswith("The port of global memory binds: it is busy ")


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_the_command(
    outputs: Mapping[str, Path],
    explained: Mapping[str, MappingExplanation],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    mapping: str,
):
    monkeypatch.setenv("COLUMNS", "80")
    status, text, _ = _run(capsys, outputs[mapping], "--json", tmp_path / "found.json")
    assert status == 0
    assert max(map(len, text.splitlines())) <= 80
    assert " ".join(explained[mapping].binds.split()) in " ".join(text.split())
    written = json.loads((tmp_path / "found.json").read_bytes())
    assert written["interval_ns"] == explained[mapping].interval_ns
    assert len(written["layers"]) == 26


def _run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as exit_:
        app.main(["explain", *map(str, arguments)])
    shown = capsys.readouterr()
    return exit_.value.code, shown.out, shown.err


@pytest.mark.parametrize(
    "name", [files.MANIFEST, files.REPORT, files.MAPPING, files.MODEL, files.STEPS, files.ARCH, files.CONFIG]
)
def test_a_broken_directory(outputs: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str):
    out = tmp_path / "out"
    shutil.copytree(outputs["rows"], out)
    (out / name).unlink()
    status, _, error = _run(capsys, out)
    assert status == 2
    assert f"{out / name}: missing" in error


def test_a_manifest_of_something_else(outputs: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out"
    shutil.copytree(outputs["rows"], out)
    manifest = json.loads((out / files.MANIFEST).read_text())
    del manifest["options"]["bits"]
    (out / files.MANIFEST).write_text(json.dumps(manifest))
    status, _, error = _run(capsys, out)
    assert status == 2
    assert "manifest.json: options: not those of a compilation" in error


def test_weights_on_the_vector_unit_have_no_grid(tmp_path: Path):
    constants = {"w": random(32, 1, 3, 3)}
    conv = node("Conv", "x w", "y", name="depthwise", group=32, pads=[1, 1, 1, 1])
    out = _compiled(make_model([conv], {"x": [1, 32, 8, 8]}, ["y"], constants), tmp_path / "out", mapping="rows")
    (layer,) = explain(out).layers
    assert (layer.unfolding, layer.products_ns, layer.options.chosen) == ("vector", 0, None)
    assert layer.options.unknown == "on the vector unit, for which there are no grids"
    assert layer.split.vector > 0


def test_programs_of_integers_say_what_rounding_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = raptor.quantize(models.build("lenet5", seed=0)).save(tmp_path / "int8.onnx")
    out = raptor.compile(model).save(tmp_path / "out")
    found = explain(out)
    work = [x.work_ns for x in found.vector]
    assert work == sorted(work, reverse=True)
    assert {x.op_type for x in found.vector} >= {"QuantizeLinear"}
    status, shown, _ = _run(capsys, out)
    assert status == 0
    assert "of it to round sums to integers of fewer bits" in " ".join(shown.split())


KINDS = "sunk", "constants", "balanced"


@pytest.mark.parametrize("name", KINDS)
def test_what_is_decided_after_the_layers_are_placed(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Cores are those of the chip, where the simulator finds them at work."""
    model, chip = CASES[name]
    program = raptor.compile(model, mapping="rows", **chip)
    out = program.save(tmp_path / "out")
    found = explain(out)
    assert [change.kind for change in found.changes] == [name, "placement", "order"]
    change, placement, _ = found.changes
    assert change.count
    assert program.artifacts is not None
    assert set(change.cores) <= {core for core, records in program.artifacts.machine.records.items() if len(records)}
    status, shown, _ = _run(capsys, out)
    assert status == 0
    assert f"- {name}: {change.why}" in " ".join(shown.split())
    assert f"- placement: {placement.why}" in " ".join(shown.split())
    assert "- order: work of each core in the order of sample" in shown


def test_relays_through_cores_with_other_work_are_explained(tmp_path: Path):
    builder = BlockBuilder()
    model = builder.finish("skipped", skipped_signal(builder, 512))
    found = explain(raptor.compile(model, arch="bench", cores=64).save(tmp_path / "out"))
    (relays,) = [change for change in found.changes if change.kind == "relays"]
    assert re.match(r"\d+ values on \d+ cores with other work until they are read: a sample would else", relays.why)


def test_relays_are_explained(tmp_path: Path):
    model, chip = CASES["relays"]
    found = explain(raptor.compile(model, mapping="rows", **chip).save(tmp_path / "out"))
    relays, placement, order = found.changes
    assert relays.nodes == ("skip",)
    assert re.match(r"\d+ values? on \d+ idle cores until they are read: a sample would else occupy", relays.why)
    said = r"(\d+) cores not at the places of their numbers: all flits together take ([\d,]+) hops instead of ([\d,]+)"
    told = re.fullmatch(said, placement.why)
    assert told is not None
    count, way, before = (int(number.replace(",", "")) for number in told.groups())
    assert placement.count == count > 1
    assert 0 < way < before
    assert re.match(r"work of each core in the order of sample [1-7] in a list schedule", order.why)


@pytest.mark.parametrize("mapping", ["raptor", "pixelwise"])
def test_other_strategies_have_no_such_choice(mapping: str, tmp_path: Path):
    found = explain(raptor.compile(models.build("lenet5", seed=0), mapping=mapping, cores=400).save(tmp_path / "out"))
    assert found.changes == ()


def test_whole_tensors_are_named(tmp_path: Path):
    """A transposition needs all lines of its input, and its result is cut into lines for the layer after it."""
    nodes = [
        node("Conv", "x w", "a", name="first"),
        node("Transpose", "a", "b", name="turn", perm=[0, 1, 3, 2]),
        node("Conv", "b w", "y", name="second"),
    ]
    model = make_model(nodes, {"x": (1, 3, 6, 8)}, ["y"], {"w": random(3, 3, 1, 1)})
    for mapping, wanted in (("rows", {("a", "first"), ("b", "turn")}), ("raptor", set[tuple[str, str]]())):
        knobs = {"moves": 1e12} if mapping == "rows" else None  # moves have no cores of their own
        out = raptor.compile(model, mapping=mapping, knobs=knobs).save(tmp_path / mapping)
        found = explain(out)
        assert {(x.tensor, x.node) for x in found.whole} == wanted
        assert all(x.work_ns > 0 for x in found.whole)
