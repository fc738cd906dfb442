"""Decisions that give right values when they are wrong: what was searched, replayed, printed, counted."""

import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import models
import raptor
from raptor.common.errors import CapacityError, UserError
from raptor.compiler.pass_driver import Driver, StoppedAfterPass
from raptor.mapping.decision import LineFlow
from raptor.mapping.strategies import STRATEGIES
from raptor.target import arch as architectures
from tests.pipeline import arch_file, by_line, conv_model, in_matrices, passes
from validator.simulate.builtin import simulate


@pytest.fixture(scope="module")
def lenet5() -> Any:
    return models.build("lenet5", seed=0)


def test_a_candidate_that_does_not_fit_is_skipped_and_recorded(lenet5: Any, tmp_path: Path):
    """The reference mapping needs more local memory than there is; the default fits."""
    chip = arch_file(tmp_path, memory_size=4096)
    program = raptor.compile(lenet5, arch=chip, optimize="latency", effort=3)
    rows, reference, other = program.report.search
    assert (rows.mapping, reference.mapping) == ("rows, times of bench", "raptor")
    assert reference.cost is None
    assert "bytes of local memory: need 5882, have 4096" in reference.fault
    assert rows.fault == other.fault == ""
    found = simulate(program.save(tmp_path / "out"), chip).latency_ns
    assert found == min(rows.cost or 0, other.cost or 0)


def test_the_text_of_a_search_shows_all_that_was_tried(lenet5: Any, tmp_path: Path):
    chip = arch_file(tmp_path, memory_size=4096)
    with pytest.raises(StoppedAfterPass) as stopped:
        raptor.compile(lenet5, arch=chip, optimize="latency", effort=2, driver=Driver(stop_after="map"))
    mapping, *_, rows, reference = stopped.value.text.splitlines()
    assert mapping.startswith("mapping rows {")
    assert re.fullmatch(r"tried rows, times of bench: [\d.]+", rows)
    assert re.fullmatch(r"tried raptor: .*bytes of local memory: need 5882, have 4096; try .*", reference)


def test_a_search_in_which_nothing_fits_says_why(lenet5: Any, tmp_path: Path):
    with pytest.raises(CapacityError, match=r"bytes of local memory: need \d+, have 64"):
        raptor.compile(lenet5, arch=arch_file(tmp_path, memory_size=64), optimize="energy")


BETTER = (
    {"dac_count": 128, "adc_count": 16},
    {"dac_count": 256, "adc_count": 32},
    {"dac_count": 256, "adc_count": 32, "adc_latency_cycle": 10},
    {"dac_count": 256, "adc_count": 32, "adc_latency_cycle": 5, "dac_latency_cycle": 1},
)
"""Converters of crossbars of 256x256: each chip is better than the one before in what differs."""


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        pytest.param("lenet5", {"width": 0.5}, marks=pytest.mark.slow),
        pytest.param("lenet5", {}, marks=pytest.mark.slow),
        pytest.param("squeezenet", {"image_size": 32, "width": 0.5}, marks=pytest.mark.slow),
        pytest.param("resnet18", {"image_size": 64, "width": 0.25}, marks=pytest.mark.slow),
    ],
)
def test_a_better_chip_is_not_slower_with_a_search(model: str, sizes: dict[str, Any], tmp_path: Path):
    """All candidates are the same programs on each chip. By its own times, SqueezeNet took 174.9 us on the second."""
    source = models.build(model, seed=0, **sizes)
    found: list[float] = []
    for converters in BETTER:
        chip = json.loads(architectures.arch_json(architectures.load("bench", cores=64, xbars_per_core=32, xbar=256)))
        del chip["chip_config"]["network_config"]["net_config_file_path"]
        chip["chip_config"]["core_config"]["matrix_config"] |= converters
        (tmp_path / "chip.json").write_text(json.dumps(chip))
        program = raptor.compile(source, arch=tmp_path / "chip.json", optimize="latency")
        found.append(min(trial.cost for trial in program.report.search if trial.cost is not None))
    assert all(after <= before for before, after in itertools.pairwise(found)), found


@pytest.mark.parametrize("effort", [1, 2, 3])
def test_effort_is_the_number_of_mappings_tried(effort: int):
    program = raptor.compile(conv_model((1, 3, 8, 8), 4), cores=4, optimize="latency", effort=effort)
    assert len(program.report.search) == effort
    assert raptor.compile(conv_model((1, 3, 8, 8), 4), cores=4).report.search == ()


def replay(source: Any, path: Path, **options: Any) -> raptor.Program:
    return raptor.compile(source, mapping=path, **options)


def test_a_mapping_file_replays_to_the_same_streams(lenet5: Any, tmp_path: Path):
    first = raptor.compile(lenet5, cores=60, emit_mapping=tmp_path / "m.json")
    again = replay(lenet5, tmp_path / "m.json", cores=60)
    assert first.artifacts is not None
    assert again.artifacts is not None
    assert {i: r.tobytes() for i, r in first.artifacts.machine.records.items()} == {
        i: r.tobytes() for i, r in again.artifacts.machine.records.items()
    }
    assert again.report.warnings == ()


@pytest.mark.parametrize(
    ("made", "used", "fault"),
    [
        ({"cell_bits": 2}, {}, "made for cell_bits 2, compiled with 8"),
        ({"bits": 4}, {}, "made for bits 4, compiled with 8"),
        ({"xbar": 64}, {}, r"made for xbar \(64, 64\), compiled with \(128, 128\)"),
        ({}, {"cores": 61}, "made for cores 60, compiled with 61"),
        ({}, {"xbars_per_core": 65}, "made for xbars_per_core 64, compiled with 65"),
    ],
)
def test_a_mapping_for_other_sizes_is_refused(
    lenet5: Any, made: dict[str, int], used: dict[str, int], fault: str, tmp_path: Path
):
    raptor.compile(lenet5, emit_mapping=tmp_path / "m.json", **{"cores": 60, **made})
    with pytest.raises(UserError, match=fault):
        replay(lenet5, tmp_path / "m.json", **{"cores": 60, **used})


def test_a_mapping_for_another_model_of_the_same_layers_is_refused(tmp_path: Path):
    raptor.compile(conv_model((1, 3, 8, 8), 4), cores=4, emit_mapping=tmp_path / "m.json")
    with pytest.raises(UserError, match="made for another model"):
        replay(conv_model((1, 3, 9, 8), 4), tmp_path / "m.json", cores=4)


def test_a_mapping_for_a_chip_of_another_speed_replays_with_a_note(lenet5: Any, tmp_path: Path):
    raptor.compile(lenet5, emit_mapping=tmp_path / "m.json")
    raw = json.loads(architectures.arch_json(architectures.load("bench")))
    del raw["chip_config"]["network_config"]["net_config_file_path"]
    raw["chip_config"]["core_config"]["matrix_config"]["adc_latency_cycle"] = 1
    (tmp_path / "fast.json").write_text(json.dumps(raw))
    (note,) = replay(lenet5, tmp_path / "m.json", arch=tmp_path / "fast.json").report.warnings
    assert "made for a chip of the same sizes that differs in something else" in note


@pytest.mark.parametrize("mapping", STRATEGIES)
def test_the_text_of_a_mapping_names_every_layer_and_its_cores(lenet5: Any, mapping: str):
    with pytest.raises(StoppedAfterPass) as stopped:
        raptor.compile(lenet5, mapping=mapping, cores=400, driver=Driver(stop_after="choose_order"))
    decided = passes(lenet5, mapping=mapping, cores=400).decision
    text = stopped.value.text
    for name, layer in (in_matrices(decided) | by_line(decided)).items():
        (line,) = (line for line in text.splitlines() if line.startswith(f"  %{name}: "))
        assert str(layer.cores[0]) in line
        assert str(layer.cores[-1]) in line
    for name, parts in decided.flow.loaders.items() if isinstance(decided.flow, LineFlow) else ():
        assert f"%{name}: loaded, " in text
        assert all(f"core {core}" in text for _, core in parts)


@pytest.mark.parametrize(
    ("width", "cores", "replicas"),
    [(24, 2, 2), (96, 1, 2), (96, 2, 4)],
    ids=["one product of a line", "two blocks that are alike, and one at the border", "half of the lines on each core"],
)
def test_replicas_count_the_copies_that_there_are(width: int, cores: int, replicas: int, tmp_path: Path):
    """With several instructions in flight a core holds copies of its matrices, as many as it has products for."""
    program = raptor.compile(conv_model((1, 3, 24, width), 8), arch=arch_file(tmp_path, rob_size=4), cores=cores)
    (layer,) = (x for x in program.report.layers if x.matrices)
    assert program.artifacts is not None
    held = Counter(matrix.tobytes() for core in program.artifacts.machine.weights.values() for matrix in core)
    assert layer.replicas == max(held.values()) == replicas
    assert layer.matrices == sum(held.values())
