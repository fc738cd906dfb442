"""Splits of the scripts that measure accuracy: they choose and calibrate with no image of a test."""

import argparse
import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.correctness import accuracy, analog, defects, hardened, pruned
from benchmarks.search import component_studies, samplers
from models.trained import DigitImages, load_images, train_binary, train_digits
from tests.paths import ROOT
from tests.project.documents import blocks, pages


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
TRAINERS = (train_digits, train_binary)
FOLDERS = ("benchmarks", "models", "examples", "docgen")
CHOOSERS = {"train", "train_lightning", "harden", "prune", "prune_model", "quantize", "search_policy", "trim"}
"""Functions and commands that fit or choose something with samples. The argument `test` has samples to refuse."""
MUST_KNOW_TESTS = {"raptor.train", "prune_model"}


def parse_scripts() -> Iterator[tuple[Path, ast.Module]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, ast.parse(path.read_text())


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
    """`datasets` is judged in tests/models, all others here."""
    readers = {
        path.stem
        for path, tree in parse_scripts()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and {"load_images", "DATASETS", "DATA"} & {name.name for name in node.names}
    }
    modules = {script.__name__.rpartition(".")[2] for script in (*STUDIES, *TRAINERS)}
    assert readers == {"datasets", *WRITERS, *modules}


@pytest.mark.parametrize("script", TRAINERS)
def test_networks_are_trained_with_images_for_training(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[DigitImages] = []

    def train(images: DigitImages) -> None:
        given.append(images)
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "train_network", train)
    with pytest.raises(KeyboardInterrupt):
        script.main(tmp_path / "digits.onnx")
    assert [images.pixels.tobytes() for images in given] == [load_images()[0].pixels.tobytes()]


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


def find_choices(tree: ast.AST) -> dict[str, dict[str, str]]:
    """Returns the arguments of each call that fits or chooses something with samples, as texts keyed by their names.

    A name stands for all that the module assigns to it.
    """
    assigned = dict[str, str]()
    for node in ast.walk(tree):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            assigned[ast.unparse(target)] = assigned.get(ast.unparse(target), "") + ast.unparse(node)
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    found = dict[str, dict[str, str]]()
    for call in calls:
        if ast.unparse(call.func).rpartition(".")[2] in CHOOSERS:
            given = {f"{place}": value for place, value in enumerate(call.args)} | {
                k.arg: k.value for k in call.keywords
            }
            found[f"{ast.unparse(call)}, line {call.lineno}"] = {
                name or "**": " ".join([ast.unparse(value), *(assigned.get(n.id, "") for n in list_names(value))])
                for name, value in given.items()
            }
    return found


def list_names(tree: ast.AST) -> list[ast.Name]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Name)]


def test_scripts_fit_and_choose_without_images_of_a_test() -> None:
    """Calls that fit or choose something get no file of test images; trainings know these images, to refuse them."""
    judged = dict[str, int]()
    for path, tree in parse_scripts():
        for call, arguments in find_choices(tree).items():
            judged[path.stem] = judged.get(path.stem, 0) + 1
            options = " ".join(arguments.get(name, "") for name in ("test", "**"))
            assert "test" in options or call.partition("(")[0] not in MUST_KNOW_TESTS, call
            assert not any("test" in text for name, text in arguments.items() if name not in ("test", "**")), call
    assert judged.keys() >= {"accuracy", "analog", "defects", "hardened", "pruned", "component_studies", "samplers"}


@pytest.mark.parametrize("page", [page for page in pages() if "test.npz" in (ROOT / page).read_text()])
def test_pages_fit_and_choose_without_images_of_a_test(page: str) -> None:
    """Test images are in `test.npz` alone, which no command gets that fits or chooses something."""
    text = (ROOT / page).read_text()
    for block in blocks(text):
        if block.language in ("python", "py"):
            tree = ast.parse(block.body)
            saved = [
                ast.unparse(c) for c in ast.walk(tree) if isinstance(c, ast.Call) and "savez" in ast.unparse(c.func)
            ]
            assert all(("'test.npz'" in call) == ("test." in call.replace("test.npz", "")) for call in saved)
            for arguments in find_choices(tree).values():
                assert not any("test" in given for name, given in arguments.items() if name != "test")
    commands = re.findall(r"raptor (\w+) (.*)", text)
    chosen = [words for name, words in commands if name in CHOOSERS]
    assert not [words for words in chosen if re.search(r"--data \S*test", words)]
    assert not [words for _, words in commands if re.search(r"--calibration-data \S*test", words)]
