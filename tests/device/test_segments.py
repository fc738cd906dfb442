"""Programs in segments and in rounds on devices: equal to the reference engine, and written as their files say."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raptor
import raptor.device
from raptor.common.errors import CapacityError
from raptor.device.program_execution import DeviceWriter
from raptor.device.resident_matrices import SharedCrossbars
from raptor.device.server import started
from tests.oversized_models import CHIP, chain
from tests.segmented_models import compiled, sandwich
from tests.tiny_models import node, random
from validator.hosted.run_segments import run_segmented
from validator.load.segmented_program import load_segmented
from validator.program.rounds import iterate_groups, read_rounds
from validator.validate import validate

WIDE = {"xbar": 36, "crossbars": 64}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, "-m", "raptor.device.server", "numpy", "--xbar", "36", "--crossbars", "64"]
    with started(command) as place:
        yield place


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution, a node of the host, a convolution."""
    folder = tmp_path_factory.mktemp("segments") / "out"
    compiled(sandwich([node("Softplus", "a", "b", name="soft")]), folder, host_nodes=["soft"])
    return folder


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four convolutions, of which two run at a time. Two have equal weights on one place of the chip."""
    folder = tmp_path_factory.mktemp("rounds") / "out"
    model = chain()
    known = {w.name: w for w in model.graph.initializer}
    known["w3"].raw_data = known["w1"].raw_data
    program = raptor.compile(model, **CHIP, rounds=True)
    program.save(folder, stream_format="pim", weight_format="npz")
    return folder


def reference(folder: Path, inputs: Any) -> dict[str, bytes]:
    return {n: a.tobytes() for n, a in run_segmented(load_segmented(folder), inputs, engine="python").outputs.items()}


@pytest.mark.parametrize("kind", ["segments", "rounds"])
def test_outputs_are_those_of_the_reference_engine(kind: str, address: str, request: pytest.FixtureRequest):
    folder: Path = request.getfixturevalue(kind)
    inputs = {"x": random(1, 3, 6, 6)}
    want, program = reference(folder, inputs), raptor.load(folder)
    for device in ("numpy", f"socket:{address}"):
        assert {n: a.tobytes() for n, a in program.run(inputs, device=device).items()} == want
    with DeviceWriter("numpy") as chips:
        assert validate(folder, samples=1, write=chips).verdict == "pass"


def test_segments_share_the_crossbars(segments: Path):
    weights = [program.weights for program in load_segmented(segments).programs.values()]
    with raptor.device.open("numpy", **WIDE) as device:
        for _ in range(2):
            raptor.load(segments).run({"x": random(1, 3, 6, 6)}, device=device)
        crossbars = sum(-(-int(cols) // WIDE["xbar"]) for each in weights for cols in each.cols)
        assert device.account.writes == 2 * crossbars
        assert device.free == WIDE["crossbars"] - device.account.writes


def writes_of(folder: Path, crossbars: int, runs: int) -> tuple[list[int], list[bytes]]:
    """Writes of each run of a program in rounds, and its output."""
    found, results = list[int](), list[bytes]()
    with raptor.device.open("numpy", xbar=(16, 16), crossbars=crossbars) as device:
        hosted = load_segmented(folder).write_to_device(DeviceWriter(device))
        for seed in range(runs):
            before = device.account.writes
            outputs = run_segmented(hosted, {"x": random(1, 3, 6, 6, seed=seed)}).outputs
            results.append(outputs["r3"].tobytes())
            found.append(device.account.writes - before)
    return found, results


def test_rounds_are_written_as_rounds_json_says(rounds: Path):
    hosted = load_segmented(rounds)
    listed = read_rounds(rounds, hosted.segments)
    assert listed is not None
    used = [sum(group.xbars for group in iterate_groups(program)) for program in hosted.programs.values()]
    steady = sum(write.xbars for one in listed.rounds for write in one.writes)
    assert 0 < steady < sum(used)
    found, results = writes_of(rounds, CHIP["cores"] * CHIP["xbars_per_core"], 3)
    assert found == [max(used) + steady // 2, steady, steady]
    # A device that is as large as a round computes the same. With one crossbar less there is no room.
    assert writes_of(rounds, max(used), 3) == (found, results)
    with pytest.raises(CapacityError, match=rf"crossbars: need {max(used)}, have {max(used) - 1}"):
        writes_of(rounds, max(used) - 1, 1)


def test_a_matrix_of_another_round_is_not_taken(rounds: Path, monkeypatch: pytest.MonkeyPatch):
    """The planted defect: a place that holds anything counts as written."""
    monkeypatch.setattr(SharedCrossbars, "_holds", lambda turns, group: (group.core, group.first) in turns._held)
    with pytest.raises(raptor.device.ShapeError, match="as the matrix has"):
        raptor.load(rounds).run({"x": random(1, 3, 6, 6)}, device="numpy")
