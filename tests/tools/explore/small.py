"""Small models and studies for the tests of studies."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from raptor.tools.explore.study.study_file import Study, read_study

TRIALS = "trials = 16\nbatch = 8\nseed = 3"
SPACE = """
xbar = [16, "32x64"]
cores = { min = 1, max = 4 }
cell_bits = [2, 8]
mapping = ["rows", "raptor"]
"""


def model(path: Path, seed: int = 0, size: int = 40) -> Path:
    """Writes two fully connected layers."""
    rng = np.random.default_rng(seed)
    weights = [rng.standard_normal((size, size)).astype(np.float32) for _ in range(2)]
    nodes = [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("MatMul", ["h", "b"], ["y"])]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, size]) for n in ("x", "y")]
    given = [numpy_helper.from_array(w, n) for w, n in zip(weights, "ab", strict=True)]
    graph = helper.make_graph(nodes, "two layers", values[:1], values[1:], given)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def write(folder: Path, study: str = "", space: str = SPACE, rest: str = "", models: int = 1) -> Path:
    """Writes models and a study file; returns its path."""
    folder.mkdir(exist_ok=True)
    names = [model(folder / f"m{k}.onnx", k, 40 + 8 * k).name for k in range(models)]
    path = folder / "study.toml"
    path.write_text(
        'objectives = { latency_ns = "min", energy_pj = "min", xbars = "min" }\n'
        f'[study]\nname = "small"\nmodels = {names}\n{study or TRIALS}\n'
        f"[options]\nxbars_per_core = 8\n[space]{space}\n{rest}"
    )
    return path


def small(folder: Path, study: str = "", space: str = SPACE, rest: str = "", models: int = 1) -> Study:
    """Writes and reads a study."""
    return read_study(write(folder, study, space, rest, models))
