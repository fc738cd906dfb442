"""Studies of chips from components, for docs/how-to/chips.md: `make bench-components`.

Two grids on variants of the shipped component file. Digits: which converters and cells read the digits network, by
area, energy and accuracy on 300 training images (test images choose nothing). Tiny: which chip of an ISAAC style runs
the three networks of MLPerf Tiny, by area, energy and latency. Printed are the points that no other one beats.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import models
import raptor
from models.trained import MODEL, load_images
from raptor.tools.explore import study_driver
from raptor.tools.explore.evaluation.trial_outcomes import TrialOutcome
from raptor.tools.explore.results.pareto_front import pareto_front
from raptor.tools.explore.study.study_file import read_study

TINY = ("ds_cnn", "resnet8", "fc_autoencoder")
CALIBRATION, VALIDATION = slice(0, 200), slice(200, 500)


@dataclass(frozen=True)
class ComponentStudy:
    """A study: its file, a function that writes its models and data, and its figures with title and factor."""

    text: str
    prepare: Callable[[Path], None]
    figures: Sequence[tuple[str, str, float]]


def write_digits(folder: Path) -> None:
    training, _ = load_images()
    np.savez(folder / "calibration.npz", image=training.pixels[CALIBRATION])
    np.savez(folder / "validation.npz", x=training.pixels[VALIDATION], y=training.digits[VALIDATION])
    raptor.quantize(MODEL, data=folder / "calibration.npz", per_channel=True).save(folder / "digits.onnx")


def write_tiny(folder: Path) -> None:
    for name in TINY:
        (folder / f"{name}.onnx").write_bytes(models.build(name, seed=0).SerializeToString())


AREA, ENERGY = ("area_mm2", "area, mm2", 1.0), ("energy_pj", "energy, uJ", 1e-6)
STUDIES = (
    ComponentStudy(
        """
        objectives = { area_mm2 = "min", energy_pj = "min", top1 = "max" }
        study = { name = "digits", models = ["digits.onnx"], components = "example", sampler = "grid", trials = 54 }
        accuracy = { data = ["validation.npz"], crossbar = "sliced" }
        constraints = { top1 = ">= 0.95" }
        [space]
        components.chip.cores = [16]
        components.crossbar.rows = [64, 128, 256]
        components.crossbar.cell_bits = [1, 2, 4]
        components.adc.bits = [4, 5, 6, 7, 8, 9]
        """,
        write_digits,
        (AREA, ENERGY, ("top1", "top-1, %", 100.0)),
    ),
    ComponentStudy(
        f"""
        objectives = {{ area_mm2 = "min", energy_pj = "min", latency_ns = "min" }}
        [study]
        name = "tiny"
        models = [{", ".join(f'"{name}.onnx"' for name in TINY)}]
        components = "example"
        sampler = "grid"
        trials = 54
        [space]
        components.chip.cores = [16, 32, 64]
        components.crossbar.per_core = [16, 32, 96]
        components.crossbar.rows = [64, 128]
        components.adc.bits = [6, 8, 10]
        """,
        write_tiny,
        (AREA, ENERGY, ("latency_ns", "latency, us", 1e-3)),
    ),
)


def main() -> None:
    """Runs both studies and prints their fronts as tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="keep the studies here, and go on with those that are there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for study in STUDIES:
            print("\n".join(format_front(study, given.folder or Path(scratch))), end="\n\n")


def format_front(given: ComponentStudy, folder: Path) -> list[str]:
    """Runs a study, and returns the table of its front, by the first figure."""
    folder.mkdir(parents=True, exist_ok=True)
    given.prepare(folder)
    path = folder / "study.toml"
    path.write_text("\n".join(line.strip() for line in given.text.strip().splitlines()))
    study = read_study(path)
    front = pareto_front(study, list(study_driver.run_study(study)))
    varied = [name for name in front[0].trial.point if len({o.trial.point[name] for o in front}) > 1]
    columns = [*(title for _, title, _ in given.figures), *(name.removeprefix("components.") for name in varied)]
    front.sort(key=lambda outcome: [outcome.figures[name] for name, _, _ in given.figures])
    rows = [_cells(given, outcome, varied) for outcome in front]
    return [f"| {' | '.join(line)} |" for line in (columns, ["---:"] * len(columns), *rows)]


def _cells(given: ComponentStudy, outcome: TrialOutcome, varied: Sequence[str]) -> list[str]:
    figures = [f"{outcome.figures[name] * factor:.4g}" for name, _, factor in given.figures]
    return figures + [str(outcome.trial.point[name]) for name in varied]


if __name__ == "__main__":
    main()
