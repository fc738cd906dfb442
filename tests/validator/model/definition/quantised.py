"""Small quantised models: builders of graphs, and onnxruntime as witness."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from validator.judge.check_definition import find_differences, load_nodewise_session
from validator.model.definition.evaluator import load_definition
from validator.model.definition.exact_values import ExactReal

LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


class Graph:
    """A graph that grows node by node; integers are its inputs."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.initializers, self.inputs, self.values = [], [], [], {}

    def scale(self, low=1e-3, high=1e-1, shape=()):
        """Returns random float32 scales, evenly on a logarithmic axis."""
        return np.exp(self.rng.uniform(np.log(low), np.log(high), shape)).astype(np.float32)

    def zero(self, dtype, shape=()):
        return self.rng.integers(*LIMITS[dtype], shape, endpoint=True).astype(dtype)

    def codes(self, dtype, shape):
        return self.rng.integers(*LIMITS[dtype], shape, endpoint=True).astype(dtype)

    def constant(self, array):
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def given(self, array):
        """Adds an input with these values."""
        name = f"x{len(self.inputs)}"
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
        self.values[name] = array
        return name

    def op(self, kind, inputs, domain="", **attributes):
        name = f"t{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(kind, inputs, [name], name=f"{kind}_{len(self.nodes)}", domain=domain, **attributes)
        )
        return name

    def dequantized(self, name, scale, zero, **attributes):
        return self.op("DequantizeLinear", [name, self.constant(scale), self.constant(zero)], **attributes)

    def quantized(self, name, scale, zero, **attributes):
        return self.op("QuantizeLinear", [name, self.constant(scale), self.constant(zero)], **attributes)

    def model(self, *outputs, opset=21):
        infos = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, "small", self.inputs, infos, self.initializers)
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def defined(model, values):
    """Returns the outputs by the definition, and what onnxruntime differs in."""
    definition = load_definition(model)
    known = definition.run(values)
    witness = load_nodewise_session(definition, known, Path("small.onnx"))
    found = find_differences(definition, known, witness.run(values, known.values))
    outputs = [v.to_floats() if isinstance(v, ExactReal) and v.kind == "plain" else v for v in known.outputs.values()]
    return definition, outputs, found


__all__ = ["LIMITS", "Graph", "TensorProto", "defined"]
