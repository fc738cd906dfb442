"""Writes `qonnx.npz`: random graphs of QONNX and what the executor of qonnx 1.0.0 computes of them.

    python tests/frontend/qonnx/vectors/make_qonnx.py        (in an environment of its own: pip install qonnx==1.0.0)

All constants have few binary digits, so the executor's float32 rounds nothing, and results are equal to the bit.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from qonnx.core.modelwrapper import ModelWrapper
from qonnx.core.onnx_exec import execute_onnx
from qonnx.transformation.infer_shapes import InferShapes

DOMAIN = "qonnx.custom_op.general"
CASES, INPUTS = 40, 2


class Graph:
    """A random chain of layers, each with a quantiser behind it."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.constants: list[Any] = []
        self.nodes: list[Any] = []
        self.is_conv = self.rng.random() < 0.4
        self.shape = (1, int(self.rng.integers(2, 6)), *((6, 5) if self.is_conv else ()))

    def constant(self, values: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(values, np.float32), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def add(self, kind: str, *inputs: str, **given: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [f"t{len(self.nodes)}"], **given))
        return self.nodes[-1].output[0]

    def scale(self) -> float:
        return float(2.0 ** self.rng.integers(-3, 1))

    def quantised(self, x: str, *, weights: bool = False) -> str:
        kind = self.rng.choice(["Quant", "BipolarQuant", "MultiThreshold"][: 2 if weights else 3])
        if kind == "BipolarQuant":
            return self.add(kind, x, self.constant(self.scale()), domain=DOMAIN)
        if kind == "MultiThreshold":
            return self.counted(x)
        bits, even = int(self.rng.choice([1, 2, 3, 4, 6, 8])), not weights and self.rng.random() < 0.2
        zero, narrow = 2 * int(even and bits > 1), int(bits > 1 and self.rng.random() < 0.5)
        inputs = [self.constant(v) for v in (self.scale(), zero, bits)]
        given = {"signed": int(self.rng.random() < 0.7), "narrow": narrow, "rounding_mode": "ROUND"}
        return self.add(kind, x, *inputs, domain=DOMAIN, **given)

    def counted(self, x: str) -> str:
        count, rows = int(self.rng.choice([1, 2, 3, 7, 11])), 1 if self.rng.random() < 0.4 else self.shape[1]
        borders = np.sort(self.rng.integers(-12, 12, (rows, count)) * 0.25, axis=1)
        scale, bias = [(1.0, 0.0), (2.0, -1.0), (0.5, 0.25), (1.0, -3.0)][self.rng.integers(4)]
        given = {"out_scale": scale, "out_bias": bias, "data_layout": "NCHW" if self.is_conv else "NC"}
        return self.add("MultiThreshold", x, self.constant(borders), domain=DOMAIN, out_dtype="INT8", **given)

    def weights(self, *shape: int) -> str:
        if self.rng.random() < 0.2:
            return self.constant(self.rng.integers(-2, 3, shape))
        return self.quantised(self.constant(self.rng.standard_normal(shape)), weights=True)

    def biases(self, count: int) -> list[str]:
        return [self.constant(self.rng.integers(-4, 5, count) * 0.25)] if self.rng.random() < 0.4 else []

    def layer(self, x: str) -> str:
        ins, outs = self.shape[1], int(self.rng.integers(2, 9))
        if self.is_conv:
            pad = int(self.rng.integers(2))
            self.shape = (1, outs, *(n + 2 * pad - 2 for n in self.shape[2:]))
            return self.add("Conv", x, self.weights(outs, ins, 3, 3), *self.biases(outs), pads=[pad] * 4)
        self.shape = (1, outs)
        if self.rng.random() < 0.3:
            return self.add("Gemm", x, self.weights(outs, ins), *self.biases(outs), transB=1)
        if self.rng.random() < 0.3:
            return self.add("MatMul", x, self.add("Transpose", self.weights(outs, ins), perm=[1, 0]))
        return self.add("MatMul", x, self.weights(ins, outs))

    def chained(self, x: str) -> str:
        n = self.shape[1]
        if self.rng.random() < 0.6:
            factors = self.rng.choice([-1, -0.5, 0, 0.5, 1, 2], n)
            found = [factors, self.rng.integers(-4, 5, n) * 0.25, self.rng.integers(-3, 4, n) * 0.5, np.ones(n)]
            x = self.add("BatchNormalization", x, *map(self.constant, found), epsilon=0.0)
        if self.rng.random() < 0.3:
            x = self.add("Mul", x, self.constant(self.rng.choice([-0.5, 0.5, 2.0])))
        return self.add("Relu", x) if self.rng.random() < 0.3 else x

    def model(self) -> onnx.ModelProto:
        start = self.shape
        x = self.quantised("x")
        for _ in range(int(self.rng.integers(1, 4))):
            if self.is_conv and min(self.shape[2:]) < 3:
                break
            x = self.chained(self.layer(x))
            if self.rng.random() < 0.1:
                break
            x = self.quantised(x)
        ends = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", start), (x, self.shape))]
        graph = helper.make_graph(self.nodes, "random", ends[:1], ends[1:], self.constants)
        opsets = [helper.make_opsetid("", 13), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def main() -> None:
    stored: dict[str, Any] = {}
    for seed in range(CASES):
        graph = Graph(seed)
        shape, model = graph.shape, graph.model()
        wrapped = ModelWrapper(model).transform(InferShapes())
        inputs = [np.asarray(graph.rng.integers(-16, 17, shape) / 8, np.float32) for _ in range(INPUTS)]
        outputs = [execute_onnx(wrapped, {"x": x})[model.graph.output[0].name] for x in inputs]
        stored[f"model{seed}"] = np.frombuffer(model.SerializeToString(deterministic=True), np.uint8)
        stored[f"x{seed}"], stored[f"y{seed}"] = np.stack(inputs), np.stack(outputs)
    np.savez_compressed(Path(__file__).parent / "qonnx.npz", **stored)


if __name__ == "__main__":
    main()
