"""Steps trained recurrent models whose states stay on the chip, for docs/reference/trained-models.md.

python -m benchmarks.correctness.trained_states FOLDER [--download]

Each model is validated over 500 steps beside onnxruntime, which has its own states. Then eight sessions take random
turns on one chip: their states are saved and restored by the programs for that, and each is compared after each turn
with a state of onnxruntime. FOLDER: as for `benchmarks.programs.trained_models`.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import raptor
from benchmarks.programs.resident_values import format_line
from benchmarks.programs.trained_models import MODELS, download_packages
from validator.execution.stepped_run import SteppedRun
from validator.load.output_directory import load_output
from validator.model.ort_session import create_session
from validator.validate import validate


@dataclass(frozen=True, slots=True)
class SteppedModel:
    """A model of `trained_models` by name, with the output that is the next value of each input."""

    name: str
    states: Mapping[str, str]


STEPPED = (
    SteppedModel("voice-activity-2", {"state": "stateN"}),
    SteppedModel("denoiser-mask", {"input_3": "tf_op_layer_stack_2"}),
    SteppedModel("denoiser-signal", {"input_5": "tf_op_layer_stack_5"}),
)
STEPS, SESSIONS, TURNS, CLOSE = 500, 8, 200, 1e-4
COLUMNS = (
    *("model", "options", "step, us", "step through the host, us", "state saved and restored, us"),
    *("steps validated", "sessions", "turns", "largest deviation of a state"),
)


def compare_sessions(folder: Path, path: Path, states: Mapping[str, str]) -> float:
    """Returns the largest deviation of a state, by its largest value, over random turns of several sessions."""
    program, session = load_output(folder), create_session(str(path), path)
    chip, rng, names = SteppedRun(program), np.random.default_rng(0), [out.name for out in session.get_outputs()]
    shapes = {place.name: place.shape for place in program.memory.inputs}
    zeros = {name: np.zeros(shapes[name], np.float32) for name in states}
    saved, wanted, worst = [chip.save()] * SESSIONS, [dict[str, Any](zeros)] * SESSIONS, 0.0
    turns: list[int] = rng.integers(SESSIONS, size=TURNS).tolist()
    for user in turns:
        given = {name: rng.standard_normal(shapes[name]).astype(np.float32) for name in shapes.keys() - states.keys()}
        found: dict[str, Any] = dict(zip(names, session.run(None, {**given, **wanted[user]}), strict=True))
        chip.restore(saved[user])
        outputs = chip.step(given)
        saved[user], wanted[user] = chip.save(), {name: found[output] for name, output in states.items()}
        for output in states.values():
            error = np.abs(outputs[output] - found[output]).max() / np.abs(found[output]).max()
            worst = max(worst, float(error))
    return worst


def measure(stepped: SteppedModel, models: Path, folder: Path) -> tuple[list[str], bool]:
    """Returns the cells of a line, and whether each state was right."""
    path = next(model for model in MODELS if model.name == stepped.name).model_path(models)
    options: dict[str, Any] = {"states": stepped.states, "resident_constants": True}
    through_host = raptor.compile(path).simulate().latency_ns or 0.0
    program = raptor.compile(path, **options)
    program.save(folder, force=True)
    report = program.simulate(mode="throughput")
    swap_ns = sum(report.auxiliary[name].latency_ns for name in ("save", "restore"))
    passed = validate(folder, samples=STEPS).verdict == "pass"
    worst = compare_sessions(folder, path, stepped.states)
    typed = " ".join(f"--state {name}={output}" for name, output in stepped.states.items())
    cells = [stepped.name, f"`{typed} --constants resident`"]
    cells += [f"{ns / 1e3:.4g}" for ns in (report.interval_ns or 0.0, through_host, swap_ns)]
    cells += [f"{STEPS}" if passed else "WRONG", f"{SESSIONS}", f"{TURNS}", f"{worst:.1e}"]
    return cells, passed and worst <= CLOSE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--download", action="store_true")
    given = parser.parse_args()
    if given.download:
        names = [stepped.name for stepped in STEPPED]
        download_packages(given.folder, [model for model in MODELS if model.name in names])
    print(format_line(COLUMNS))
    print(format_line(["---", "---", *["---:"] * (len(COLUMNS) - 2)]))
    right = True
    for stepped in STEPPED:
        with tempfile.TemporaryDirectory() as folder:
            cells, passed = measure(stepped, given.folder, Path(folder))
        print(format_line(cells), flush=True)
        right &= passed
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
