"""Limits of RAPTOR as the pages say them: a test fails when its limit is gone (tests/project/claims.toml)."""

import json
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
import raptor
from docgen import json_schemas
from raptor.tools.cli import app
from tests.paths import ROOT
from tests.pipeline import check
from tests.tiny_models import make_model, node, random
from tests.validator.simulate.programs import SETBW, arch, mvmul, recv, run, send, write
from validator.simulate.builtin import simulate

SOURCES = [path for folder in ("raptor", "validator") for path in (ROOT / folder).rglob("*.py")]


def test_no_instruction_branches() -> None:
    """A run executes every instruction of a program once."""
    program = raptor.compile(models.build("mlp", width=0.05), cores=4)
    assert program.validate().instructions == program.report.instruction_count


def test_messages_do_not_meet_on_the_network(tmp_path: Path) -> None:
    """Two messages over the same links take as long as one."""

    def receive(core: int) -> list[dict[str, Any]]:
        return [SETBW, recv(core, 4096)]

    one = run(tmp_path / "one", [SETBW, send(3, 4096)], [SETBW], [SETBW], receive(0))
    both = run(tmp_path / "both", [SETBW, send(3, 4096)], [SETBW, send(2, 4096)], receive(1), receive(0))
    assert both.last_tick == one.last_tick


@pytest.mark.parametrize("name", ["refresh", "drift", "faults", "retention", "stuck", "temperature"])
def test_energy_knows_no_errors_of_cells(name: str) -> None:
    """An architecture file, from which energy follows, has no field for them."""
    found = re.findall(r'"(\w+)":', json_schemas.make_all_schemas()["arch.schema.json"].decode())
    assert "adc_dynamic_power" in found
    assert not [key for key in found if name in key.split("_")]


@pytest.mark.parametrize(
    ("part", "field", "counts"),
    [
        ("matrix_config", "adc_dynamic_power", True),
        ("core_config", "transfer_static_power", True),
        *(("matrix_config", f"{name}_static_power", False) for name in ("adc", "dac", "sample_hold", "shift_adder")),
        *(("matrix_config", f"{name}_buffer_static_power", False) for name in ("input", "output")),
        ("matrix_config", "input_buffer_dynamic_power", False),
        ("matrix_config", "adc_resolution", False),
        *(("core_config", f"controller_{name}_power", False) for name in ("static", "dynamic")),
        ("core_config", "transfer_dynamic_power", False),
    ],
)
def test_fields_that_are_in_no_energy(part: str, field: str, counts: bool, tmp_path: Path) -> None:
    """They are read from the architecture file, and the simulator never adds them."""
    changed = arch()
    core = changed["chip_config"]["core_config"]
    (core["matrix_config"] if part == "matrix_config" else core)[field] = 4
    stream = [SETBW, mvmul(), send(1, 64)], [SETBW, recv(0, 64)]
    files = [write(tmp_path / name, *stream) for name in ("without", "with")]
    (files[1] / "arch.json").write_text(json.dumps(changed))
    without, with_field = (simulate(folder, folder / "arch.json").energy_pj for folder in files)
    assert (without != with_field) == counts


def test_energy_does_not_depend_on_data(tmp_path: Path) -> None:
    """A product takes as much with a folded ReLU; weights are in no file of this program."""
    files = [write(tmp_path / str(relu), [SETBW, mvmul() | {"relu": relu}]) for relu in (0, 1)]
    assert len({simulate(folder, folder / "arch.json").energy_pj for folder in files}) == 1


def test_what_a_device_file_describes() -> None:
    """A cell that is modelled in more detail has a field more."""
    schema = json.loads(json_schemas.make_all_schemas()["device.schema.json"])
    found = set(schema["properties"]).union(*(part.get("properties", ()) for part in schema["$defs"].values()))
    assert found == FIELDS_OF_DEVICES


FIELDS_OF_DEVICES = {
    "adc",
    "after_s",
    "at_once",
    "at_once_per_core",
    "bits",
    "bytes_per_ns",
    "cell_bits",
    "cells",
    "dac_bits",
    "drift",
    "encoding",
    "endurance_cycles",
    "exponent",
    "factor",
    "flicker",
    "high",
    "idle",
    "inputs",
    "intercept",
    "levels",
    "low",
    "mean",
    "most",
    "name",
    "noise_lsb",
    "ns",
    "off",
    "on",
    "pj_per_cell",
    "polynomial",
    "product",
    "programming",
    "range",
    "read",
    "read_out",
    "read_s",
    "rows_at_once",
    "saturation",
    "scope",
    "slope",
    "source",
    "std",
    "stuck_off",
    "stuck_on",
    "t0_s",
    "unit",
    "verify_pulses",
    "version",
    "wire_ohm",
    "write",
}


def test_an_input_may_be_a_link(tmp_path: Path) -> None:
    """The user chose it."""
    program = raptor.compile(models.build("mlp", width=0.05), cores=4)
    out = program.save(tmp_path / "out")
    np.save(tmp_path / "x.npy", np.zeros((1, 784), np.float32))
    (tmp_path / "link.npy").symlink_to(tmp_path / "x.npy")
    with pytest.raises(SystemExit, match="0"):
        app.main(["validate", str(out), "--input", str(tmp_path / "link.npy"), "-q"])


def test_no_framework_is_installed_with_it() -> None:
    required = [line for line in requires("raptor-crossbar") or [] if "extra ==" not in line]
    assert len(required) > 5
    assert not [line for line in required if re.match("torch|jax|keras|tensorflow|scikit", line)]


def test_nothing_runs_on_a_graphics_processor() -> None:
    imported = re.compile(
        r"^\s*(?:import|from) (?:cupy|numba\.cuda|jax\.experimental\.pallas)|\bcuda\.jit", re.MULTILINE
    )
    assert len(SOURCES) > 500
    assert not [path for path in SOURCES if imported.search(path.read_text())]


def test_texts_of_programs_are_not_mlir(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="0"):
        app.main(["models", "mlp", "--option", "width=0.05", "-o", str(tmp_path / "m.onnx"), "-q"])
    with pytest.raises(SystemExit, match="0"):
        app.main(["compile", f"{tmp_path}/m.onnx", "-o", f"{tmp_path}/out", "--dump-ir", f"{tmp_path}/ir", "-q"])
    texts = [path.read_text() for path in (tmp_path / "ir").iterdir()]
    assert len(texts) > 10
    assert not [text for text in texts if re.match(r'\s*(?:module|"?builtin\.module|"\w+\.\w+"\()', text)]


def test_a_step_of_decoding_has_its_cache_as_inputs_and_outputs() -> None:
    """Keys and values of earlier tokens come in; those of the new one are appended."""
    nodes = [
        *(node("MatMul", f"x w{n}", n, name=n) for n in "qkv"),
        *(node("Concat", f"past_{n} {n}", f"new_{n}", axis=1, name=f"join_{n}") for n in "kv"),
        node("Transpose", "new_k", "t", perm=[0, 2, 1]),
        node("MatMul", "q t", "scores", name="scores"),
        node("Softmax", "scores", "shares", axis=-1),
        node("MatMul", "shares new_v", "y", name="mixed"),
    ]
    weights = {f"w{n}": random(8, 8, seed=i) for i, n in enumerate("qkv")}
    inputs = {"x": (1, 1, 8), "past_k": (1, 5, 8), "past_v": (1, 5, 8)}
    check(make_model(nodes, inputs, {"y": 3, "new_k": 3, "new_v": 3}, weights), xbar=16, cores=8)


@pytest.mark.parametrize("scheme", ["s8s8", "u8s8"])
def test_a_scale_for_each_channel_takes_no_crossbars(scheme: str, tmp_path: Path) -> None:
    used: list[int] = []
    for per_channel in (False, True):
        path = tmp_path / f"{per_channel}.onnx"
        raptor.quantize(models.build("lenet5"), scheme=scheme, per_channel=per_channel).save(path)
        used.append(raptor.compile(path, cores=40, mapping="raptor").report.xbars_used)
    assert used[0] == used[1]


def test_the_command_looks_for_no_package_in_the_current_folder(tmp_path: Path) -> None:
    for name in ("models", "validator"):
        (tmp_path / f"{name}.py").write_text("class Net: ...\n")
    command = [Path(sys.executable).with_name("raptor"), "models", "mlp", "--option", "width=0.1"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
