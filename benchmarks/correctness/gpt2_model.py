"""Write a decoder in the form of GPT-2 with random weights: `python -m benchmarks.correctness.gpt2_model FILE`.

The default is GPT-2 small: 12 layers, 12 heads of 64 channels, 50,257 tokens, 124 million parameters. The nodes are
those that optimum exports: `Gemm` between two `Reshape`s, keys and values by `Concat`, a mask that is added to the
scores, Gelu by its tanh formula, and logits by the transposed table of embeddings.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]

GELU_FACTOR = 0.044715
HIDDEN = -1e9
"""Added to the scores of tokens that the attention mask leaves out."""


@dataclass(frozen=True, slots=True)
class Gpt2Shape:
    """Sizes of a decoder: a head has `width / heads` channels, and there are `positions` embeddings of positions."""

    layers: int = 12
    heads: int = 12
    width: int = 768
    vocabulary: int = 50257
    positions: int = 1024


@dataclass(slots=True)
class Gpt2Builder:
    """Collects nodes and weights, which are drawn from `rng` in order; each layer preserves the mean square."""

    shape: Gpt2Shape
    rng: np.random.Generator
    nodes: list[NodeProto] = field(default_factory=list[NodeProto])
    weights: list[TensorProto] = field(default_factory=list[TensorProto])

    def build(self) -> ModelProto:
        """Returns the model: token and position in, logits out, and for each layer keys and values of all tokens."""
        sizes = self.shape
        table = self.normal("wte", sizes.vocabulary, sizes.width, deviation=1 / sqrt(sizes.width))
        places = self.normal("wpe", sizes.positions, sizes.width, deviation=1 / sqrt(sizes.width))
        tokens = self.add("Gather", [table, "input_ids"], "tokens")
        x = self.add("Add", [tokens, self.add("Gather", [places, "position_ids"], "places")], "embedded")
        self.add_shapes()
        for n in range(sizes.layers):
            x = self.add_layer(n, x)
        head = self.add("Transpose", [table], "head", perm=[1, 0])
        self.add("MatMul", [self.norm(x, "ln_f"), head], "logits")
        caches = [f"{n}.{kind}" for n in range(sizes.layers) for kind in ("key", "value")]
        past = ["batch", sizes.heads, "past", sizes.width // sizes.heads]
        ids = {"input_ids": ["batch", "sequence"], "position_ids": ["batch", "sequence"]}
        inputs = [_declare(name, TensorProto.INT64, dims) for name, dims in ids.items()]
        inputs += [_declare(f"past_key_values.{name}", TensorProto.FLOAT, past) for name in caches]
        inputs.insert(1, _declare("attention_mask", TensorProto.INT64, ["batch", "past + sequence"]))
        outputs = [_declare("logits", TensorProto.FLOAT, ["batch", "sequence", sizes.vocabulary])]
        present = [*past[:2], "past + sequence", past[3]]
        outputs += [_declare(f"present.{name}", TensorProto.FLOAT, present) for name in caches]
        graph = helper.make_graph(self.nodes, "gpt2", inputs, outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def add_shapes(self) -> None:
        """Adds what all layers share: sizes of reshapes, constants of the Gelu, and the mask of all scores."""
        width, heads = self.shape.width, self.shape.heads
        for name, dims in {"split": [0, 0, heads, width // heads], "join": [0, 0, width], "row": [-1, width]}.items():
            self.constant(name, np.array(dims))
        wide = {"wide_row": [-1, 4 * width], "wide": [1, -1, 4 * width], "triple": [1, -1, 3 * width]}
        for name, dims in {**wide, "narrow": [1, -1, width], "thirds": [width] * 3, "axes": [1, 2]}.items():
            self.constant(name, np.array(dims))
        numbers = {"one": 1, "half": 0.5, "factor": GELU_FACTOR, "root": sqrt(2 / pi), "three": 3, "hidden": HIDDEN}
        for name, value in {**numbers, "scale": sqrt(width / heads)}.items():
            self.constant(name, np.float32(value))
        seen = self.add("Cast", ["attention_mask"], "seen", to=TensorProto.FLOAT)
        unseen = self.add("Unsqueeze", [self.add("Sub", ["one", seen], "unseen"), "axes"], "unseen_of_heads")
        self.add("Mul", [unseen, "hidden"], "mask")

    def add_layer(self, n: int, x: str) -> str:
        """Adds layer `n`, an attention and a feed-forward network, each added to its input."""
        name, sizes = f"h.{n}", self.shape
        given = self.norm(x, f"{name}.ln_1")
        packed = self.linear(given, f"{name}.c_attn", sizes.width, 3 * sizes.width, "triple")
        parts = [f"{name}.{kind}" for kind in ("query", "key", "value")]
        self.add("Split", [packed, "thirds"], parts, axis=-1)
        heads = [self.add("Reshape", [part, "split"], f"{part}.split") for part in parts]
        query, key, value = (self.add("Transpose", [head], f"{head}.heads", perm=[0, 2, 1, 3]) for head in heads)
        key = self.add("Concat", [f"past_key_values.{n}.key", key], f"present.{n}.key", axis=2)
        value = self.add("Concat", [f"past_key_values.{n}.value", value], f"present.{n}.value", axis=2)
        keys = self.add("Transpose", [key], f"{name}.keys", perm=[0, 1, 3, 2])
        scores = self.add("Div", [self.add("MatMul", [query, keys], f"{name}.products"), "scale"], f"{name}.scores")
        shares = self.add("Softmax", [self.add("Add", [scores, "mask"], f"{name}.masked")], f"{name}.shares", axis=-1)
        mixed = self.add("MatMul", [shares, value], f"{name}.mixed")
        mixed = self.add("Transpose", [mixed], f"{name}.by_token", perm=[0, 2, 1, 3])
        joined = self.add("Reshape", [mixed, "join"], f"{name}.joined")
        added = self.linear(joined, f"{name}.c_proj", sizes.width, sizes.width, "narrow")
        x = self.add("Add", [x, added], f"{name}.after_attention")
        y = self.linear(self.norm(x, f"{name}.ln_2"), f"{name}.c_fc", sizes.width, 4 * sizes.width, "wide")
        y = self.linear(self.gelu(y, f"{name}.gelu"), f"{name}.c_proj_2", 4 * sizes.width, sizes.width, "narrow")
        return self.add("Add", [x, y], f"{name}.out")

    def linear(self, x: str, name: str, inputs: int, outputs: int, shape: str) -> str:
        """Adds a layer of `inputs` to `outputs` channels; `shape`: the constant that its result is reshaped to."""
        flat = self.add("Reshape", [x, "row" if inputs == self.shape.width else "wide_row"], f"{name}.flat")
        weights = self.normal(f"{name}.weight", inputs, outputs, deviation=1 / sqrt(inputs))
        product = self.add("Gemm", [flat, weights, self.normal(f"{name}.bias", outputs)], f"{name}.gemm")
        return self.add("Reshape", [product, shape], f"{name}.y")

    def norm(self, x: str, name: str) -> str:
        gain = self.constant(
            f"{name}.weight", (1 + 0.1 * self.rng.standard_normal(self.shape.width)).astype(np.float32)
        )
        return self.add("LayerNormalization", [x, gain, self.normal(f"{name}.bias", self.shape.width)], f"{name}.y")

    def gelu(self, x: str, name: str) -> str:
        """Adds x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
        cube = self.add("Mul", [self.add("Pow", [x, "three"], f"{name}.cube"), "factor"], f"{name}.bent")
        inner = self.add("Mul", [self.add("Add", [x, cube], f"{name}.sum"), "root"], f"{name}.inner")
        open_ = self.add("Add", [self.add("Tanh", [inner], f"{name}.tanh"), "one"], f"{name}.open")
        return self.add("Mul", [self.add("Mul", [x, "half"], f"{name}.half"), open_], f"{name}.y")

    def add(self, op_type: str, inputs: Sequence[str], output: str | Sequence[str], **attributes: Any) -> str:
        outputs = [output] if isinstance(output, str) else list(output)
        self.nodes.append(helper.make_node(op_type, list(inputs), outputs, name=outputs[0], **attributes))
        return outputs[0]

    def constant(self, name: str, values: npt.ArrayLike) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def normal(self, name: str, *size: int, deviation: float = 0.1) -> str:
        return self.constant(name, self.rng.standard_normal(size, dtype=np.float32) * np.float32(deviation))


def _declare(name: str, element: int, dims: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, dims)


def build_gpt2(shape: Gpt2Shape | None = None, seed: int = 0) -> ModelProto:
    """Returns a decoder of these sizes, by default GPT-2 small, with random weights."""
    return Gpt2Builder(shape or Gpt2Shape(), np.random.default_rng(seed)).build()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    for name, value in {"layers": 12, "heads": 12, "width": 768, "vocabulary": 50257, "positions": 1024}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    sizes = {name: value for name, value in vars(args).items() if name != "file"}
    args.file.write_bytes(build_gpt2(Gpt2Shape(**sizes)).SerializeToString())


if __name__ == "__main__":
    main()
