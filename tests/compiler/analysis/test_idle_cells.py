"""Zeros that a mapping puts around weights: counted in the matrices, and told by `raptor explain`."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import raptor
from raptor.compiler.analysis.idle_cells import LayerZeros
from raptor.tools.cli.app import build_commands
from tests.tiny_models import make_model, node
from validator.crossbar.chip_programming import list_group_uses
from validator.load.output_directory import load_output

WEIGHTS = np.random.default_rng(0).integers(1, 100, (4, 2, 3, 3)).astype(np.float32)
WEIGHTS[0, 0, :, :] = 0  # one eighth of the weights


def compiled(folder: Path, mapping: str) -> Path:
    layers = [node("Conv", "x w", "a", name="conv", pads=[1, 1, 1, 1]), node("Relu", "a", "y", name="relu")]
    model = make_model(layers, {"x": (1, 2, 8, 8)}, ["y"], {"w": WEIGHTS})
    quantised = raptor.quantize(model).save(folder / f"{mapping}.onnx")
    return raptor.compile(quantised, xbar=64, cores=8, mapping=mapping).save(folder / mapping)


def test_rows_puts_zeros_around_weights_and_raptor_does_not(tmp_path: Path):
    for mapping in ("rows", "raptor"):
        out = compiled(tmp_path, mapping)
        (found,) = raptor.load(out).explain().zeros
        program = load_output(out)
        values = np.concatenate([program.weights.values])
        assert found.node == "conv"
        assert found.own == pytest.approx(1 / 8)
        assert found.stored == pytest.approx(1 - np.count_nonzero(values) / values.size)
        if mapping == "raptor":
            assert found.placed == 0
            assert found.error_factor == 1
        else:
            matrices = [program.weights.matrix(use.core, use.group) for use in list_group_uses(program)]
            rows_used = np.concatenate([np.count_nonzero(matrix, axis=0) for matrix in matrices])
            rows = np.concatenate([np.full(matrix.shape[1], len(matrix)) for matrix in matrices])
            assert found.placed > 0.3
            assert found.error_factor == pytest.approx(
                np.sqrt(rows.mean() / (rows_used.mean() / (1 - found.own))), rel=0.01
            )


@pytest.mark.parametrize(("mapping", "told"), [("rows", True), ("raptor", False)])
def test_explain_tells_them(tmp_path: Path, mapping: str, told: bool):
    done = CliRunner().invoke(build_commands(), ["explain", str(compiled(tmp_path, mapping))])
    assert ("Zeros that the mapping puts around the weights: conv" in " ".join(done.output.split())) == told


def test_floats_have_no_zeros_in_cells(tmp_path: Path):
    layers = [node("Conv", "x w", "y", name="conv")]
    out = raptor.compile(make_model(layers, {"x": (1, 2, 8, 8)}, ["y"], {"w": WEIGHTS})).save(tmp_path / "out")
    assert raptor.load(out).explain().zeros == ()


def test_error_factor():
    """Half of the cells of a sum are zeros of the mapping: twice the variance."""
    layer = LayerZeros("n", 0.6, 0.2)
    assert layer.error_factor == pytest.approx(np.sqrt(2))
    assert layer.placed == pytest.approx(0.5)
    assert LayerZeros("n", 0.2, 0.2).placed == 0
