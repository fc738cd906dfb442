"""The interpreter of ONNX in PyTorch: values as in onnxruntime, gradients as of finite differences, every operator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto

from raptor.common.errors import UserError
from raptor.tools.quantise.ort_quantizer import OrtSession
from tests.tiny_models import make_model, node, random

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
torch: Any = pytest.importorskip("torch")
SAMPLES = 2
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A node from x to y. `positive`: inputs are above 0.1. `weights`: constants whose gradients are compared, too."""

    node: NodeProto
    shape: Sequence[int]
    constants: Mapping[str, Array] = field(default_factory=dict)
    weights: Sequence[str] = ()
    positive: bool = False
    opset: int = 20


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def windows(op_type: str, **attributes: Any) -> Case:
    return Case(node(op_type, "x", kernel_shape=[3, 2], **attributes), (1, 2, 6, 5))


def convolution(shape: Sequence[int], kernel: Sequence[int], op_type: str = "Conv", **attributes: Any) -> Case:
    outputs = kernel[0] if op_type == "Conv" else kernel[1] * attributes.get("group", 1)
    constants = {"w": random(*kernel), "b": random(outputs)}
    return Case(node(op_type, "x w b", **attributes), shape, constants, ("w", "b"))


def unary(op_type: str, *, positive: bool = False, **attributes: Any) -> Case:
    return Case(node(op_type, "x", **attributes), (1, 3, 4), positive=positive)


def constant(op_type: str, values: Array, *shape: int, trained: bool = False, **attributes: Any) -> Case:
    return Case(node(op_type, "x c", **attributes), shape, {"c": values}, ("c",) if trained else ())


CASES = {
    "conv": convolution((1, 4, 6, 5), (6, 2, 3, 2), group=2, strides=[2, 1], pads=[1, 0, 2, 1], dilations=[1, 2]),
    "conv same": convolution((1, 2, 6, 5), (3, 2, 3, 2), auto_pad="SAME_LOWER", strides=[2, 2]),
    "conv of a signal": convolution((1, 2, 9), (3, 2, 4), pads=[1, 2]),
    "conv of a volume": convolution((1, 1, 3, 4, 3), (2, 1, 2, 2, 2)),
    "conv transpose": convolution(
        (1, 4, 3, 4), (4, 2, 3, 2), "ConvTranspose", group=2, strides=[2, 3], pads=[1, 0, 0, 1], output_padding=[1, 2]
    ),
    "gemm": Case(
        node("Gemm", "x w b", alpha=0.5, beta=2.0, transB=1), (1, 5), {"w": random(3, 5), "b": random(3)}, ("w", "b")
    ),
    "matmul": Case(node("MatMul", "x w"), (1, 4, 5), {"w": random(5, 3)}, ("w",)),
    "max pool": windows("MaxPool", strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=1),
    "average pool": windows("AveragePool", strides=[2, 2], pads=[1, 0, 1, 1]),
    "average pool with padding": windows("AveragePool", pads=[1, 1, 1, 0], count_include_pad=1, strides=[2, 2]),
    "average pool same": windows("AveragePool", auto_pad="SAME_UPPER", strides=[2, 2]),
    "global average": Case(node("GlobalAveragePool", "x"), (1, 2, 3, 4)),
    "global max": Case(node("GlobalMaxPool", "x"), (1, 2, 3, 4)),
    "batch norm": Case(
        node("BatchNormalization", "x s b m v", epsilon=0.01),
        (1, 3, 2, 2),
        {"s": random(3), "b": random(3, seed=1), "m": random(3, seed=2), "v": np.abs(random(3, seed=3)) + 0.1},
        ("s", "b"),
    ),
    "clip": Case(node("Clip", "x low high"), (1, 3, 4), {"low": np.float32(-0.5), "high": np.float32(0.7)}),
    "clip above": Case(node("Clip", "x low"), (1, 3, 4), {"low": np.float32(0)}),
    "prelu": constant("PRelu", np.abs(random(3, 1)), 1, 3, 4, trained=True),
    "softmax": unary("Softmax", axis=1),
    "old softmax": Case(node("Softmax", "x", axis=1), (1, 3, 4), opset=11),
    "log softmax": unary("LogSoftmax", axis=2),
    "concat": Case(node("Concat", "x x", axis=2), (1, 3, 2)),
    "flatten": unary("Flatten", axis=2),
    "reshape": constant("Reshape", ints(0, -1, 2), 1, 3, 4),
    "transpose": unary("Transpose", perm=[2, 0, 1]),
    "squeeze": constant("Squeeze", ints(-2), 1, 3, 1, 2),
    "unsqueeze": constant("Unsqueeze", ints(0, -1), 1, 3),
    "split": Case(node("Split", "x c", "y z", axis=1), (1, 5), {"c": ints(2, 3)}),
    "slice": Case(
        node("Slice", "x a b c d"),
        (1, 6, 5),
        {"a": ints(5, 1), "b": ints(-(2**62), 4), "c": ints(1, 2), "d": ints(-2, 1)},
    ),
    "pad": Case(node("Pad", "x p v"), (1, 2, 3), {"p": ints(0, 1, 2, 0, 0, 1), "v": np.float32(0.5)}),
    "mean": constant("ReduceMean", ints(1), 1, 3, 4, keepdims=0),
    "mean of all": unary("ReduceMean"),
    "sum": constant("ReduceSum", ints(-1), 1, 3, 4),
    "max": constant("ReduceMax", ints(2), 1, 3, 4),
    "add": constant("Add", random(3, 1), 1, 3, 4, trained=True),
    "sub": constant("Sub", random(4), 1, 3, 4, trained=True),
    "mul": constant("Mul", random(3, 4), 1, 3, 4, trained=True),
    "div": constant("Div", np.float32(1.5), 1, 3, 4),
    "pow": constant("Pow", np.float32(1.5), 1, 3, 4, **{}),
    "leaky": unary("LeakyRelu", alpha=0.2),
    "elu": unary("Elu", alpha=0.7),
    "gelu": unary("Gelu"),
    "gelu with tanh": unary("Gelu", approximate="tanh"),
    "hard sigmoid": unary("HardSigmoid", alpha=0.3, beta=0.4),
    **{name: unary(name) for name in ("Abs", "Erf", "Exp", "HardSwish", "Identity", "Neg", "Relu", "Sigmoid")},
    **{name: unary(name) for name in ("Softplus", "Tanh", "Dropout")},
    **{name: unary(name, positive=True) for name in ("Log", "Sqrt")},
}


def graph_of(case: Case) -> tuple[Any, Any]:
    from raptor.tools.train.torch_graph import TorchGraph

    outputs = dict.fromkeys(case.node.output, 1)
    model = make_model([case.node], {"x": case.shape}, outputs, case.constants, opset=case.opset)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return TorchGraph(model), model


def inputs_of(case: Case) -> Array:
    """Returns samples without equal elements, and away from 0, where some operators have no gradient."""
    size = SAMPLES * int(np.prod(case.shape))
    values = np.random.default_rng(3).permutation((np.arange(size) + 0.5) / size * 4 - 2)
    values = np.abs(values) + 0.1 if case.positive or case.node.op_type == "Pow" else values
    return values.reshape(SAMPLES, *case.shape).astype(np.float32)


def test_every_operator_has_a_case() -> None:
    from raptor.tools.train.torch_operators import OPERATORS

    assert {case.node.op_type for case in CASES.values()} == set(OPERATORS)


def test_what_the_interpreter_lacks() -> None:
    from raptor.tools.train.torch_operators import OPERATORS

    assert not {"LSTM", "GRU", "RNN", "Attention", "QuantizeLinear", "DequantizeLinear"} & set(OPERATORS)


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_onnxruntime(name: str) -> None:
    (graph, model), values = graph_of(CASES[name]), inputs_of(CASES[name])
    session = OrtSession(model)
    found = graph({"x": torch.from_numpy(values)})
    for number in range(SAMPLES):
        wanted = session.run({"x": values[number]})
        for output, tensor in zip(graph.outputs, found, strict=True):
            assert tensor[number].shape == wanted[output].shape
            assert tensor[number].detach().numpy() == pytest.approx(wanted[output], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    case = CASES[name]
    graph, _ = graph_of(case)
    graph = graph.double()
    assert sorted(graph.list_weights()) == sorted(case.weights)
    weights = [graph.parameter(w).detach().clone().requires_grad_() for w in case.weights]
    x = torch.from_numpy(inputs_of(case)).double().requires_grad_()

    def run(x: Any, *given: Any) -> Any:
        return tuple(graph({"x": x}, dict(zip(case.weights, given, strict=True))))

    assert torch.autograd.gradcheck(run, (x, *weights), eps=1e-6, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case(node("Sin", "x"), (1, 3)), r"raptor train cannot differentiate my_sin \(Sin\); it knows Abs, Add"),
        (Case(node("Reshape", "x x"), (1, 3)), r"my_reshape \(Reshape\): .* shape is not constant"),
        (Case(node("Pad", "x p", mode="edge"), (1, 3), {"p": ints(0, 0, 0, 0)}), "only constant padding"),
        (windows("AveragePool", dilations=[2, 1]), "dilations are not implemented"),
    ],
    ids=str,
)
def test_what_cannot_be_differentiated(case: Case, message: str) -> None:
    with pytest.raises(UserError, match=message):
        graph_of(case)[0]({"x": torch.zeros(1, *case.shape)})
