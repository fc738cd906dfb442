"""Planted defects: changes of the compiler that make wrong programs. `validate` or `check` must catch each.

A child imports the compiler anew, with the changed tree of a module by `tests.fuzz.defects`. `make planted` plants all
defects. The short campaign plants a dozen: others for each commit, but always the same for one commit.
"""

import importlib.abc
import importlib.machinery
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from onnx import ModelProto

from tests.fuzz.campaign import BrokenError, Draw, Part
from tests.fuzz.defects import DEFECTS, ROOT, Defect
from tests.fuzz.isolation import isolated
from tests.tiny_models import make_model, node, random

# Models and checks that catch them


def _convolutions() -> ModelProto:
    """Strides, dilations, groups, a sum of two branches, a concatenation between tiles, a grouped convolution."""
    nodes = [
        node("Conv", "x w", "a", name="wide", pads=[2, 2, 2, 2], dilations=[2, 2]),
        node("Conv", "x v b", "c", name="point"),
        node("Relu", "c", "r"),
        node("Add", "a r", "s"),
        node("Concat", "s x", "d", axis=1),
        node("MaxPool", "d", "p", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", "p g", "y", name="deep", group=12, pads=[1, 1, 1, 1]),
        node("Conv", "x v", "e", name="alone"),
        node("Relu", "e", "clipped", name="relu_of_alone"),
        node("Conv", "i u", "f", name="folded"),
        node("Relu", "f", "h", name="relu_of_folded"),
        node("Conv", "i taps", "t", name="several_products", pads=[1, 1, 1, 1]),
        node("Relu", "t", "n", name="relu_of_a_sum"),
        node("Mul", "h s", "m"),
        node("Sub", "s m", "o"),
    ]
    constants = {"u": random(7, 2, 1, 1), "w": random(7, 5, 3, 3), "v": random(7, 5, 1, 1), "b": random(7)}
    constants |= {"g": random(12, 1, 3, 3), "taps": random(7, 2, 3, 3)}
    return make_model(nodes, {"x": (1, 5, 6, 5), "i": (1, 2, 6, 5)}, ["y", "clipped", "e", "r", "o", "n"], constants)


def _products() -> ModelProto:
    """Attention: two computed products, a softmax, transpositions, slices with a stride, padding, constants."""
    nodes = [
        node("MatMul", "x q", "a", name="query"),
        node("MatMul", "x k", "b", name="key"),
        node("Transpose", "b", "t", perm=[0, 2, 1]),
        node("MatMul", "a t", "s", name="scores"),
        node("Softmax", "s", "p", axis=-1),
        node("MatMul", "p b", "z", name="values"),
        node("Add", "z row", "u"),
        node("Pad", "u pads", "w"),
        node("Slice", "w start end axes steps", "y"),
        node("Concat", "x fixed", "o", axis=2),
        node("AveragePool", "x", "v", kernel_shape=[3], pads=[1, 1]),
    ]
    import numpy as np

    constants: dict[str, Any] = {"q": random(6, 9), "k": random(6, 9), "row": random(1, 5, 1), "fixed": random(2, 5, 7)}
    constants |= {"pads": np.array([0, 1, 0, 0, 0, 2]), "start": np.array([1]), "end": np.array([11])}
    constants |= {"axes": np.array([2]), "steps": np.array([2])}
    return make_model(nodes, {"x": (2, 5, 6)}, {"y": 3, "v": 3, "s": 3, "o": 3}, constants)


def _streaming() -> ModelProto:
    """Convolutions with a pool between, strides and unequal padding, a sum with a constant, a transposition."""
    nodes = [
        node("Conv", "x w", "a", name="first", pads=[1, 1, 1, 1]),
        node("Relu", "a", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p v b", "c", name="second", pads=[1, 0, 1, 2]),
        node("Add", "c k", "y"),
        node("Transpose", "y", "t", perm=[0, 1, 3, 2]),
        node("Conv", "t u", "z", name="third", strides=[1, 2], pads=[1, 1, 1, 1]),
    ]
    constants = {"w": random(6, 3, 3, 3), "v": random(5, 6, 3, 3), "b": random(5), "k": random(1, 5, 5, 5)}
    constants["u"] = random(4, 5, 3, 3)
    return make_model(nodes, {"x": (1, 3, 10, 10)}, ["y", "z"], constants)


def _lines() -> ModelProto:
    """Bands of lines, dilations, sums over cores, layers cut differently, depthwise and transposed layers, a gate."""
    nodes = [
        node("Conv", "x w", "a", name="tall", pads=[2, 3, 2, 1], strides=[1, 2], dilations=[1, 2]),
        node("Conv", "a d", "s", name="depthwise", group=4, pads=[1, 1, 1, 1], strides=[2, 1]),
        node("Conv", "a v", "h", name="halved", pads=[0, 1, 1, 1], strides=[2, 1]),
        node("Concat", "s h", "c", axis=1),
        node("AveragePool", "c", "m", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Conv", "m u", "e", name="deep", pads=[2, 1, 2, 1], dilations=[2, 1]),
        node("Sub", "e c", "r"),
        node("Max", "c r", "o"),
        node("GlobalAveragePool", "o", "g"),
        node("Sigmoid", "g", "gate"),
        node("Mul", "o gate", "y"),
        node("Conv", "x t", "i", name="depthwise_of_the_input", group=2, pads=[1, 1, 1, 1]),
        node("Conv", "i k", "z", name="point"),
        node("ConvTranspose", "i j", "q", name="up", strides=[2, 1], dilations=[1, 2], pads=[1, 1, 0, 2]),
    ]
    constants = {"w": random(4, 2, 5, 3), "d": random(4, 1, 3, 3), "v": random(14, 4, 2, 3), "u": random(18, 18, 3, 3)}
    constants |= {"t": random(2, 1, 3, 3), "k": random(3, 2, 1, 1), "j": random(2, 3, 3, 2)}
    return make_model(nodes, {"x": (1, 2, 8, 12)}, ["y", "z", "q"], constants)


def _volumes() -> ModelProto:
    """Slices, rows and columns: padded, strided, dilated, depthwise and transposed layers, and pools."""
    nodes = [
        node("Conv", "x w", "a", name="first", pads=[1, 1, 1, 1, 0, 1]),
        node("Conv", "a v", "s", name="second", strides=[2, 1, 2], pads=[2, 2, 1, 2, 2, 1], dilations=[2, 2, 1]),
        node("Conv", "s d", "t", name="depthwise", group=6, pads=[1, 1, 2, 1, 1, 2], strides=[1, 1, 2]),
        node("MaxPool", "a", "m", kernel_shape=[2, 3, 2], strides=[1, 2, 3], pads=[1, 1, 0, 0, 1, 1]),
        node("ConvTranspose", "m u", "y", name="up", strides=[2, 1, 3], pads=[1, 0, 1, 0, 1, 1]),
    ]
    constants = {"w": random(5, 3, 2, 3, 3), "v": random(6, 5, 3, 2, 3), "d": random(6, 1, 3, 2, 3)}
    return make_model(nodes, {"x": (1, 3, 4, 5, 8)}, ["y", "t"], {**constants, "u": random(5, 4, 3, 2, 4)})


def _batch() -> ModelProto:
    """Three images in one input, and images made larger and smaller between convolutions."""
    import numpy as np

    nodes = [
        node("Conv", "x w", "a", name="first", pads=[1, 1, 1, 1]),
        node("Resize", "a - larger", "r", name="larger", mode="linear"),
        node("Conv", "r d", "s", name="depthwise", group=5, pads=[1, 1, 1, 1], strides=[2, 1]),
        node("Resize", "s - smaller", "t", name="smaller", mode="cubic"),
        node("Conv", "t v", "y", name="second", pads=[1, 1, 1, 1], strides=[1, 2]),
    ]
    constants: dict[str, Any] = {"w": random(5, 3, 3, 3), "d": random(5, 1, 3, 3), "v": random(4, 5, 3, 3)}
    constants |= {"larger": np.array([1, 1, 1.5, 2], np.float32), "smaller": np.array([1, 1, 2, 0.5], np.float32)}
    return make_model(nodes, {"x": (3, 3, 4, 6)}, ["y"], constants)


def _depthwise() -> ModelProto:
    """A depthwise layer with so many weights that a product makes them sooner than they are loaded."""
    constants = {"w": random(48, 3, 1, 1), "v": random(48, 1, 7, 7), "b": random(48)}
    nodes = [
        node("Conv", "x w", "t", name="pointwise"),
        node("Conv", "t v b", "y", name="depthwise", group=48, pads=[3] * 4),
    ]
    return make_model(nodes, {"x": (1, 3, 6, 24)}, ["y"], constants)


def _wide() -> ModelProto:
    """A depthwise layer of so many channels that an instruction weighs only some pixels of a line."""
    nodes = [node("Conv", "x w", "y", name="depthwise", group=100, pads=[1, 1, 1, 1])]
    return make_model(nodes, {"x": (1, 100, 2, 14)}, ["y"], {"w": random(100, 1, 3, 3)})


def _long_sums() -> ModelProto:
    """Means over more pixels than one block of a sum has, also of the number of pixels that three levels need."""
    nodes = [
        node("GlobalAveragePool", "x", "y"),
        node("AveragePool", "x", "z", kernel_shape=[9, 34], strides=[9, 34]),
        node("AveragePool", "x", "u", name="padded", kernel_shape=[9, 10], strides=[9, 8], pads=[2, 1, 0, 0]),
    ]
    return make_model(nodes, {"x": (1, 3, 9, 34)}, ["y", "z", "u"])


def _dilated() -> ModelProto:
    """A layer of one output pixel that reads pixels which do not lie side by side, and one with gaps in its lines."""
    nodes = [
        node("Conv", "x w", "y", name="corners", dilations=[2, 2]),
        node("Conv", "z v", "u", name="gaps", dilations=[3, 3], pads=[3, 3, 0, 3]),
    ]
    weights = {"w": random(7, 4, 2, 2), "v": random(5, 4, 2, 3)}
    return make_model(nodes, {"x": (1, 4, 3, 3), "z": (1, 4, 4, 14)}, ["y", "u"], weights)


def _classifier() -> ModelProto:
    """Overlapping pools, one of the whole image; layers of one pixel, one of them with several kernel positions."""
    nodes = [
        node("Conv", "x w", "a", name="first", pads=[1, 1, 1, 1]),
        node("MaxPool", "a", "p", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 0, 1]),
        node("Conv", "p v", "c", name="second"),
        node("Conv", "c u", "y", name="whole"),
        node("GlobalMaxPool", "c", "g"),
        node("Conv", "g t", "z", name="last"),
        node("Transpose", "c", "d", perm=[0, 1, 3, 2]),
        node("Conv", "d s", "o", name="of_a_whole_tensor"),
        node("Conv", "c e", "k", name="every_second_pixel", dilations=[1, 2], strides=[1, 2]),
    ]
    constants = {
        "w": random(9, 3, 3, 3),
        "v": random(11, 9, 1, 1),
        "u": random(30, 11, 4, 8),
        "t": random(20, 11, 1, 1),
    }
    constants |= {"s": random(6, 11, 8, 4), "e": random(13, 11, 4, 4)}
    return make_model(nodes, {"x": (1, 3, 8, 8)}, ["y", "z", "o", "k"], constants)


def _dense() -> ModelProto:
    """Layers that are too large for a small chip by their outputs, and by their inputs, with biases."""
    nodes = [
        node("Gemm", "x w b", "a", name="wide"),
        node("Relu", "a", "r"),
        node("Gemm", "r v c", "y", name="deep"),
    ]
    constants = {"w": random(12, 90), "b": random(90), "v": random(90, 13), "c": random(13)}
    return make_model(nodes, {"x": (1, 12)}, {"y": 2}, constants)


def _rearrangements() -> ModelProto:
    """A shuffle of the channels of two layers, its halves, one beside the other; a larger image; padding."""
    import numpy as np

    nodes = [
        node("Conv", "x w b", "a", name="first"),
        node("Conv", "a v b", "c", name="second"),
        node("Concat", "a c", "d", axis=1),
        node("Reshape", "d apart", "r", name="apart"),
        node("Transpose", "r", "t", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "t together", "s", name="together"),
        node("Split", "s", "left right", axis=1),
        node("Conv", "right u", "e", name="third", group=12),
        node("Conv", "e v b", "f", name="fourth"),
        node("Concat", "left f", "l", name="beside", axis=1),
        node("Slice", "l start end axes", "m", name="between"),
        node("Conv", "m n", "y", name="fifth"),
        node("Resize", "left - scales", "g", mode="nearest"),
        node("Pad", "g pads", "h"),
        node("Slice", "h start end axes steps", "i"),
        node("Conv", "i k", "z", name="last", strides=[2, 2]),
    ]
    constants: dict[str, Any] = {"w": random(12, 3, 1, 1), "v": random(12, 12, 1, 1), "b": random(12)}
    constants |= {"u": random(12, 1, 1, 1), "k": random(3, 4, 2, 2), "scales": np.array([1, 1, 2, 3], np.float32)}
    constants |= {"apart": np.array([1, 2, 12, 5, 6]), "together": np.array([1, 24, 5, 6])}
    constants |= {"pads": np.array([0, 0, 1, 2, 0, 0, 1, 0]), "start": np.array([1]), "end": np.array([8])}
    constants |= {"axes": np.array([1]), "steps": np.array([2]), "n": random(2, 7, 1, 1)}
    return make_model(nodes, {"x": (1, 3, 5, 6)}, ["y", "z"], constants)


def _tokens() -> ModelProto:
    """An attention of one head that is wider than a crossbar, clipped layers, sums over parts of channels, signals."""
    import numpy as np

    nodes = [
        node("MatMul", "x q", "a", name="query"),
        node("MatMul", "x k", "b", name="key"),
        node("Transpose", "b", "t", perm=[0, 2, 1]),
        node("MatMul", "a t", "s", name="scores"),
        node("Softmax", "s", "p", axis=-1),
        node("MatMul", "p b", "m", name="means"),
        node("MatMul", "m v", "o", name="behind"),
        node("Transpose", "o", "i", name="as_signal", perm=[0, 2, 1]),
        node("Conv", "i d", "e", name="depthwise", group=20, pads=[1, 1]),
        node("Softmax", "e", "f", name="over_channels", axis=1),
        node("Conv", "f u", "g", name="point"),
        node("Conv", "g w", "c", name="clipped"),
        node("Relu", "c", "r"),
        node("Reshape", "r parts", "h", name="in_parts"),
        node("ReduceSum", "h first", "j", name="first_part", keepdims=0),
        node("ReduceMean", "h", "l", name="groups", axes=[2, 3]),
        node("Sub", "h l", "y"),
        node("Conv", "j n", "z", name="last"),
    ]
    constants: dict[str, Any] = {"q": random(12, 20), "k": random(12, 20), "v": random(20, 20), "d": random(20, 1, 3)}
    constants |= {
        "u": random(12, 20, 1),
        "w": random(12, 12, 1),
        "n": random(5, 4, 1),
        "parts": np.array([1, 3, 4, 7]),
        "first": np.array([1]),
    }
    return make_model(nodes, {"x": (1, 7, 12)}, {"y": 4, "z": 3}, constants)


def _integers() -> ModelProto:
    """A layer cut by channels, with scales by channel; another zero point; bounds; counted padding; a constant."""
    import numpy as np

    def again(name: str, scale: str, zero: str) -> list[Any]:
        """Returns a rounding of tensor `name`; the result has one letter more."""
        rounded = node("QuantizeLinear", f"{name} {scale} {zero}", f"{name}.codes", name=f"quantize_{name}")
        return [rounded, node("DequantizeLinear", f"{name}.codes {scale} {zero}", f"{name}_", name=f"real_{name}")]

    rng = np.random.default_rng(1)
    nodes = [
        *again("x", "s", "z"),
        node("DequantizeLinear", "w read_channel_vector zeros", "v", name="weights", axis=0),
        node("Conv", "x_ v", "c", name="wide", pads=[1, 1, 1, 1]),
        *again("c", "t", "z"),
        *again("c_", "t", "other"),
        node("Relu", "c__", "r", name="bounded"),
        *again("r", "t", "other"),
        node("AveragePool", "r_", "p", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
        *again("p", "u", "z"),
        node("DequantizeLinear", "k s", "constant", name="constant"),
        node("Add", "p_ constant", "a"),
        *again("a", "t", "other"),
    ]
    constants: dict[str, Any] = {"s": np.float32(0.02), "t": np.float32(0.05), "u": np.float32(0.031), "z": np.int8(9)}
    constants |= {"other": np.int8(-20), "w": rng.integers(-128, 127, (40, 3, 3, 3)).astype(np.int8)}
    constants |= {
        "read_channel_vector": rng.uniform(0.002, 0.009, 40).astype(np.float32),
        "zeros": np.zeros(40, np.int8),
    }
    constants["k"] = rng.integers(-128, 127, (40, 1, 1)).astype(np.int8)
    return make_model(nodes, {"x": (1, 3, 5, 5)}, {"a_": 4}, constants, opset=21, ir_version=10)


CASES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("_convolutions", {"xbar": 4, "xbars_per_core": 6, "cores": 60, "mapping": "raptor"}),
    (
        "_convolutions",
        {"xbar": (8, 4), "xbars_per_core": 5, "cores": 60, "bits": 16, "cell_bits": 8, "mapping": "raptor"},
    ),
    ("_convolutions", {"xbar": (4, 8), "xbars_per_core": 5, "cores": 60, "mapping": "raptor"}),
    ("_products", {"xbar": 4, "xbars_per_core": 4, "cores": 60, "mapping": "raptor"}),
    ("_streaming", {"xbar": 8, "xbars_per_core": 8, "cores": 40, "mapping": "rows"}),
    ("_streaming", {"xbar": (16, 24), "xbars_per_core": 30, "cores": 40, "mapping": "rows"}),
    ("_lines", {"xbar": 8, "xbars_per_core": 40, "cores": 60, "mapping": "rows"}),
    ("_lines", {"xbar": (32, 16), "xbars_per_core": 40, "cores": 20, "mapping": "rows"}),
    ("_lines", {"xbar": (16, 64), "xbars_per_core": 200, "cores": 4, "bits": 16, "cell_bits": 8, "mapping": "rows"}),
    ("_lines", {"xbar": 16, "xbars_per_core": 16, "cores": 3, "mapping": "rows"}),
    ("_lines", {"xbar": 16, "xbars_per_core": 14, "cores": 3, "mapping": "rows"}),
    ("_rearrangements", {"xbar": 8, "xbars_per_core": 20, "cores": 40, "mapping": "rows"}),
    ("_classifier", {"xbar": 16, "xbars_per_core": 8, "cores": 60, "mapping": "rows"}),
    ("_classifier", {"xbar": 16, "xbars_per_core": 16, "cores": 8, "mapping": "rows"}),
    ("_classifier", {"xbar": (8, 16), "xbars_per_core": 30, "cores": 30, "mapping": "rows"}),
    ("_streaming", {"xbar": 8, "xbars_per_core": 8, "cores": 40, "knobs": {"step_ns": 200}}),
    ("_classifier", {"xbar": 32, "xbars_per_core": 8, "cores": 12, "mapping": "rows"}),
    ("_long_sums", {"xbar": 8, "xbars_per_core": 4, "cores": 4, "mapping": "raptor"}),
    ("_long_sums", {"xbar": 8, "xbars_per_core": 4, "cores": 4, "mapping": "rows"}),
    ("_dilated", {"xbar": 8, "xbars_per_core": 20, "cores": 4, "mapping": "rows"}),
    ("_dilated", {"xbar": 12, "xbars_per_core": 60, "cores": 12, "mapping": "rows"}),
    ("_wide", {"xbar": 128, "xbars_per_core": 8, "cores": 1, "mapping": "rows"}),
    ("_volumes", {"xbar": 8, "xbars_per_core": 40, "cores": 60, "mapping": "rows"}),
    ("_volumes", {"xbar": (32, 16), "xbars_per_core": 80, "cores": 40, "mapping": "rows"}),
    ("_batch", {"xbar": 16, "xbars_per_core": 40, "cores": 60, "mapping": "rows"}),
    ("_depthwise", {"xbar": 64, "xbars_per_core": 64, "cores": 4, "mapping": "rows"}),
    ("_tokens", {"xbar": 16, "xbars_per_core": 40, "cores": 24, "mapping": "rows"}),
)

ROUNDS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("_streaming", {"xbar": 8, "xbars_per_core": 8, "cores": 2, "rounds": True, "batch": 4, "device": "pcm-occ"}),
    ("_classifier", {"xbar": 16, "xbars_per_core": 8, "cores": 5, "rounds": True, "cuts": "each-layer"}),
    ("_classifier", {"xbar": 16, "xbars_per_core": 8, "cores": 2, "rounds": True, "chips": 2, "link": "50:1"}),
    ("_dense", {"xbar": 8, "xbars_per_core": 4, "cores": 2, "rounds": True}),
    ("_streaming", {"xbar": 8, "xbars_per_core": 8, "cores": 8, "chips": 3, "link": "5:1"}),
    ("_streaming", {"xbar": 8, "xbars_per_core": 12, "cores": 4, "chips": 3, "link": "3000:1"}),
    ("_lines", {"xbar": 8, "xbars_per_core": 40, "cores": 20, "chips": 3, "link": "3000:1"}),
    ("_lines", {"xbar": 8, "xbars_per_core": 40, "cores": 40, "chips": 3, "link": "3000:1"}),
    ("_products", {"xbar": 8, "xbars_per_core": 8, "cores": 6, "chips": 3, "link": "3000:1"}),
)
"""Models on chips that are too small, or on several chips."""


QUANTISED: Mapping[int, Mapping[str, Any]] = {
    seed: {"xbar": xbar, "xbars_per_core": 80, "cores": 30, "mapping": mapping}
    for seed, (xbar, mapping) in enumerate(
        [*[((24, 20), "rows"), ((9, 8), "raptor"), (64, "rows"), (32, "raptor")] * 6, (48, "pixelwise")]
    )
}
"""Seed of a quantised model -> options of its compilation."""
STEPS = 14
"""Steps of a quantised model."""


@cache
def _models() -> tuple[tuple[ModelProto, Mapping[str, Any]], ...]:
    """Returns the quantised models, which must be made before a defect is planted, and options to compile them."""
    from tests.fuzz.quantised import made

    fixed = _integers(), {"xbar": (24, 20), "xbars_per_core": 80, "cores": 30, "mapping": "rows"}
    return fixed, *((made(seed, STEPS)[0].model, options) for seed, options in QUANTISED.items())


def checked(defect: Defect | None = None) -> Iterator[str]:
    """Compiles the cases with the compiler that is imported, and yields the first faults of each.

    The cases of the kind of a defect come first.
    """
    floats, rounds = ([(globals()[name](), options) for name, options in cases] for cases in (CASES, ROUNDS))
    kinds = {"floats": floats, "integers": _models(), "rounds": rounds}
    first = sorted(kinds, key=lambda kind: defect is None or kind != defect.check)
    for model, options in chain.from_iterable(kinds[kind] for kind in first):
        yield from _faults(model, options)


def _faults(model: ModelProto, options: Mapping[str, Any]) -> Iterator[str]:
    import tempfile

    import raptor
    from validator.checks import check
    from validator.validate import validate

    with tempfile.TemporaryDirectory() as folder:
        program = raptor.compile(model, **options)
        out = program.save(Path(folder) / "out", stream_format="pim", weight_format="npz")
        report = validate(out, layers=True)
        if not report.passed:
            yield f"{report.verdict}: {report.first_deviation}"
        bad = [f for f in check(out) if f.severity == "error"]
        if bad:
            yield f"check: {bad[0].rule}"


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Importer that takes one module from another tree than that of its file."""

    def __init__(self, defect: Defect) -> None:
        self.name, self.file, self.tree = defect.module, str(defect.file), defect.tree()

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        spec = importlib.machinery.ModuleSpec(name, self, origin=self.file)
        spec.has_location = True
        return spec

    def exec_module(self, module: Any) -> None:
        exec(compile(self.tree, self.file, "exec"), module.__dict__)


def plant(defect: Defect) -> None:
    """Plants a defect into the compiler of this process: later imports have it."""
    for name in list(sys.modules):
        if name.split(".")[0] in ("raptor", "validator"):
            del sys.modules[name]
    sys.meta_path.insert(0, _Changed(defect))


def caught_by(defect: Defect | None) -> str:
    """Returns the fault or error by which a defect is caught; '' if it is not. None: the compiler without a defect."""

    def find() -> None:
        if defect is not None:
            plant(defect)
        try:
            print(next(checked(defect), ""), end="")
        except Exception as error:  # of any class, because the modules were imported anew
            print(f"{type(error).__name__}: {error}", end="")

    _models()
    outcome = isolated(find, seconds=240)
    if outcome.status != 0:
        raise BrokenError(f"{defect}: status {outcome.status}: {outcome.err[-500:]}")
    return outcome.out


def drawn(number: int) -> Defect:
    """Returns the defect of a seed. As many seeds in a row as there are defects draw each defect once."""
    return _SHUFFLED[number % len(DEFECTS)]


_SHUFFLED = Random("planted").sample(DEFECTS, len(DEFECTS))


def seed_of_commit() -> int:
    """Returns a number that differs between commits; 0 without a git history."""
    command = ["git", "rev-parse", "--short=6", "HEAD"]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return 0
    return int(ended.stdout[:6], 16) if ended.returncode == 0 else 0


def case(rng: Draw, _: Path) -> str:
    """Plants the defect of a seed; it must be caught."""
    defect = drawn(rng.number)
    found = caught_by(defect)
    if not found:
        raise BrokenError(f"nothing catches {defect}")
    return f"caught by {found.split(':')[0]}"


def prepare() -> None:
    """Checks the table of defects, and that the compiler without a defect passes."""
    from tests.fuzz import programs

    programs.prepare()
    for defect in DEFECTS:
        defect.tree()
    if found := caught_by(None):
        raise BrokenError(f"without a defect: {found}")


PLANTED = Part(
    "planted",
    "defects planted in the compiler",
    short=12,
    long=len(DEFECTS),
    case=case,
    prepare=prepare,
    first_seed=seed_of_commit,
)
