"""A small language model as an ONNX decoder: how its weights become integers and nodes.

Llama's form: root-mean-square norms, rotated queries and keys, groups of heads, gates. Its tokens are bytes below 128.
Weights are integers of 8 bits, with a scale for each column; `DequantizeLinear` makes float32 of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]

TOKENS, WIDTH, WIDE, LAYERS = 128, 128, 384, 5
HEADS, GROUPS, HEAD_SIZE = 4, 2, 32
CONTEXT, BASE = 256, 10000.0
"""Positions that the model was trained with; base of the wavelengths of its rotations."""
EPSILON = 1e-5
_MICROSOFT = "com.microsoft"
_LARGEST = 127


def build_language_model(weights: Mapping[str, Array]) -> ModelProto:
    """Returns the decoder of float32 weights, as torch names and lays them out: [outputs, inputs].

    Inputs: `input_ids`, `attention_mask`, and for each layer `past_key_values.N.key` and `value`; outputs: `logits`,
    and `present.N.key` and `value`.
    """
    return _DecoderBuilder(weights).build()


class _DecoderBuilder:
    """Collects nodes and weights."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        parts = {n: [weights[f"b.{n}.{kind}.weight"] for kind in "qkv"] for n in range(LAYERS)}
        self.weights = {**weights, **{f"b.{n}.qkv.weight": np.concatenate(part) for n, part in parts.items()}}
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def add(self, op_type: str, inputs: Sequence[str], output: str | Sequence[str], **attributes: Any) -> str:
        outputs = [output] if isinstance(output, str) else list(output)
        self.nodes.append(helper.make_node(op_type, list(inputs), outputs, name=outputs[0], **attributes))
        return outputs[0]

    def constant(self, name: str, values: npt.ArrayLike) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def matrix(self, name: str, axis: int = 1) -> str:
        """Adds a matrix [inputs, outputs] of integers; `axis`: the axis with a scale for each place."""
        values = self.weights[f"{name}.weight"]
        values = values.T if axis else values
        scale = (np.abs(values).max(1 - axis) / _LARGEST).astype(np.float32)
        codes = np.rint(values / np.expand_dims(scale, 1 - axis)).astype(np.int8)
        parts = [self.constant(f"{name}.int8", np.ascontiguousarray(codes)), self.constant(f"{name}.scale", scale)]
        return self.add("DequantizeLinear", parts, f"{name}.float", axis=axis)

    def norm(self, name: str, x: str) -> str:
        gain = self.constant(f"{name}.gain", self.weights[f"{name}.weight"])
        root = self.add("ReduceMean", [self.add("Mul", [x, x], f"{name}.square"), "last"], f"{name}.mean")
        root = self.add("Sqrt", [self.add("Add", [root, "epsilon"], f"{name}.above")], f"{name}.root")
        return self.add("Mul", [self.add("Div", [x, root], f"{name}.normal"), gain], f"{name}.y")

    def product(self, x: str, name: str) -> str:
        return self.add("MatMul", [x, self.matrix(name)], f"{name}.y")

    def layer(self, n: int, x: str) -> str:
        past, present = ([f"{stem}.{n}.{kind}" for kind in ("key", "value")] for stem in ("past_key_values", "present"))
        y = self.norm(f"b.{n}.n1", x)
        given = [self.product(y, f"b.{n}.qkv"), "", "", *past, "last_token", "count", "cos", "sin"]
        sizes = {"num_heads": HEADS, "kv_num_heads": GROUPS, "do_rotary": 1}
        mixed = self.add("GroupQueryAttention", given, [f"b.{n}.attention", *present], domain=_MICROSOFT, **sizes)
        x = self.add("Add", [x, self.product(mixed, f"b.{n}.o")], f"b.{n}.x")
        y = self.norm(f"b.{n}.n2", x)
        gate, up = self.product(y, f"b.{n}.g"), self.product(y, f"b.{n}.u")
        gate = self.add("Mul", [gate, self.add("Sigmoid", [gate], f"b.{n}.open")], f"b.{n}.gate")
        both = self.add("Mul", [gate, up], f"b.{n}.gated")
        return self.add("Add", [x, self.product(both, f"b.{n}.w")], f"b.{n}.out")

    def position_nodes(self) -> None:
        """Adds what the attention needs beside queries, keys and values: numbers of tokens, and rotations."""
        self.constant("last", np.array([-1]))
        self.constant("epsilon", np.float32(EPSILON))
        count = self.add(
            "ReduceSum", ["attention_mask", self.constant("tokens_axis", np.array([1]))], "seen", keepdims=0
        )
        last = self.add("Sub", [count, self.constant("one", np.array([1]))], "last_seen")
        self.add("Cast", [last], "last_token", to=TensorProto.INT32)
        sizes = self.add("Shape", ["attention_mask"], "mask_shape")
        total = self.add("Gather", [sizes, self.constant("tokens_place", np.array(1))], "total", axis=0)
        self.add("Cast", [total], "count", to=TensorProto.INT32)
        waves = BASE ** (-np.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
        rows = self.constant("positions", np.arange(CONTEXT, dtype=np.float32)[:, None])
        angles = self.add("Mul", [rows, self.constant("waves", waves.astype(np.float32)[None])], "angles")
        self.add("Cos", [angles], "cos")
        self.add("Sin", [angles], "sin")

    def build(self) -> ModelProto:
        self.position_nodes()
        x = self.add("Gather", [self.matrix("e", axis=0), "input_ids"], "embedded")
        for n in range(LAYERS):
            x = self.layer(n, x)
        self.add("MatMul", [self.norm("n", x), self.matrix("h")], "logits")
        floats = {"logits": ["batch", "sequence", TOKENS]}
        for n in range(LAYERS):
            for kind in ("key", "value"):
                floats[f"past_key_values.{n}.{kind}"] = ["batch", GROUPS, "past", HEAD_SIZE]
                floats[f"present.{n}.{kind}"] = ["batch", GROUPS, "total", HEAD_SIZE]
        values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n, dims in floats.items()}
        integers = {"input_ids": ["batch", "sequence"], "attention_mask": ["batch", "total"]}
        inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, dims) for n, dims in integers.items()]
        inputs += [value for name, value in values.items() if name.startswith("past")]
        outputs = [value for name, value in values.items() if not name.startswith("past")]
        graph = helper.make_graph(self.nodes, "kjv", inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid(_MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name="raptor")
        helper.set_model_props(model, {"tokenizer": "bytes"})
        return model
