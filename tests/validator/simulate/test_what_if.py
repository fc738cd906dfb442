"""`raptor explain --what-if`: what the simulator says of a chip whose file has half the latencies."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import models
import raptor
from raptor.output import files
from raptor.tools.cli import app
from tests.validator.simulate import programs
from validator.simulate import builtin
from validator.simulate.cycle import cycle_model, simulated_chip
from validator.simulate.what_if import FASTER_PARTS, speed_up_crossbar, try_faster_parts

Json = dict[str, Any]
SAMPLES = 16
EVEN = {
    "dac_latency_cycle": 2,
    "sample_hold_latency_cycle": 2,
    "xbar_latency": 8,
    "adc_latency_cycle": 20,
    "shift_adder_latency_cycle": 4,
    "output_buffer_latency_cycle": 2,
}
"""Cycles that the file can halve."""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("what-if")
    program = raptor.compile(models.build("lenet5", seed=0), cores=60)
    return program.save(folder / "out", stream_format="pim", weight_format="npz")


def halve(*names: str) -> Callable[[Json], None]:
    """Fields of `core_config`, or of an object in it."""

    def change(core: Json) -> None:
        for name in names:
            *section, field = name.split(".")
            part = core[section[0]] if section else core
            part[field] /= 2
            if part[field] == int(part[field]):
                part[field] = int(part[field])

    return change


IN_THE_FILE = {
    "products (all of a crossbar)": halve("matrix_config.period", "matrix_config.xbar_latency"),
    "DACs": halve("matrix_config.dac_latency_cycle"),
    "crossbar reads": halve("matrix_config.xbar_latency"),
    "ADCs": halve("matrix_config.adc_latency_cycle"),
    "shift adders, output buffers": halve(
        "matrix_config.shift_adder_latency_cycle", "matrix_config.output_buffer_latency_cycle"
    ),
    "ports of local memory": halve("local_memory_config.period"),
    "vector units": halve("vector_latency_cycle"),
}


def on_chip(out: Path, folder: Path, rob_size: int, change: Callable[[Json], None] | None = None, **top: Any) -> Path:
    """A copy of a program with another chip."""
    copied = shutil.copytree(out, folder)
    arch = json.loads((out / files.ARCH).read_text())
    config = arch["chip_config"]
    config["core_config"]["rob_size"] = rob_size
    config["core_config"]["matrix_config"] |= EVEN
    config["global_memory_config"] |= top
    if change is not None:
        change(config["core_config"])
    (copied / files.ARCH).write_text(json.dumps(arch))
    return copied


def times(out: Path) -> tuple[float | None, float | None]:
    report = builtin.simulate(out, out / files.ARCH, mode="throughput", samples=SAMPLES)
    return report.latency_ns, report.interval_ns


def machine_of(out: Path) -> cycle_model.CycleModel:
    return cycle_model.build_cycle_model(
        programs.read_program(out), simulated_chip.read_simulated_chip(out / files.ARCH)
    )


@pytest.mark.parametrize("rob_size", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_each_part_is_what_a_chip_with_such_a_part_would_do(out: Path, tmp_path: Path, rob_size: int) -> None:
    base = on_chip(out, tmp_path / "base", rob_size)
    found = {w.part: (w.latency_ns, w.interval_ns) for w in try_faster_parts(machine_of(base), SAMPLES)}
    assert list(found) == list(FASTER_PARTS)
    for k, (part, change) in enumerate(IN_THE_FILE.items()):
        assert found[part] == times(on_chip(out, tmp_path / str(k), rob_size, change)), part
    assert found["port of global memory"] == times(on_chip(out, tmp_path / "memory", rob_size, period=0.5))
    table = json.loads((base / files.NETWORK).read_text())
    for row in table["latency"].values():
        row |= {to: ns / 2 for to, ns in row.items()}
    (base / files.NETWORK).write_text(json.dumps(table))
    assert found["network"] == times(base)
    unchanged = times(out if rob_size == 1 else on_chip(out, tmp_path / "same", rob_size))
    assert unchanged not in found.values()


@pytest.mark.parametrize(
    "matrix",
    [{"period": 0.78125, "xbar_latency": 30}, {"pipeline_mode": False}, {"adc_latency_cycle": 1}, {"adc_count": 200}],
)
def test_cycles_twice_as_short_and_twice_as_many_change_nothing(matrix: Json, tmp_path: Path) -> None:
    """Halves of one cycle can be told without the others' being rounded."""
    out = programs.write(tmp_path / "out", [programs.SETBW, *[programs.mvmul()] * 5])
    arch = programs.arch()
    arch["chip_config"]["core_config"]["matrix_config"] |= matrix
    (out / files.ARCH).write_text(json.dumps(arch))
    machine = machine_of(out)
    assert (
        cycle_model.run_cycle_model(speed_up_crossbar()(machine)).last_tick
        == cycle_model.run_cycle_model(machine).last_tick
    )
    faster = cycle_model.run_cycle_model(speed_up_crossbar("adc_cycles")(machine)).last_tick
    assert (faster < cycle_model.run_cycle_model(machine).last_tick) == (
        "adc_count" not in matrix
    )  # which makes them free already


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    with pytest.raises(SystemExit) as stopped:
        app.main(["explain", *map(str, arguments)])
    shown = capsys.readouterr()
    assert stopped.value.code in (0, None), shown.err
    return shown.out


def test_the_command_and_that_it_writes_nothing(
    out: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    text = run(capsys, out, "--what-if")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert list(tmp_path.iterdir()) == []
    written = json.loads(run(capsys, out, "--what-if", "--json", "-"))
    expected = try_faster_parts(machine_of(out), SAMPLES)
    assert [(w["part"], w["latency_ns"], w["interval_ns"]) for w in written["what_if"]] == [
        (w.part, w.latency_ns, w.interval_ns) for w in expected
    ]
    rows = text[text.index("as it is") :].splitlines()[1 : len(expected) + 1]
    best = min(expected, key=lambda w: (w.latency_ns, w.interval_ns))
    assert rows[0].startswith(best.part)
    assert f"{best.latency_ns / written['latency_ns'] - 1:+.1%}" in rows[0]
    assert {row.split("  ")[0] for row in rows} == set(FASTER_PARTS)
    assert "What if" not in run(capsys, out)
    assert json.loads(run(capsys, out, "--json", "-"))["what_if"] == []


def test_every_time_of_the_model_belongs_to_a_part(out: Path):
    """Not the clock of the cores, which all parts share, and not the sizes that say how often a part works."""
    machine = machine_of(out)
    machine = replace(machine, numbers=machine.numbers._make(number or 1000 for number in machine.numbers))
    faster = {
        name
        for change in FASTER_PARTS.values()
        for name, before, after in zip(machine.numbers._fields, machine.numbers, change(machine).numbers, strict=True)
        if before != after
    }
    times = {name for name in machine.numbers._fields if name.endswith(("_ps", "_ns"))}
    assert faster >= times - {"period_ps"}
