"""Splits of the scripts that measure accuracy: they choose and calibrate with no image of a test."""

import argparse
import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.correctness import accuracy, analog, defects, hardened, pruned
from benchmarks.search import component_studies, samplers
from models.trained import load_images
from tests.paths import ROOT


def find_images(file: Path) -> set[bytes]:
    with np.load(file) as arrays:
        return {
            image.astype(np.float32).tobytes()
            for name in arrays.files
            if arrays[name].ndim > 1
            for image in arrays[name]
        }


def write_hardened(folder: Path) -> None:
    given = argparse.Namespace(data="digits", source=Path(), network=None)
    hardened.HardenedBench(folder, given).write_data()


WRITERS: dict[str, Callable[[Path], object]] = {
    "accuracy": accuracy.write_calibration,
    "analog": lambda folder: analog.write_images(folder, 600),
    "defects": lambda folder: defects.quantise_digits(folder, 600),
    "hardened": write_hardened,
    "pruned": pruned.write_samples,
}
STUDIES = (component_studies, samplers)


@pytest.mark.parametrize("name", WRITERS)
def test_no_image_of_a_test_is_in_another_file(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path)
    training, test = ({image.tobytes() for image in part.pixels} for part in load_images())
    found = {file.name: find_images(file) for file in tmp_path.glob("*.npz")}
    assert found.pop("test.npz", test) == test
    assert found
    for file, images in found.items():
        assert images <= training, file
        assert not images & test, file


def test_every_script_that_reads_images_is_judged_here() -> None:
    readers = {
        path.stem
        for path in (ROOT / "benchmarks").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and {"load_images", "DATASETS"} & {name.name for name in node.names}
    }
    assert readers == {*WRITERS, *(script.__name__.rpartition(".")[2] for script in STUDIES)}


@pytest.mark.parametrize("script", STUDIES)
def test_studies_choose_and_calibrate_with_images_for_training(script: Any, tmp_path: Path) -> None:
    script.write_digits(tmp_path)
    training, test = ({image.tobytes() for image in part.pixels} for part in load_images())
    found = [find_images(file) for file in tmp_path.glob("*.npz")]
    assert len(found) == 2
    assert not found[0] & found[1]
    assert found[0] | found[1] <= training - test


def list_calls(tree: ast.AST, names: set[str]) -> list[ast.Call]:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in names]


@pytest.mark.parametrize("name", ["analog", "hardened"])
def test_converters_are_calibrated_with_images_for_training(name: str) -> None:
    """A calibrated converter takes its range from the measured samples unless others are given."""
    tree = ast.parse((ROOT / "benchmarks" / "correctness" / f"{name}.py").read_text())
    calls = list_calls(tree, {"measure_accuracy"})
    assert calls
    for call in calls:
        given = {keyword.arg for keyword in call.keywords}
        assert "calibration_data" in given or not given, ast.unparse(call)


def test_trainings_of_a_script_refuse_images_of_a_test() -> None:
    tree = ast.parse((ROOT / "benchmarks" / "correctness" / "hardened.py").read_text())
    calls = [c for c in ast.walk(tree) if isinstance(c, ast.Call) and ast.unparse(c.func) == "raptor.train"]
    assert calls
    assert all("test" in {keyword.arg for keyword in call.keywords} for call in calls)
