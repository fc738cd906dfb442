"""Small models as exporters write them: their names, their open dimensions, their detours through shapes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Dims = Sequence[int | str | None]
LAST = np.iinfo(np.int64).max


@dataclass
class Writer:
    """A graph in the making. Weights are seeded by their names."""

    producer: str
    opset: int
    nodes: list[NodeProto] = field(default_factory=list[NodeProto])
    weights: list[TensorProto] = field(default_factory=list[TensorProto])

    def op(self, op_type: str, inputs: Sequence[str], output: str, name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], name=name, **attributes))
        return output

    def weight(self, name: str, *shape: int, scale: float = 0.5) -> str:
        seed = [len(self.weights), *name.encode()]
        values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * scale
        return self.value(name, values)

    def value(self, name: str, values: Any, dtype: type[Any] = np.float32) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def constant(self, name: str, values: Any, dtype: type[Any] = np.int64) -> str:
        """A node, as PyTorch and Paddle write constants."""
        tensor = numpy_helper.from_array(np.asarray(values, dtype))
        return self.op("Constant", [], f"{name}_output_0", name, value=tensor)

    def branch(self, name: str, output: str) -> GraphProto:
        """Returns the nodes written so far, as the body of a node."""
        return helper.make_graph(self.nodes, name, [], [helper.make_empty_tensor_value_info(output)], self.weights)

    def model(self, inputs: Sequence[ValueInfoProto], outputs: Mapping[str, Dims], ir_version: int = 8) -> ModelProto:
        made = [_value(n, dims) for n, dims in outputs.items()]
        graph = helper.make_graph(self.nodes, "main_graph", list(inputs), made, self.weights)
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, producer_name=self.producer)


def _value(name: str, dims: Dims, kind: int = TensorProto.FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(dims))


def torch_segmenter() -> ModelProto:
    """TorchScript, dynamic_axes: names of one's own; the size of the image is computed from Shape nodes."""
    w = Writer("pytorch", 17)
    conv = w.op(
        "Conv",
        ["image", w.weight("onnx::Conv_38", 6, 3, 3, 3), w.weight("onnx::Conv_39", 6)],
        "/backbone/backbone.0/Conv_output_0",
        "/backbone/backbone.0/Conv",
        kernel_shape=[3, 3],
        pads=[1] * 4,
    )
    relu = w.op("Relu", [conv], "/backbone/backbone.2/Relu_output_0", "/backbone/backbone.2/Relu")
    pool = w.op(
        "MaxPool",
        [relu],
        "/backbone/backbone.3/MaxPool_output_0",
        "/backbone/backbone.3/MaxPool",
        kernel_shape=[2, 2],
        strides=[2, 2],
    )
    head = w.op("Conv", [pool, w.weight("head.weight", 4, 6, 1, 1)], "/head/Conv_output_0", "/head/Conv")
    sizes: list[str] = []
    for axis, k in ((2, ""), (3, "_1")):
        shape = w.op("Shape", ["image"], f"/Shape{k}_output_0", f"/Shape{k}")
        size = w.op("Gather", [shape, w.constant(f"/Constant{k}", axis)], f"/Gather{k}_output_0", f"/Gather{k}")
        axes = w.constant(f"/Constant_2{k}", [0])
        sizes.append(w.op("Unsqueeze", [size, axes], f"/Unsqueeze{k}_output_0", f"/Unsqueeze{k}"))
    wanted = w.op("Concat", sizes, "/Concat_output_0", "/Concat", axis=0)
    shape = w.op("Shape", [head], "/Shape_2_output_0", "/Shape_2")
    ends = [w.constant("/Constant_4", [0]), w.constant("/Constant_5", [2]), w.constant("/Constant_6", [0])]
    front = w.op("Slice", [shape, *ends], "/Slice_output_0", "/Slice")
    whole = w.op("Concat", [front, wanted], "/Concat_1_output_0", "/Concat_1", axis=0)
    large = w.op(
        "Resize",
        [head, "", "", whole],
        "/Resize_output_0",
        "/Resize",
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    w.op("Sigmoid", [large], "mask", "/Sigmoid")
    return w.model(
        [_value("image", ["batch", 3, "height", "width"])], {"mask": [f"Sigmoidmask_dim_{k}" for k in range(4)]}
    )


def torch_dynamo() -> ModelProto:
    """torch.export: dimensions s77, s53, s0, long names of modules."""
    w = Writer("pytorch", 20)
    block = "layers.0.attention.self.output.dense.LayerNormForwardPass.convolution_projection"
    conv = w.op(
        "Conv",
        ["pixel_values", w.weight(f"{block}.weight", 5, 3, 3, 3)],
        f"{block}.conv2d",
        f"node_Conv_{block}",
        pads=[1] * 4,
    )
    gelu = w.op("Gelu", [conv], "gelu", f"node_gelu_{block}", approximate="tanh")
    batch = w.op("Shape", ["pixel_values"], "sym_size_int_12", "node_sym_size_int_12", start=0, end=1)
    rest = w.value("val_7", [5, -1], np.int64)
    shape = w.op("Concat", [batch, rest], "val_8", "node_Concat_8", axis=0)
    flat = w.op("Reshape", [gelu, shape], "view", "node_view", allowzero=0)
    w.op("ReduceMean", [flat, w.value("val_9", [-1], np.int64)], "mean", "node_mean", keepdims=0)
    return w.model([_value("pixel_values", ["s77", 3, "s53", "s0"])], {"mean": ["s77", 5]}, ir_version=10)


def torch_script_rate() -> ModelProto:
    """A scripted function with a Python branch on an integer, and a squeeze whose dimension may not be 1."""
    w = Writer("pytorch", 16)
    equal = w.op("Equal", ["sr", w.constant("/Constant_3", 16000)], "/Equal_output_0", "/Equal")
    truth = w.op("Cast", [equal], "/Cast_output_0", "/Cast", to=TensorProto.BOOL)
    then, other = Writer("", 16), Writer("", 16)
    bounds = [then.constant(f"/Constant_{k}", v) for k, v in ((5, [0]), (6, [LAST]), (7, [1]), (8, [2]))]
    then.op("Slice", ["input", *bounds], "/Slice_output_0", "/Slice")
    other.op("Identity", ["input"], "/Identity_output_0", "/Identity")
    w.op(
        "If",
        [truth],
        "/If_output_0",
        "/If",
        then_branch=then.branch("sub_graph", "/Slice_output_0"),
        else_branch=other.branch("sub_graph1", "/Identity_output_0"),
    )
    line = w.op("Unsqueeze", ["/If_output_0", w.constant("/Constant_9", [1])], "/Unsqueeze_output_0", "/Unsqueeze")
    conv = w.op("Conv", [line, w.weight("conv.weight", 4, 1, 3)], "/conv/Conv_output_0", "/conv/Conv", pads=[1, 1])
    mean = w.op("ReduceMean", [conv], "/ReduceMean_output_0", "/ReduceMean", axes=[1], keepdims=1)
    shape = w.op("Shape", [mean], "/Shape_output_0", "/Shape")
    size = w.op("Gather", [shape, w.constant("/Constant_10", 1)], "/Gather_output_0", "/Gather")
    is_one = w.op("Equal", [size, w.constant("/Constant_11", 1)], "/Equal_1_output_0", "/Equal_1")
    then, other = Writer("", 16), Writer("", 16)
    then.op("Squeeze", [mean, then.constant("/Constant_12", [1])], "/Squeeze_output_0", "/Squeeze")
    other.op("Identity", [mean], "/Identity_output_0", "/Identity")
    w.op(
        "If",
        [is_one],
        "output",
        "/If_1",
        then_branch=then.branch("sub_graph2", "/Squeeze_output_0"),
        else_branch=other.branch("sub_graph3", "/Identity_output_0"),
    )
    inputs = [_value("input", ["batch", "samples"]), _value("sr", [], TensorProto.INT64)]
    return w.model(inputs, {"output": ["batch", "Ifoutput_dim_1"]})


def paddle_detector() -> ModelProto:
    """Paddle2ONNX: -1 where a size is open, constants as nodes, names of the operators numbered."""
    w = Writer("", 11)
    conv = w.op(
        "Conv",
        ["x", w.weight("conv2d_0.w_0", 6, 3, 3, 3)],
        "conv2d_0.tmp_0",
        "p2o.Conv.0",
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1] * 4,
    )
    norms = [
        w.value(f"batch_norm2d_0.{k}", np.linspace(low, low + 1, 6))
        for k, low in (("w_0", 0.5), ("b_0", -0.5), ("w_1", -0.2), ("w_2", 0.7))
    ]
    norm = w.op("BatchNormalization", [conv, *norms], "batch_norm2d_0.tmp_2", "p2o.BatchNormalization.0", epsilon=1e-5)
    hard = w.op("HardSigmoid", [norm], "hardswish_0.tmp_1", "p2o.HardSigmoid.0", alpha=1 / 6, beta=0.5)
    swish = w.op("Mul", [norm, hard], "hardswish_0.tmp_0", "p2o.Mul.0")
    region = w.constant("p2o.helper.constant.1", [1] * 8, np.float32)
    scales = w.constant("p2o.helper.constant.0", [1, 1, 2, 2], np.float32)
    large = w.op(
        "Resize",
        [swish, region, scales],
        "nearest_interp_v2_0.tmp_0",
        "p2o.Resize.0",
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    up = w.op(
        "ConvTranspose",
        [large, w.weight("conv2d_transpose_0.w_0", 6, 1, 2, 2)],
        "conv2d_transpose_0.tmp_0",
        "p2o.ConvTranspose.0",
        kernel_shape=[2, 2],
        strides=[2, 2],
    )
    w.op("Sigmoid", [up], "sigmoid_0.tmp_0", "p2o.Sigmoid.0")
    return w.model([_value("x", [-1, 3, -1, -1])], {"sigmoid_0.tmp_0": [-1, 1, -1, -1]}, ir_version=7)


def paddle_recogniser() -> ModelProto:
    """Paddle2ONNX: lines of text of a fixed height; shapes are put together from slices of Shape."""
    w = Writer("", 11)
    conv = w.op("Conv", ["x", w.weight("conv2d_10.w_0", 8, 3, 8, 2)], "conv2d_10.tmp_0", "p2o.Conv.1", strides=[8, 2])
    relu = w.op("Relu", [conv], "relu_0.tmp_0", "p2o.Relu.0")
    shape = w.op("Shape", [relu], "shape_0.tmp_0", "p2o.Shape.0")
    picked = w.op("Gather", [shape, w.constant("p2o.helper.constant.3", [0])], "p2o.helper.gather.0", "p2o.Gather.0")
    wanted = w.op(
        "Concat", [picked, w.constant("p2o.helper.constant.4", [8, -1])], "p2o.helper.concat.0", "p2o.Concat.0", axis=0
    )
    flat = w.op("Reshape", [relu, wanted], "reshape2_0.tmp_0", "p2o.Reshape.0")
    turned = w.op("Transpose", [flat], "transpose_0.tmp_0", "p2o.Transpose.0", perm=[0, 2, 1])
    linear = w.op("MatMul", [turned, w.weight("linear_0.w_0", 8, 5)], "linear_0.tmp_0", "p2o.MatMul.0")
    logits = w.op("Add", [linear, w.weight("linear_0.b_0", 5)], "linear_0.tmp_1", "p2o.Add.0")
    w.op("Softmax", [logits], "softmax_0.tmp_0", "p2o.Softmax.0", axis=2)
    return w.model([_value("x", [-1, 3, 8, -1])], {"softmax_0.tmp_0": [-1, -1, 5]}, ir_version=7)


def tensorflow_classifier() -> ModelProto:
    """tf2onnx: channels last and transposed at once, unk__ dimensions, names of whole function calls."""
    w = Writer("tf2onnx", 13)
    call = "StatefulPartitionedCall/sequential_1/mobilenet_v2_block_3_expand"
    turned = w.op(
        "Transpose", ["serving_default_input_1:0"], f"{call}/Conv2D__6:0", f"{call}/Conv2D__6", perm=[0, 3, 1, 2]
    )
    conv = w.op(
        "Conv",
        [turned, w.weight(f"{call}/Conv2D/ReadVariableOp:0", 4, 3, 3, 3)],
        f"{call}/BiasAdd:0",
        f"{call}/Conv2D",
        auto_pad="SAME_UPPER",
        strides=[2, 2],
    )
    relu = w.op(
        "Clip", [conv, w.value("const_min__17", 0.0), w.value("const_max__18", 6.0)], f"{call}/Relu6:0", f"{call}/Relu6"
    )
    back = w.op("Transpose", [relu], f"{call}/Relu6__20:0", f"{call}/Relu6__20", perm=[0, 2, 3, 1])
    mean = w.op(
        "ReduceMean",
        [back],
        "StatefulPartitionedCall/sequential_1/global_average_pooling2d/Mean:0",
        "StatefulPartitionedCall/sequential_1/global_average_pooling2d/Mean",
        axes=[1, 2],
        keepdims=0,
    )
    dense = "StatefulPartitionedCall/sequential_1/predictions"
    w.op(
        "MatMul",
        [mean, w.weight(f"{dense}/MatMul/ReadVariableOp:0", 4, 3)],
        "StatefulPartitionedCall:0",
        f"{dense}/MatMul",
    )
    inputs = [_value("serving_default_input_1:0", ["unk__123", "unk__124", "unk__125", 3])]
    return w.model(inputs, {"StatefulPartitionedCall:0": ["unk__126", 3]}, ir_version=7)


def tensorflow_while() -> ModelProto:
    """tf2onnx: a while loop of a fixed number of steps, whose condition is computed; dimensions without names."""
    w = Writer("tf2onnx", 13)
    call = "StatefulPartitionedCall/model/rnn/while"
    w.value(f"{call}/maximum_iterations:0", 3, np.int64)
    w.value(f"{call}/Less/y:0", 3, np.int64)
    w.value(f"{call}/one:0", 1, np.int64)
    w.value(f"{call}/counter:0", 0, np.int64)
    w.value(f"{call}/go:0", True, np.bool_)
    w.weight(f"{call}/kernel:0", 4, 4)
    body = Writer("", 13)
    product = body.op("MatMul", ["state", f"{call}/kernel:0"], f"{call}/MatMul:0", f"{call}/MatMul")
    summed = body.op("Add", [product, "frame"], f"{call}/add:0", f"{call}/add")
    body.op("Tanh", [summed], f"{call}/Tanh:0", f"{call}/Tanh")
    body.op("Identity", [f"{call}/Tanh:0"], f"{call}/TensorArrayV2:0", f"{call}/TensorArrayV2")
    body.op("Add", ["counter", f"{call}/one:0"], f"{call}/add_1:0", f"{call}/add_1")
    body.op("Less", [f"{call}/add_1:0", f"{call}/Less/y:0"], f"{call}/Less:0", f"{call}/Less")
    inputs = [
        ("iteration", [], TensorProto.INT64),
        ("go_on", [], TensorProto.BOOL),
        ("counter", [], TensorProto.INT64),
        ("state", [None, 4], TensorProto.FLOAT),
    ]
    outputs = [
        (f"{call}/Less:0", [], TensorProto.BOOL),
        (f"{call}/add_1:0", [], TensorProto.INT64),
        (f"{call}/Tanh:0", [None, 4], TensorProto.FLOAT),
        (f"{call}/TensorArrayV2:0", [None, 4], TensorProto.FLOAT),
    ]
    graph = helper.make_graph(body.nodes, "body", [_value(*v) for v in inputs], [_value(*v) for v in outputs])
    w.nodes.append(
        helper.make_node(
            "Loop",
            [f"{call}/maximum_iterations:0", f"{call}/go:0", f"{call}/counter:0", "state0"],
            [f"{call}/final_counter:0", "last:0", "frames:0"],
            name=f"{call}/while_loop",
            body=graph,
        )
    )
    given = [_value("frame", [None, 4]), _value("state0", ["", 4])]
    return w.model(given, {"last:0": [None, 4], "frames:0": [None, None, 4]}, ir_version=7)


def keras_scan() -> ModelProto:
    """keras2onnx and older converters: 0 or N for "any", a recurrent layer as a Scan."""
    w = Writer("keras2onnx", 11)
    turned = w.op("Transpose", ["input_1"], "Transpose_0", "rnn/Transpose", perm=[1, 0, 2])
    w.weight("rnn/kernel:0", 3, 4)
    w.weight("rnn/recurrent_kernel:0", 4, 4)
    body = Writer("", 11)
    body.op("MatMul", ["slice", "rnn/kernel:0"], "x_h", "rnn/body/MatMul")
    body.op("MatMul", ["h_in", "rnn/recurrent_kernel:0"], "h_h", "rnn/body/MatMul_1")
    body.op("Add", ["x_h", "h_h"], "sum", "rnn/body/Add")
    body.op("Tanh", ["sum"], "h_out", "rnn/body/Tanh")
    body.op("Identity", ["h_out"], "scanned", "rnn/body/Identity")
    graph = helper.make_graph(
        body.nodes,
        "scan_body",
        [_value("h_in", ["N", 4]), _value("slice", ["N", 3])],
        [_value("h_out", ["N", 4]), _value("scanned", ["N", 4])],
    )
    w.nodes.append(
        helper.make_node(
            "Scan", ["state", turned], ["final", "sequence"], name="rnn/Scan", body=graph, num_scan_inputs=1
        )
    )
    w.op("Transpose", ["sequence"], "output_1", "rnn/Transpose_1", perm=[1, 0, 2])
    return w.model([_value("input_1", [0, 0, 3]), _value("state", ["N", 4])], {"output_1": ["N", 0, 4]}, ir_version=6)


def voice_detector() -> ModelProto:
    """Builds a model like Silero VAD: two networks in the branches on the sampling rate, weights and a check inside."""
    w = Writer("pytorch", 16)
    equal = w.op("Equal", ["sr", w.constant("Constant_0", 16000)], "Equal_0_output", "Equal_0")
    branches = {f"{which}_branch": _voice(rate, window) for which, rate, window in (("then", 16, 8), ("else", 8, 4))}
    w.nodes.append(helper.make_node("If", [equal], ["output", "stateN"], name="If_0", **branches))
    inputs = [_value("input", [None, "samples"]), _value("state", [2, "batch", 4]), _value("sr", [], TensorProto.INT64)]
    return w.model(inputs, {"output": [None, 1], "stateN": [2, "batch", 4]})


def _voice(rate: int, window: int) -> GraphProto:
    w = Writer("", 16)
    name = f"If_0_{rate}k"
    line = w.op("Unsqueeze", ["input", w.constant(f"{name}_axes", [1])], f"{name}_frame", f"{name}__Unsqueeze")
    basis = w.weight(f"{name}__stft_basis", 6, 1, window)
    conv = w.op("Conv", [line, basis], f"{name}_stft", f"{name}__Conv", strides=[window])
    relu = w.op("Relu", [conv], f"{name}_features", f"{name}__Relu")
    turned = w.op("Transpose", [relu], f"{name}_sequence", f"{name}__Transpose", perm=[2, 0, 1])
    halves = [f"{name}_h", f"{name}_c"]
    w.nodes.append(helper.make_node("Split", ["state"], halves, name=f"{name}__Split", axis=0))
    lstm = [
        w.weight(f"{name}__lstm_w", 1, 16, 6),
        w.weight(f"{name}__lstm_r", 1, 16, 4),
        w.weight(f"{name}__lstm_b", 1, 32),
    ]
    w.nodes.append(
        helper.make_node("LSTM", [turned, *lstm, "", *halves], ["", "h_n", "c_n"], name=f"{name}__LSTM", hidden_size=4)
    )
    w.op("Concat", ["h_n", "c_n"], f"{name}_stateN", f"{name}__Concat", axis=0)
    last = w.op("Squeeze", ["h_n", w.constant(f"{name}_axis", [0])], f"{name}_last", f"{name}__Squeeze")
    size = w.op("Size", ["h_n"], f"{name}_size", f"{name}__Size")
    empty = w.op("Equal", [size, w.constant(f"{name}_none", 0)], f"{name}_empty", f"{name}__Equal")
    then, other = Writer("", 16), Writer("", 16)
    then.op("Neg", [last], f"{name}_neg", f"{name}__Neg")
    other.op("Relu", [last], f"{name}_relu", f"{name}__Relu_1")
    checked = w.op(
        "If",
        [empty],
        f"{name}_checked",
        f"{name}__If",
        then_branch=then.branch("empty", f"{name}_neg"),
        else_branch=other.branch("full", f"{name}_relu"),
    )
    product = w.op("MatMul", [checked, w.weight(f"{name}__decoder", 4, 1)], f"{name}_logit", f"{name}__MatMul")
    w.op("Sigmoid", [product], f"{name}_output", f"{name}__Sigmoid")
    outputs = [helper.make_empty_tensor_value_info(f"{name}_{o}") for o in ("output", "stateN")]
    return helper.make_graph(w.nodes, name, [], outputs, w.weights)


@dataclass(frozen=True)
class Case:
    """`sizes` and `values`: what a user fills in, by the names in the suggestion. `inputs`: the shapes that result."""

    build: Callable[[], ModelProto]
    sizes: Mapping[str, int]
    inputs: Mapping[str, tuple[int, ...]]
    values: Mapping[str, str] = field(default_factory=dict[str, str])


CASES: Mapping[str, Case] = MappingProxyType(
    {
        "torch_segmenter": Case(torch_segmenter, {"height": 8, "width": 12}, {"image": (1, 3, 8, 12)}),
        "torch_dynamo": Case(torch_dynamo, {"s53": 6, "s0": 4}, {"pixel_values": (1, 3, 6, 4)}),
        "torch_script_rate": Case(torch_script_rate, {"samples": 12}, {"input": (1, 12)}, {"sr": "16000"}),
        "paddle_detector": Case(paddle_detector, {"H": 8, "W": 12}, {"x": (1, 3, 8, 12)}),
        "paddle_recogniser": Case(paddle_recogniser, {"D3": 10, "W": 10}, {"x": (1, 3, 8, 10)}),
        "tensorflow_classifier": Case(
            tensorflow_classifier, {"unk__124": 8, "unk__125": 6}, {"serving_default_input_1:0": (1, 8, 6, 3)}
        ),
        "tensorflow_while": Case(tensorflow_while, {}, {"frame": (1, 4), "state0": (1, 4)}),
        "keras_scan": Case(keras_scan, {"D1": 5}, {"input_1": (1, 5, 3), "state": (1, 4)}),
        "voice_detector": Case(
            voice_detector, {"samples": 32, "batch": 1}, {"input": (1, 32), "state": (2, 1, 4)}, {"sr": "8000"}
        ),
    }
)
