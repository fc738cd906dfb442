"""The latency timeout in arch.json: pimsim-nn gives up after it, so it must exceed what the program takes."""

import json
from pathlib import Path

import pytest

import models
import raptor
from validator.simulate.builtin import simulate


@pytest.mark.parametrize("mapping", ["raptor", "rows"])
@pytest.mark.parametrize("name", ["lenet5", "squeezenet"])
def test_the_timeout_exceeds_the_latency(name: str, mapping: str, tmp_path: Path):
    options = {} if name == "lenet5" else {"width": 0.25, "image_size": 64}
    program = raptor.compile(models.build(name, seed=0, **options), mapping=mapping)
    out = program.save(tmp_path / "out", stream_format="pim", weight_format="npz")
    arch = json.loads((out / "arch.json").read_text())
    arch["sim_config"]["latency_timeout_ms"] = 0.001
    (out / "chip.json").write_text(json.dumps(arch))  # beside its network table
    small = raptor.compile(models.build(name, seed=0, **options), mapping=mapping, arch=out / "chip.json")
    assert small.artifacts is not None
    timeout_ms = small.artifacts.arch.simulator.timeout_ms
    latency_ns = simulate(out, out / "arch.json").latency_ns
    assert latency_ns is not None
    assert latency_ns < timeout_ms * 1e6
