"""Power over time: windows add up to the energy, a known wave, and what pimsim-nn does not count."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
import raptor
from raptor.common.errors import UserError
from raptor.target import arch as architectures
from raptor.target.arch.field_names import field_paths
from tests.validator.simulate import generator
from tests.validator.simulate.programs import SETBW, load, mvmul, recv, run, send, sldi, write
from validator.simulate import builtin
from validator.simulate.analysis import energy, power
from validator.simulate.analysis.uncounted_power import compute_uncounted_power
from validator.simulate.cycle import cycle_model

WINDOWS = ("100ns", "1us", "7.3us", "100us")
MODES = ("latency", "throughput")
SMALL: dict[str, dict[str, Any]] = {
    "bert_tiny": {"tokens": 16, "depth": 1},
    "densenet121": {"image_size": 32, "width": 0.25},
    "efficientnet_b0": {"image_size": 32, "width": 0.25},
    "googlenet": {"image_size": 32, "width": 0.125},
    "lenet5": {},
    "lstm": {"steps": 4},
    "mlp": {},
    "mlp3": {},
    "mobilenet_v2": {"image_size": 32, "width": 0.25},
    "resnet18": {"image_size": 32, "width": 0.125},
    "resnet34": {"image_size": 32, "width": 0.125},
    "shufflenet_v2": {"image_size": 32, "width": 0.25},
    "squeezenet": {"image_size": 48, "width": 0.25},
    "unet": {"image_size": 32, "width": 0.125},
    "vit_tiny": {"image_size": 64, "depth": 1},
    "wavenet_cell": {"samples": 32},
}
QUICK = ("lenet5", "lstm", "mobilenet_v2")
COLUMNS = [f"{part}_w" for part in power.PARTS]


def rows_of(file: Path) -> list[dict[str, float]]:
    with file.open() as stream:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(stream)]


def check_sums(program: Path, folder: Path, mode: Any, window: str) -> float:
    """Compares the rows of a file with the energy by part of the same simulation. Returns the peak."""
    file = folder / "power.csv"
    report = builtin.simulate(program, mode=mode, power_file=file, window=window)
    rows = rows_of(file)
    assert [row["end_ns"] for row in rows[:-1]] == [row["start_ns"] for row in rows[1:]]
    assert rows[-1]["end_ns"] == report.interval_ns or rows[-1]["end_ns"] == report.latency_ns
    spans = np.array([row["end_ns"] - row["start_ns"] for row in rows])
    for name, column in zip(power.PARTS, COLUMNS, strict=True):
        watts = np.array([row[column] for row in rows])
        assert (watts >= 0).all()
        assert (watts * spans).sum() * 1000 == pytest.approx(report.energy_parts_pj[name], rel=1e-9, abs=1e-9)
    total = np.array([row["total_w"] for row in rows])
    assert (total * spans).sum() * 1000 == pytest.approx(report.energy_pj, rel=1e-9)
    assert report.power_average_w == pytest.approx((total * spans).sum() / rows[-1]["end_ns"], rel=1e-9)
    whole = total[np.isclose(spans, spans[0])] if len(rows) > 1 else total
    assert report.power_peak_w == pytest.approx(whole.max(), rel=1e-12)
    return report.power_peak_w or 0.0


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SMALL]
)
def test_windows_add_up_to_the_energy_of_models(name: str, tmp_path: Path):
    program = raptor.compile(models.build(name, seed=0, **SMALL[name])).save(tmp_path / "out")
    for mode in MODES:
        peaks = [check_sums(program, tmp_path, mode, window) for window in WINDOWS]
        # 1 us is ten of the first windows, 100 us a hundred of the second.
        assert peaks[0] >= peaks[1] * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_windows_add_up_on_random_chips(seed: int, tmp_path: Path):
    """Their files have powers of decoders and registers, whose accesses have no time of their own."""
    case = generator.random_case(seed)
    generator.write(case, tmp_path / "out")
    for mode in MODES:
        try:
            builtin.simulate(tmp_path / "out", mode=mode)
        except UserError:
            continue  # streams that cannot be repeated
        for window in ("3ns", "1us"):
            check_sums(tmp_path / "out", tmp_path, mode, window)


def test_a_known_square_wave(tmp_path: Path):
    """One product takes 8 passes of (read 22.24 mW x 7 ns + 8 turns of 16 ADCs x 1.135 mW x 20 ns) on one crossbar."""
    matrix: dict[str, Any] = {"xbar_array_count": 1, "xbar_size": [128, 128], "cell_precision": 2, "period": 1}
    matrix |= {"xbar_latency": 7.0, "xbar_read_power": 22.24, "adc_count": 16, "adc_latency_cycle": 20}
    matrix |= {"adc_dynamic_power": 1.135, "dac_count": 128}
    folder = write(tmp_path / "out", [SETBW, mvmul(), sldi(1, 0), mvmul()], matrix_config=matrix)
    done = run(tmp_path / "again", [SETBW, mvmul(), sldi(1, 0), mvmul()], matrix_config=matrix)
    report = builtin.simulate(folder, power_file=tmp_path / "power.csv", window="1ns")
    product_pj = 8 * (22.24 * 7 + 8 * 16 * 1.135 * 20)
    assert report.energy_parts_pj["products"] == pytest.approx(2 * product_pj)
    rows = rows_of(tmp_path / "power.csv")
    on = np.zeros(len(rows))
    for pc in (1, 3):
        end = int(done.end[pc]) // 1000 - 1
        busy = int(done.busy[pc]) // 1000
        on[end - busy : end] = product_pj / busy / 1000
    assert [row["products_w"] for row in rows] == pytest.approx(list(on), abs=1e-12)
    assert 0 < np.count_nonzero(on) < len(rows)
    assert report.power_peak_w == pytest.approx(max(row["total_w"] for row in rows))
    assert rows[int(report.power_peak_start_ns or 0)]["total_w"] == report.power_peak_w


def test_cores_together_are_the_chip(tmp_path: Path):
    machine = load(write(tmp_path / "out", [SETBW, mvmul(), send(1, 256)], [SETBW, recv(0, 256), mvmul()]))
    active = power.make_sample_activity(machine, cycle_model.run_cycle_model(machine))
    parts, cores, total = (
        make(active, 50.0) for make in (power.make_curve_by_part, power.make_curve_by_core, power.make_total_curve)
    )
    assert cores.energy_pj.shape[0] == 2
    memory_pj = 1.0 * active.time_ns  # static power of global memory, 1 mW by default
    assert cores.energy_pj.sum() + memory_pj == pytest.approx(parts.energy_pj.sum(), rel=1e-12)
    assert total.energy_pj[0] == pytest.approx(parts.energy_pj.sum(axis=0), rel=1e-12)


def test_counters_of_the_trace(tmp_path: Path):
    folder = write(tmp_path / "out", [SETBW, *[mvmul()] * 40])
    report = builtin.simulate(folder, trace_file=tmp_path / "trace.json", window="1us")
    events = json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]
    counters = [event for event in events if event["ph"] == "C"]
    assert counters[-1]["ts"] == pytest.approx((report.latency_ns or 0) / 1000)
    assert not any(counters[-1]["args"].values())
    times = np.diff([event["ts"] for event in counters])
    watts = np.array([sum(event["args"].values()) for event in counters[:-1]])
    assert (times * watts).sum() * 1e6 == pytest.approx(report.energy_pj, rel=1e-9)


@pytest.mark.parametrize("window", ["1", "0us", "-1us", "1 hour", "1e3us", "us", 0, float("nan"), True, "2000s"])
def test_windows_that_are_no_time(tmp_path: Path, window: Any):
    folder = write(tmp_path / "out", [SETBW, mvmul()])
    with pytest.raises(UserError, match=r"window=.*expected a time from 1ps to 1000s"):
        builtin.simulate(folder, window=window)


def test_a_file_of_too_many_windows_is_refused(tmp_path: Path):
    folder = write(tmp_path / "out", [SETBW, *[mvmul()] * 20])
    with pytest.raises(UserError, match=r"windows in the run.*at most 1,000,000; try window='0.1ns'"):
        builtin.simulate(folder, power_file=tmp_path / "power.csv", window="1ps")
    assert not (tmp_path / "power.csv").exists()
    # Without a file the windows of the peak are made longer, and the report says so.
    assert builtin.simulate(folder, window="1ps").power_window_ns == pytest.approx(0.1)


def test_static_power_that_is_not_counted():
    """The ADCs of bench: 0.322 mW each, 16 a crossbar, 64 crossbars a core."""
    found = compute_uncounted_power(architectures.load("bench", cores=200), 3, 2, 1000.0, 5000.0)
    assert found.whole_chip.power_w == pytest.approx(0.322e-3 * 16 * 64 * 200)
    assert found.cores_in_use.power_w == pytest.approx(0.322e-3 * 16 * 64 * 2)
    assert found.crossbars_in_use.parts_w["adc"] == pytest.approx(0.322e-3 * 16 * 3)
    assert found.crossbars_in_use.energy_pj == pytest.approx(0.322 * 16 * 3 * 1000)
    assert found.times_counted == pytest.approx(0.322 * 16 * 3 * 1000 / 5000)


def test_every_static_field_is_counted_or_uncounted():
    """1 W in a static field of a file is in the static part of the energy or beyond the simulator, never in both."""
    base = architectures.load("bench", cores=2)
    names = [path for path in field_paths() if path.endswith("static_power")]
    assert len(names) > 15
    for name in names:
        found = architectures.load("bench", cores=2, fields={name: 1000.0})
        counted, beyond = (
            measure(found) - measure(base)
            for measure in (
                lambda chip: energy.static_mw(chip, 2),
                lambda chip: compute_uncounted_power(chip, 2, 2, 1.0, None).crossbars_in_use.power_w,
            )
        )
        assert (abs(counted) > 1) != (abs(beyond) > 1e-3), name
