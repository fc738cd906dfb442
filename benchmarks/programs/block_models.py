"""Small blocks of today's networks, as exporters write them, for `benchmarks/programs/small_blocks.py`.

Weights are random. The last layer of a block reads the result of its characteristic operators.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.shape_inference import infer_shapes

Array = npt.NDArray[Any]
OPSET = 17

BLOCKS: dict[str, Callable[[], ModelProto]] = {}
"""Name of a block -> function that builds its model."""


def random_weights(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


class BlockBuilder:
    """Builder of a model. Its methods add inputs, nodes and constants, and return the names of their results."""

    def __init__(self) -> None:
        self.inputs: list[ValueInfoProto] = []
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Array] = {}

    def input(self, name: str, *shape: int, element: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def ops(self, count: int, op_type: str, *inputs: str, **attributes: Any) -> list[str]:
        number = len(self.nodes)
        outputs = [f"t{number}.{k}" for k in range(count)]
        self.nodes.append(helper.make_node(op_type, inputs, outputs, name=f"{op_type.lower()}{number}", **attributes))
        return outputs

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        return self.ops(1, op_type, *inputs, **attributes)[0]

    def const(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64))

    def floats(self, values: Any) -> str:
        return self.const(np.array(values, np.float32))

    def weights(self, *shape: int) -> str:
        """Adds random weights, scaled for sums over all dimensions but the first."""
        return self.const(random_weights(*shape, seed=len(self.constants)) / np.float32(np.sqrt(np.prod(shape[1:]))))

    def conv(
        self,
        x: str,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        *,
        dims: int = 2,
        groups: int = 1,
        stride: int = 1,
        dilation: int = 1,
        pads: list[int] | None = None,
    ) -> str:
        """Adds a convolution over `dims` spatial dimensions; by default it is padded to the size of its input."""
        around = [(kernel - 1) * dilation // 2] * (2 * dims) if pads is None else pads
        given = {"pads": around, "group": groups, "strides": [stride] * dims, "dilations": [dilation] * dims}
        return self.op("Conv", x, self.weights(outputs, inputs // groups, *[kernel] * dims), **given)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        return self.op("MatMul", x, self.const(random_weights(inputs, outputs, seed=len(self.constants)) / inputs**0.5))

    def norm(self, x: str, channels: int) -> str:
        """Adds a layer norm."""
        scale, bias = self.const(1 + random_weights(channels) / 10), self.const(random_weights(channels, seed=1) / 10)
        return self.op("LayerNormalization", x, scale, bias, axis=-1)

    def heads(self, x: str, tokens: int, count: int, channels: int, order: list[int], batch: int = 1) -> str:
        """Cuts the channels of tokens into heads."""
        return self.op("Transpose", self.op("Reshape", x, self.ints(batch, tokens, count, channels)), perm=order)

    def finish(self, name: str, result: str) -> ModelProto:
        """Returns the model with one output, of shape and type as ONNX infers them."""
        outputs = [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)]
        constants = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        graph = helper.make_graph(self.nodes, name, self.inputs, outputs, constants)
        return infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8))


def register_block(*shape: int) -> Callable[[Callable[[BlockBuilder], str]], Callable[[BlockBuilder], str]]:
    """Decorator: registers a function that builds a block in `BLOCKS`. `shape`: of the input of the block."""

    def add(build: Callable[[BlockBuilder], str]) -> Callable[[BlockBuilder], str]:
        BLOCKS[build.__name__] = lambda: build_model(build, shape)
        return build

    return add


def build_model(build: Callable[[BlockBuilder], str], shape: tuple[int, ...]) -> ModelProto:
    """Returns the model of a block with an input "x" of this shape."""
    made = BlockBuilder()
    made.input("x", *shape)
    return made.finish(build.__name__, build(made))


@register_block(1, 16, 16, 16)
def cbam(b: BlockBuilder) -> str:
    x = b.conv("x", 16, 32)
    m = b.op("ReduceMean", x, axes=[1])
    q = b.op("ReduceMax", x, axes=[1])
    a = b.op("Concat", m, q, axis=1)
    a = b.op("Sigmoid", b.conv(a, 2, 1, 7))
    return b.conv(b.op("Mul", x, a), 32, 16)


@register_block(1, 16, 16, 16)
def eca(b: BlockBuilder) -> str:
    x = b.conv("x", 16, 32)
    g = b.op("GlobalAveragePool", x)
    g = b.op("Reshape", g, b.ints(1, 1, 32))
    g = b.conv(g, 1, 1, 3, dims=1)
    g = b.op("Sigmoid", b.op("Reshape", g, b.ints(1, 32, 1, 1)))
    return b.conv(b.op("Mul", x, g), 32, 16)


@register_block(1, 16, 16, 16)
def groupnorm(b: BlockBuilder) -> str:
    x = b.conv("x", 16, 32)
    y = b.op("Reshape", x, b.ints(1, 4, -1))
    y = b.op("InstanceNormalization", y, b.const(np.ones(4, np.float32)), b.const(np.zeros(4, np.float32)))
    y = b.op("Reshape", y, b.ints(1, 32, 16, 16))
    y = b.op("Add", b.op("Mul", y, b.const(random_weights(32, 1, 1))), b.const(random_weights(32, 1, 1, seed=2)))
    return b.conv(b.op("Relu", y), 32, 16)


@register_block(1, 16, 16, 16)
def instancenorm(b: BlockBuilder) -> str:
    x = b.conv("x", 16, 32)
    y = b.op("InstanceNormalization", x, b.const(1 + random_weights(32) / 10), b.const(random_weights(32, seed=1)))
    return b.conv(b.op("Relu", y), 32, 16)


@register_block(1, 16, 16, 16)
def pixelshuffle(b: BlockBuilder) -> str:
    x = b.conv("x", 16, 64)
    y = b.op("DepthToSpace", x, blocksize=2, mode="CRD")
    return b.conv(y, 16, 3)


@register_block(1, 3, 32, 32)
def focus(b: BlockBuilder) -> str:
    y = b.op("SpaceToDepth", "x", blocksize=2)
    return b.conv(b.conv(y, 12, 32), 32, 16)


@register_block(1, 3, 32, 32)
def focus_slices(b: BlockBuilder) -> str:
    ps: list[str] = []
    for r in (0, 1):
        for c in (0, 1):
            ps.append(b.op("Slice", "x", b.ints(r, c), b.ints(9999, 9999), b.ints(2, 3), b.ints(2, 2)))
    y = b.op("Concat", *ps, axis=1)
    return b.conv(b.conv(y, 12, 32), 32, 16)


@register_block(1, 16, 16, 16)
def aspp(b: BlockBuilder) -> str:
    x = b.conv("x", 16, 32)
    br = [b.conv(x, 32, 16, 1), b.conv(x, 32, 16, 3, dilation=2), b.conv(x, 32, 16, 3, dilation=4)]
    g = b.conv(b.op("GlobalAveragePool", x), 32, 16, 1)
    g = b.op("Expand", g, b.ints(1, 16, 16, 16))
    return b.conv(b.op("Concat", *br, g, axis=1), 64, 16, 1)


@register_block(1, 16, 28, 28)
def atrous(b: BlockBuilder) -> str:
    """Kernels that reach over most of the image, as DeepLab has them."""
    x = b.conv("x", 16, 64)
    br = [b.conv(x, 64, 32, 1), *(b.conv(x, 64, 32, 3, dilation=rate) for rate in (6, 12, 18))]
    return b.conv(b.op("Concat", *br, axis=1), 128, 32, 1)


@register_block(1, 16, 16, 16)
def fpn(b: BlockBuilder) -> str:
    x = b.conv("x", 16, 32)
    d = b.conv(x, 32, 32, stride=2)
    up = b.op(
        "Resize",
        d,
        "",
        b.floats([1, 1, 2, 2]),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    return b.conv(b.op("Add", up, x), 32, 16)


@register_block(1, 64, 32)
def swin_window(b: BlockBuilder) -> str:
    size, side, channels, heads = 8, 4, 32, 2
    x = b.norm("x", channels)
    x = b.op("Reshape", x, b.ints(1, size // side, side, size // side, side, channels))
    x = b.op("Transpose", x, perm=[0, 1, 3, 2, 4, 5])
    x = b.op("Reshape", x, b.ints(4, side * side, channels))
    q, k, v = (b.linear(x, channels, channels) for _ in range(3))
    q, k, v = (
        b.heads(q, 16, heads, channels // heads, [0, 2, 1, 3], batch=4),
        b.heads(k, 16, heads, channels // heads, [0, 2, 3, 1], batch=4),
        b.heads(v, 16, heads, channels // heads, [0, 2, 1, 3], batch=4),
    )
    s = b.op(
        "Softmax",
        b.op("Add", b.op("Mul", b.op("MatMul", q, k), b.floats(0.25)), b.const(random_weights(1, heads, 16, 16))),
        axis=-1,
    )
    o = b.op("Reshape", b.op("Transpose", b.op("MatMul", s, v), perm=[0, 2, 1, 3]), b.ints(4, 16, channels))
    o = b.linear(o, channels, channels)
    o = b.op("Reshape", o, b.ints(1, 2, 2, side, side, channels))
    o = b.op("Transpose", o, perm=[0, 1, 3, 2, 4, 5])
    o = b.op("Reshape", o, b.ints(1, 64, channels))
    return b.op("Add", o, "x")


@register_block(1, 64, 16)
def patch_merge(b: BlockBuilder) -> str:
    x = b.op("Reshape", "x", b.ints(1, 8, 8, 16))
    ps = [
        b.op("Slice", x, b.ints(r, c), b.ints(9999, 9999), b.ints(1, 2), b.ints(2, 2)) for r in (0, 1) for c in (0, 1)
    ]
    y = b.op("Reshape", b.op("Concat", *ps, axis=-1), b.ints(1, 16, 64))
    return b.linear(b.norm(y, 64), 64, 32)


@register_block(1, 49, 32)
def mixer(b: BlockBuilder) -> str:
    y = b.op("Transpose", b.norm("x", 32), perm=[0, 2, 1])
    y = b.linear(b.op("Relu", b.linear(y, 49, 64)), 64, 49)
    y = b.op("Add", b.op("Transpose", y, perm=[0, 2, 1]), "x")
    z = b.linear(b.op("Relu", b.linear(b.norm(y, 32), 32, 64)), 64, 32)
    return b.op("Add", y, z)


@register_block(1, 49, 32)
def gmlp(b: BlockBuilder) -> str:
    y = b.linear(b.norm("x", 32), 32, 64)
    u, v = b.ops(2, "Split", y, b.ints(*[32, 32]), axis=2)
    v = b.op("Transpose", b.norm(v, 32), perm=[0, 2, 1])
    v = b.op("Transpose", b.linear(v, 49, 49), perm=[0, 2, 1])
    return b.op("Add", b.linear(b.op("Mul", u, v), 32, 32), "x")


@register_block(1, 20, 32)
def swiglu_rms(b: BlockBuilder) -> str:
    s = b.op("ReduceMean", b.op("Mul", "x", "x"), axes=[2])
    r = b.op("Div", "x", b.op("Sqrt", b.op("Add", s, b.floats(1e-5))))
    g = b.linear(r, 32, 64)
    u = b.linear(r, 32, 64)
    return b.op("Add", b.linear(b.op("Mul", b.op("Mul", g, b.op("Sigmoid", g)), u), 64, 32), "x")


@register_block(1, 20, 32)
def rope(b: BlockBuilder) -> str:
    c = b.const(random_weights(1, 20, 32))
    s = b.const(random_weights(1, 20, 32, seed=3))

    def rot(z: str) -> str:
        a = b.op("Slice", z, b.ints(0), b.ints(16), b.ints(2))
        d = b.op("Slice", z, b.ints(16), b.ints(32), b.ints(2))
        return b.op("Add", b.op("Mul", z, c), b.op("Mul", b.op("Concat", b.op("Neg", d), a, axis=2), s))

    q, k, v = (b.linear("x", 32, 32) for _ in range(3))
    q, k = rot(q), rot(k)
    p = b.op("Softmax", b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1])), axis=-1)
    return b.linear(b.op("MatMul", p, v), 32, 32)


@register_block(1, 40, 32)
def conformer_conv(b: BlockBuilder) -> str:
    y = b.linear(b.norm("x", 32), 32, 64)
    u, v = b.ops(2, "Split", y, b.ints(*[32, 32]), axis=2)
    y = b.op("Mul", u, b.op("Sigmoid", v))
    y = b.op("Transpose", y, perm=[0, 2, 1])
    y = b.conv(y, 32, 32, 9, groups=32, dims=1)
    y = b.op("Mul", y, b.op("Sigmoid", y))
    y = b.op("Transpose", y, perm=[0, 2, 1])
    return b.op("Add", b.linear(y, 32, 32), "x")


@register_block(1, 16, 64)
def tcn(b: BlockBuilder) -> str:
    y = "x"
    ci = 16
    for d in (1, 2, 4):
        y = b.op("Relu", b.conv(y, ci, 32, 3, dilation=d, pads=[2 * d, 0], dims=1))
        ci = 32
    return y


@register_block(1, 16, 256)
def dilated_residuals(b: BlockBuilder) -> str:
    y = b.conv("x", 16, 32, 1, dims=1)
    for d in (1, 2, 4, 8, 16, 32):
        y = b.op("Add", y, b.op("Relu", b.conv(y, 32, 32, 3, dilation=d, dims=1)))
    return y


@register_block(1, 20, 32)
def embed_mean(b: BlockBuilder) -> str:
    y = b.op("ReduceMean", b.op("Relu", b.linear("x", 32, 64)), axes=[1], keepdims=0)
    return b.linear(y, 64, 10)


@register_block(1, 16, 12, 12)
def l2norm(b: BlockBuilder) -> str:
    x = b.conv("x", 16, 32)
    n = b.op("ReduceL2", x, axes=[1])
    return b.conv(b.op("Div", x, n), 32, 8)


@register_block(1, 16, 12, 12)
def channel_shuffle(b: BlockBuilder) -> str:
    x = b.conv("x", 16, 32, groups=2)
    x = b.op("Reshape", x, b.ints(1, 2, 16, 12, 12))
    x = b.op("Transpose", x, perm=[0, 2, 1, 3, 4])
    x = b.op("Reshape", x, b.ints(1, 32, 12, 12))
    return b.conv(x, 32, 32, groups=2)


@register_block(1, 16, 12, 12)
def deconv_cat(b: BlockBuilder) -> str:
    x = b.conv("x", 16, 32, stride=2)
    y = b.op("ConvTranspose", x, b.const(random_weights(32, 16, 2, 2)), strides=[2, 2])
    return b.conv(b.op("Concat", y, "x", axis=1), 32, 8)


@register_block(1, 16, 12, 12)
def sknet(b: BlockBuilder) -> str:
    u = b.conv("x", 16, 32)
    v = b.conv("x", 16, 32, dilation=2)
    s = b.op("Add", u, v)
    z = b.op("Relu", b.conv(b.op("GlobalAveragePool", s), 32, 8, 1))
    a = b.op("Reshape", b.conv(z, 8, 64, 1), b.ints(1, 2, 32, 1, 1))
    a = b.op("Softmax", a, axis=1)
    st = b.op("Concat", b.op("Unsqueeze", u, b.ints(1)), b.op("Unsqueeze", v, b.ints(1)), axis=1)
    y = b.op("ReduceSum", b.op("Mul", st, a), b.ints(1), keepdims=0)
    return b.conv(y, 32, 8)


@register_block(1, 16, 12, 12)
def yolo_head(b: BlockBuilder) -> str:
    x = b.conv(b.conv("x", 16, 32), 32, 3 * 10, 1)
    x = b.op("Reshape", x, b.ints(1, 3, 10, 12, 12))
    x = b.op("Transpose", x, perm=[0, 1, 3, 4, 2])
    x = b.op("Sigmoid", x)
    return b.op("Reshape", x, b.ints(1, 432, 10))


@register_block(1, 16, 12, 12)
def ssd_softmax(b: BlockBuilder) -> str:
    x = b.conv(b.conv("x", 16, 32), 32, 4 * 21, 1)
    x = b.op("Transpose", x, perm=[0, 2, 3, 1])
    x = b.op("Reshape", x, b.ints(1, 576, 21))
    return b.op("Softmax", x, axis=-1)


@register_block(1, 16, 16, 16)
def seg_head(b: BlockBuilder) -> str:
    x = b.conv(b.conv("x", 16, 32), 32, 21, 1)
    up = b.op("Resize", x, "", b.floats([1, 1, 2, 2]), mode="linear", coordinate_transformation_mode="half_pixel")
    return b.op("Softmax", up, axis=1)


@register_block(1, 16, 8, 8)
def dfl(b: BlockBuilder) -> str:
    x = b.conv(b.conv("x", 16, 32), 32, 64, 1)
    x = b.op("Reshape", x, b.ints(1, 4, 16, 64))
    x = b.op("Transpose", x, perm=[0, 2, 1, 3])
    x = b.op("Softmax", x, axis=1)
    x = b.op("Conv", x, b.const(np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1)))
    return b.op("Reshape", x, b.ints(1, 4, 64))


@register_block(1, 16, 8, 8)
def upsample_bilinear_x4(b: BlockBuilder) -> str:
    x = b.conv("x", 16, 32)
    up = b.op("Resize", x, "", b.floats([1, 1, 4, 4]), mode="linear", coordinate_transformation_mode="align_corners")
    return b.conv(up, 32, 4)


@register_block(1, 8, 8, 20)
def cnn_lstm(b: BlockBuilder) -> str:
    x = b.op("Relu", b.conv("x", 8, 8))
    x = b.op("Transpose", x, perm=[3, 0, 1, 2])
    x = b.op("Reshape", x, b.ints(20, 1, 64))
    o = b.op("LSTM", x, b.const(random_weights(1, 64, 64) / 8), b.const(random_weights(1, 64, 16) / 4), hidden_size=16)
    y = b.op("Reshape", o, b.ints(20, 16))
    return b.linear(y, 16, 10)


@register_block(1, 3, 32, 32)
def vit_cls(b: BlockBuilder) -> str:
    x = b.op("Conv", "x", b.const(random_weights(32, 3, 8, 8) / 10), strides=[8, 8])
    x = b.op("Transpose", b.op("Reshape", x, b.ints(1, 32, 16)), perm=[0, 2, 1])
    x = b.op("Concat", b.const(random_weights(1, 1, 32)), x, axis=1)
    x = b.norm(x, 32)
    q, k, v = (b.linear(x, 32, 32) for _ in range(3))
    p = b.op("Softmax", b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1])), axis=-1)
    x = b.op("Add", b.linear(b.op("MatMul", p, v), 32, 32), x)
    y = b.op("Gather", x, b.const(np.array(0, np.int64)), axis=1)
    return b.linear(y, 32, 10)


@register_block(1, 8, 8, 8)
def maxvit_grid(b: BlockBuilder) -> str:
    x = b.conv("x", 8, 32)
    x = b.op("Reshape", x, b.ints(1, 32, 2, 4, 2, 4))
    x = b.op("Transpose", x, perm=[0, 3, 5, 2, 4, 1])
    x = b.op("Reshape", x, b.ints(16, 4, 32))
    q, k, v = (b.linear(x, 32, 32) for _ in range(3))
    p = b.op("Softmax", b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1])), axis=-1)
    x = b.linear(b.op("MatMul", p, v), 32, 32)
    x = b.op("Reshape", x, b.ints(1, 4, 4, 2, 2, 32))
    x = b.op("Transpose", x, perm=[0, 5, 3, 1, 4, 2])
    x = b.op("Reshape", x, b.ints(1, 32, 8, 8))
    return b.conv(x, 32, 8)


@register_block(8, 64)
def mlp_batch(b: BlockBuilder) -> str:
    x = b.op("Relu", b.op("Gemm", "x", b.const(random_weights(64, 96) / 8), b.const(random_weights(96))))
    x = b.op("Relu", b.op("Gemm", x, b.const(random_weights(96, 96) / 8), b.const(random_weights(96))))
    return b.op("Gemm", x, b.const(random_weights(96, 10) / 8), b.const(random_weights(10)))


@register_block(4, 3, 16, 16)
def cnn_batch(b: BlockBuilder) -> str:
    x = b.op("Relu", b.conv("x", 3, 16))
    x = b.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.op("Relu", b.conv(x, 16, 32))
    x = b.op("Flatten", b.op("GlobalAveragePool", x))
    return b.op("Gemm", x, b.const(random_weights(32, 10) / 8), b.const(random_weights(10)))


@register_block(1, 40, 64)
def ffn_relu(b: BlockBuilder) -> str:
    return b.op("Add", b.linear(b.op("Relu", b.linear(b.norm("x", 64), 64, 128)), 128, 64), "x")


@register_block(1, 40, 64)
def ffn_bias_gelu(b: BlockBuilder) -> str:
    h = b.op("Add", b.linear(b.norm("x", 64), 64, 128), b.const(random_weights(128)))
    g = b.op(
        "Mul", b.op("Mul", h, b.op("Add", b.op("Erf", b.op("Div", h, b.floats(1.4142))), b.floats(1.0))), b.floats(0.5)
    )
    return b.op("Add", b.linear(g, 128, 64), "x")


@register_block(1, 4, 128)
def cnn1d(b: BlockBuilder) -> str:
    x = "x"
    ci = 4
    for co in (16, 32):
        x = b.op("Relu", b.conv(x, ci, co, 5, dims=1))
        x = b.op("MaxPool", x, kernel_shape=[2], strides=[2])
        ci = co
    x = b.op("Flatten", x)
    return b.op("Gemm", x, b.const(random_weights(32 * 32, 10) / 30), b.const(random_weights(10)))


@register_block(1, 16, 32)
def deconv1d(b: BlockBuilder) -> str:
    x = b.op("Relu", b.conv("x", 16, 32, dims=1))
    return b.op("ConvTranspose", x, b.const(random_weights(32, 8, 4)), strides=[2], pads=[1, 1])


@register_block(1, 16, 40)
def ln_conv1d(b: BlockBuilder) -> str:
    x = b.conv("x", 16, 32, 5, dims=1)
    y = b.op("Transpose", x, perm=[0, 2, 1])
    y = b.norm(y, 32)
    y = b.op("Transpose", y, perm=[0, 2, 1])
    return b.conv(b.op("Relu", y), 32, 16, dims=1)


@register_block(1, 8, 8, 20)
def gru_crnn(b: BlockBuilder) -> str:
    x = b.op("Relu", b.conv("x", 8, 8))
    x = b.op("Transpose", x, perm=[3, 0, 1, 2])
    x = b.op("Reshape", x, b.ints(20, 1, 64))
    o = b.op(
        "GRU",
        x,
        b.const(random_weights(2, 48, 64) / 8),
        b.const(random_weights(2, 48, 16) / 4),
        hidden_size=16,
        direction="bidirectional",
    )
    y = b.op("Reshape", b.op("Transpose", o, perm=[0, 2, 1, 3]), b.ints(20, 32))
    return b.linear(y, 32, 10)


@register_block(1, 8, 16, 16)
def adaptive_pool(b: BlockBuilder) -> str:
    x = b.conv("x", 8, 32)
    x = b.op("AveragePool", x, kernel_shape=[8, 8], strides=[8, 8])
    x = b.op("Flatten", x)
    return b.op("Gemm", x, b.const(random_weights(128, 10) / 10), b.const(random_weights(10)))


@register_block(1, 30, 32)
def attention_pool(b: BlockBuilder) -> str:
    h = b.op("Tanh", b.linear("x", 32, 32))
    s = b.op("Softmax", b.linear(h, 32, 1), axis=1)
    y = b.op("ReduceSum", b.op("Mul", "x", s), b.ints(1), keepdims=0)
    return b.linear(y, 32, 10)


@register_block(1, 16, 12, 12)
def cosine(b: BlockBuilder) -> str:
    x = b.conv("x", 16, 32)
    y = b.op("Flatten", b.op("GlobalAveragePool", x))
    n = b.op("ReduceL2", y, axes=[1])
    return b.linear(b.op("Div", y, n), 32, 10)


@register_block(1, 8, 16, 16)
def seg_argmax(b: BlockBuilder) -> str:
    x = b.conv(b.op("Relu", b.conv("x", 8, 32)), 32, 12, 1)
    return b.op("Cast", b.op("ArgMax", x, axis=1), to=1)


@register_block(1, 20, 32)
def embed_ids(b: BlockBuilder) -> str:
    pos = b.const(random_weights(1, 20, 32))
    x = b.norm(b.op("Add", "x", pos), 32)
    q, k, v = (b.op("Add", b.linear(x, 32, 32), b.const(random_weights(32))) for _ in range(3))
    q, k, v = b.heads(q, 20, 4, 8, [0, 2, 1, 3]), b.heads(k, 20, 4, 8, [0, 2, 3, 1]), b.heads(v, 20, 4, 8, [0, 2, 1, 3])
    s = b.op("Softmax", b.op("Div", b.op("MatMul", q, k), b.floats(2.83)), axis=-1)
    o = b.op("Reshape", b.op("Transpose", b.op("MatMul", s, v), perm=[0, 2, 1, 3]), b.ints(1, 20, 32))
    x = b.op("Add", b.linear(o, 32, 32), x)
    c = b.op("Slice", x, b.ints(0), b.ints(1), b.ints(1))
    return b.op("Tanh", b.linear(b.op("Reshape", c, b.ints(1, 32)), 32, 32))


@register_block(1, 24, 32)
def gqa(b: BlockBuilder) -> str:
    q = b.linear("x", 32, 32)
    k, v = b.linear("x", 32, 16), b.linear("x", 32, 16)
    q = b.op("Transpose", b.op("Reshape", q, b.ints(1, 24, 4, 8)), perm=[0, 2, 1, 3])
    k = b.op("Transpose", b.op("Reshape", k, b.ints(1, 24, 2, 8)), perm=[0, 2, 3, 1])
    v = b.op("Transpose", b.op("Reshape", v, b.ints(1, 24, 2, 8)), perm=[0, 2, 1, 3])
    k = b.op("Reshape", b.op("Expand", b.op("Unsqueeze", k, b.ints(2)), b.ints(1, 2, 2, 8, 24)), b.ints(1, 4, 8, 24))
    v = b.op("Reshape", b.op("Expand", b.op("Unsqueeze", v, b.ints(2)), b.ints(1, 2, 2, 24, 8)), b.ints(1, 4, 24, 8))
    s = b.op("Softmax", b.op("MatMul", q, k), axis=-1)
    o = b.op("Reshape", b.op("Transpose", b.op("MatMul", s, v), perm=[0, 2, 1, 3]), b.ints(1, 24, 32))
    return b.linear(o, 32, 32)


@register_block(1, 4, 8, 8, 8)
def conv3d(b: BlockBuilder) -> str:
    w = b.const(random_weights(8, 4, 3, 3, 3) / 10)
    x = b.op("Relu", b.op("Conv", "x", w, pads=[1] * 6))
    x = b.op("MaxPool", x, kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    return b.op("Conv", x, b.const(random_weights(8, 8, 3, 3, 3) / 15), pads=[1] * 6)


@register_block(1, 32, 12, 12)
def resnext(b: BlockBuilder) -> str:
    x = b.op("Relu", b.conv("x", 32, 32, 1))
    x = b.op("Relu", b.conv(x, 32, 32, 3, groups=8))
    return b.op("Add", b.conv(x, 32, 32, 1), "x")


@register_block(1, 16, 12, 12)
def ghost(b: BlockBuilder) -> str:
    p = b.op("Relu", b.conv("x", 16, 16, 1))
    c = b.op("Relu", b.conv(p, 16, 16, 3, groups=16))
    return b.conv(b.op("Concat", p, c, axis=1), 32, 16, 1)


@register_block(1, 8, 12, 12)
def prelu_hswish(b: BlockBuilder) -> str:
    x = b.op("PRelu", b.conv("x", 8, 32), b.const(np.abs(random_weights(32, 1, 1))))
    x = b.op("HardSwish", b.conv(x, 32, 32))
    return b.conv(x, 32, 8)


@register_block(1, 8, 12, 12)
def reflect_pad(b: BlockBuilder) -> str:
    x = b.op("Pad", "x", b.ints(0, 0, 1, 1, 0, 0, 1, 1), mode="reflect")
    x = b.op("Relu", b.conv(x, 8, 32, pads=[0] * 4))
    x = b.op("Pad", x, b.ints(0, 0, 1, 1, 0, 0, 1, 1), mode="reflect")
    return b.conv(x, 32, 8, pads=[0] * 4)


@register_block(1, 8, 12, 12)
def lrn(b: BlockBuilder) -> str:
    x = b.op("LRN", b.conv("x", 8, 32), size=5)
    return b.conv(x, 32, 8)


@register_block(20, 1, 16)
def gru_simple(b: BlockBuilder) -> str:
    o = b.op(
        "GRU",
        "x",
        b.const(random_weights(1, 48, 16) / 8),
        b.const(random_weights(1, 48, 16) / 4),
        hidden_size=16,
        linear_before_reset=1,
    )
    y = b.op("Reshape", o, b.ints(20, 16))
    return b.linear(y, 16, 10)


@register_block(1, 4, 16, 16)
def unet_small(b: BlockBuilder) -> str:
    a = b.op("Relu", b.conv("x", 4, 16))
    d = b.op("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2])
    d = b.op("Relu", b.conv(d, 16, 32))
    u = b.op("ConvTranspose", d, b.const(random_weights(32, 16, 2, 2) / 6), strides=[2, 2])
    return b.conv(b.op("Concat", u, a, axis=1), 32, 2)


@register_block(2, 4, 12, 12)
def siamese(b: BlockBuilder) -> str:
    x = b.op("Relu", b.conv("x", 4, 16))
    y = b.op("Flatten", b.op("GlobalAveragePool", x))
    y = b.linear(y, 16, 8)
    a = b.op("Slice", y, b.ints(0), b.ints(1), b.ints(0))
    c = b.op("Slice", y, b.ints(1), b.ints(2), b.ints(0))
    return b.op("Sub", a, c)


@register_block(1, 64)
def autoencoder(b: BlockBuilder) -> str:
    x = b.op("Relu", b.linear("x", 64, 32))
    x = b.op("Relu", b.linear(x, 32, 8))
    x = b.op("Relu", b.linear(x, 8, 32))
    return b.linear(x, 32, 64)


@register_block(1, 16, 12, 12)
def swish_se(b: BlockBuilder) -> str:
    x = b.conv("x", 16, 32)
    x = b.op("Mul", x, b.op("Sigmoid", x))
    s = b.op("ReduceMean", x, axes=[2, 3])
    s = b.conv(s, 32, 8, 1)
    s = b.op("Mul", s, b.op("Sigmoid", s))
    s = b.op("Sigmoid", b.conv(s, 8, 32, 1))
    return b.conv(b.op("Mul", x, s), 32, 16, 1)


@register_block(1, 4, 12, 12)
def spatial_softmax(b: BlockBuilder) -> str:
    x = b.conv("x", 4, 16)
    y = b.op("Softmax", b.op("Reshape", x, b.ints(16, 144)), axis=1)
    px = b.const(random_weights(144, 2))
    return b.op("MatMul", y, px)


@register_block(1, 8, 12, 12)
def dyn_filter_matmul(b: BlockBuilder) -> str:
    x = b.op("Reshape", b.conv("x", 8, 16), b.ints(1, 16, 144))
    g = b.op("MatMul", x, b.op("Transpose", x, perm=[0, 2, 1]))
    return b.linear(b.op("Reshape", g, b.ints(1, 256)), 256, 10)


def patches(b: BlockBuilder) -> str:
    """Adds a convolution that makes 64 tokens of 32 channels of an image [1, 3, 32, 32]."""
    x = b.op("Conv", "x", b.weights(32, 3, 4, 4), kernel_shape=[4, 4], strides=[4, 4])
    return b.op("Transpose", b.op("Reshape", x, b.ints(1, 32, 64)), perm=[0, 2, 1])


def feed_forward(b: BlockBuilder, x: str, channels: int) -> str:
    """Adds a norm, two layers and a shortcut."""
    y = b.op("Relu", b.linear(b.norm(x, channels), channels, 2 * channels))
    return b.op("Add", x, b.linear(y, 2 * channels, channels))


def attention(b: BlockBuilder, query: str, given: str, queries: int, keys: int, channels: int) -> str:
    """Adds an attention of two heads."""
    q, k, v = (b.linear(x, channels, channels) for x in (query, given, given))
    half = channels // 2
    q, k = b.heads(q, queries, 2, half, [0, 2, 1, 3]), b.heads(k, keys, 2, half, [0, 2, 3, 1])
    s = b.op("Softmax", b.op("Mul", b.op("MatMul", q, k), b.floats(0.3)), axis=-1)
    o = b.op("MatMul", s, b.heads(v, keys, 2, half, [0, 2, 1, 3]))
    o = b.op("Reshape", b.op("Transpose", o, perm=[0, 2, 1, 3]), b.ints(1, queries, channels))
    return b.linear(o, channels, channels)


@register_block(1, 3, 32, 32)
def vit_mean(b: BlockBuilder) -> str:
    x = patches(b)
    for _ in range(2):
        x = feed_forward(b, x, 32)
    return b.linear(b.op("ReduceMean", b.norm(x, 32), axes=[1], keepdims=0), 32, 10)


@register_block(1, 3, 32, 32)
def mixer_model(b: BlockBuilder) -> str:
    x = patches(b)
    for _ in range(2):
        y = b.op("Transpose", b.norm(x, 32), perm=[0, 2, 1])
        y = b.linear(b.op("Relu", b.linear(y, 64, 64)), 64, 64)
        x = feed_forward(b, b.op("Add", x, b.op("Transpose", y, perm=[0, 2, 1])), 32)
    return b.linear(b.op("ReduceMean", b.norm(x, 32), axes=[1], keepdims=0), 32, 10)


@register_block(1, 49, 32)
def resmlp(b: BlockBuilder) -> str:
    x = "x"
    for _ in range(2):
        y = b.op("Add", b.op("Mul", x, b.const(random_weights(32))), b.const(random_weights(32, seed=4)))
        x = b.op("Add", x, b.op("MatMul", b.weights(49, 49), y))
        y = b.op("Relu", b.linear(b.op("Mul", x, b.const(random_weights(32, seed=5))), 32, 64))
        x = b.op("Add", x, b.linear(y, 64, 32))
    return b.linear(b.op("ReduceMean", x, axes=[1], keepdims=0), 32, 10)


@register_block(1, 64, 32)
def sentence(b: BlockBuilder) -> str:
    x = b.op("Add", "x", attention(b, b.norm("x", 32), "x", 64, 64, 32))
    y = b.op("ReduceMean", feed_forward(b, x, 32), axes=[1], keepdims=0)
    return b.op("Div", y, b.op("ReduceL2", y, axes=[1]))


@register_block(1, 128, 32)
def token_argmax(b: BlockBuilder) -> str:
    x = b.linear(b.op("Relu", b.linear("x", 32, 64)), 64, 21)
    return b.op("Cast", b.op("ArgMax", x, axis=2), to=1)


@register_block(1, 64, 32)
def stat_pool(b: BlockBuilder) -> str:
    x = b.linear(b.op("Relu", b.linear("x", 32, 64)), 64, 32)
    m = b.op("ReduceMean", x, axes=[1], keepdims=1)
    d = b.op("Sub", x, m)
    s = b.op("Sqrt", b.op("ReduceMean", b.op("Mul", d, d), axes=[1], keepdims=1))
    return b.linear(b.op("Reshape", b.op("Concat", m, s, axis=2), b.ints(1, 64)), 64, 10)


@register_block(1, 64, 32)
def perceiver(b: BlockBuilder) -> str:
    latent = b.const(random_weights(1, 8, 32))
    x = b.op("Add", attention(b, latent, "x", 8, 64, 32), latent)
    return b.linear(b.op("ReduceMean", feed_forward(b, x, 32), axes=[1], keepdims=0), 32, 10)


@register_block(1, 24, 32)
def detr_decoder(b: BlockBuilder) -> str:
    seen, asked = b.linear(b.norm("x", 32), 32, 32), b.const(random_weights(1, 10, 32))
    x = b.norm(b.op("Add", asked, attention(b, asked, seen, 10, 24, 32)), 32)
    x = b.op("Add", x, attention(b, x, x, 10, 10, 32))
    return b.op("Sigmoid", b.linear(feed_forward(b, x, 32), 32, 4))


@register_block(1, 3, 128)
def pointnet(b: BlockBuilder) -> str:
    x = b.op("Relu", b.conv("x", 3, 32, 1, dims=1))
    x = b.op("Relu", b.conv(x, 32, 64, 1, dims=1))
    x = b.op("ReduceMax", x, axes=[2], keepdims=0)
    return b.linear(b.op("Relu", b.linear(x, 64, 64)), 64, 10)


@register_block(1, 34, 16)
def gcn(b: BlockBuilder) -> str:
    adjacent = b.weights(34, 34)
    x = b.op("Relu", b.op("MatMul", adjacent, b.linear("x", 16, 32)))
    return b.op("MatMul", adjacent, b.linear(x, 32, 4))


@register_block(1, 16, 16, 16)
def anchors(b: BlockBuilder) -> str:
    x = b.conv(b.op("Relu", b.conv("x", 16, 16)), 16, 3 * 8, 1)
    x = b.op("Transpose", b.op("Reshape", x, b.ints(1, 3, 8, 16, 16)), perm=[0, 1, 3, 4, 2])
    middle, size, scores = b.ops(3, "Split", b.op("Sigmoid", x), b.ints(2, 2, 4), axis=4)
    middle = b.op(
        "Mul", b.op("Add", b.op("Mul", middle, b.floats(2)), b.const(random_weights(1, 3, 16, 16, 2))), b.floats(8)
    )
    size = b.op("Mul", b.op("Pow", b.op("Mul", size, b.floats(2)), b.floats(2)), b.const(random_weights(1, 3, 1, 1, 2)))
    return b.op("Reshape", b.op("Concat", middle, size, scores, axis=4), b.ints(1, 768, 8))


@register_block(1, 16, 16, 16)
def anchor_free(b: BlockBuilder) -> str:
    x = b.op("Relu", b.conv("x", 16, 16))
    y = b.op("Relu", b.conv(x, 16, 32, stride=2))
    found: list[str] = []
    for z, channels, pixels in ((x, 16, 256), (y, 32, 64)):
        sides = b.conv(b.op("Relu", b.conv(z, channels, 32)), 32, 64, 1)
        classes = b.conv(b.op("Relu", b.conv(z, channels, 16)), 16, 10, 1)
        found.append(b.op("Reshape", b.op("Concat", sides, classes, axis=1), b.ints(1, 74, pixels)))
    sides, classes = b.ops(2, "Split", b.op("Concat", *found, axis=2), b.ints(64, 10), axis=1)
    sides = b.op("Softmax", b.op("Transpose", b.op("Reshape", sides, b.ints(1, 4, 16, 320)), perm=[0, 2, 1, 3]), axis=1)
    sides = b.op("Conv", sides, b.const(np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1)))
    first, last = b.ops(2, "Split", b.op("Reshape", sides, b.ints(1, 4, 320)), b.ints(2, 2), axis=1)
    middle = b.const(random_weights(1, 2, 320))
    first, last = b.op("Sub", middle, first), b.op("Add", middle, last)
    box = b.op("Concat", b.op("Mul", b.op("Add", first, last), b.floats(0.5)), b.op("Sub", last, first), axis=1)
    return b.op("Concat", b.op("Mul", box, b.const(random_weights(1, 1, 320))), b.op("Sigmoid", classes), axis=1)


@register_block(1, 3, 24, 24)
def upscaled(b: BlockBuilder) -> str:
    x = b.conv("x", 3, 16)
    x = b.op("Add", x, b.conv(b.op("Relu", b.conv(x, 16, 16)), 16, 16))
    x = b.op("DepthToSpace", b.conv(x, 16, 12), blocksize=2)
    return b.op("Add", x, b.op("Resize", "x", "", b.floats([1, 1, 2, 2]), mode="cubic"))


@register_block(1, 64, 32)
def sdpa(b: BlockBuilder) -> str:
    """Attention as PyTorch exports `scaled_dot_product_attention`: queries and turned keys times a factor each."""
    qkv = b.linear(b.norm("x", 32), 32, 96)
    q, k, v = (
        b.op("Squeeze", part, b.ints(0))
        for part in b.ops(
            3,
            "Split",
            b.op("Transpose", b.op("Reshape", qkv, b.ints(1, 64, 3, 2, 16)), perm=[2, 0, 3, 1, 4]),
            axis=0,
        )
    )
    q, k = b.op("Mul", q, b.floats(0.5)), b.op("Mul", b.op("Transpose", k, perm=[0, 1, 3, 2]), b.floats(0.5))
    o = b.op("MatMul", b.op("Softmax", b.op("MatMul", q, k), axis=-1), v)
    o = b.op("Reshape", b.op("Transpose", o, perm=[0, 2, 1, 3]), b.ints(1, 64, 32))
    return b.op("Add", "x", b.linear(o, 32, 32))


@register_block(1, 8, 16, 16)
def mix_ffn(b: BlockBuilder) -> str:
    """A block of PVT v2: attention to a smaller image, and a depthwise convolution over the image of the tokens."""

    def tokens(image: str, channels: int, count: int) -> str:
        return b.op("Transpose", b.op("Reshape", image, b.ints(1, channels, count)), perm=[0, 2, 1])

    def image(x: str, channels: int) -> str:
        return b.op("Reshape", b.op("Transpose", x, perm=[0, 2, 1]), b.ints(1, channels, 16, 16))

    x = tokens(b.conv("x", 8, 16), 16, 256)
    small = tokens(b.conv(image(x, 16), 16, 16, 4, stride=4, pads=[0] * 4), 16, 16)
    x = b.op("Add", x, attention(b, x, small, 256, 16, 16))
    y = image(b.linear(b.norm(x, 16), 16, 32), 32)
    y = tokens(b.op("Relu", b.conv(y, 32, 32, groups=32)), 32, 256)
    return b.op("Add", x, b.linear(y, 32, 16))


@register_block(1, 8, 8, 8)
def conv_attentions(b: BlockBuilder) -> str:
    """Attentions over the pixels of an image, with convolutions between, as in Visformer and BoTNet."""
    x = b.conv("x", 8, 16)
    for _ in range(3):
        qkv = b.op("Reshape", b.conv(x, 16, 48, 1), b.ints(3, 16, 64))
        q, k, v = (b.op("Squeeze", part, b.ints(0)) for part in b.ops(3, "Split", qkv, axis=0))
        q, v = (b.op("Transpose", each, perm=[1, 0]) for each in (q, v))
        s = b.op("Softmax", b.op("Mul", b.op("MatMul", q, k), b.floats(0.25)), axis=-1)
        o = b.op("Reshape", b.op("Transpose", b.op("MatMul", s, v), perm=[1, 0]), b.ints(1, 16, 8, 8))
        x = b.op("Add", x, b.conv(b.op("Relu", b.conv(o, 16, 32)), 32, 16))
    return x


@register_block(1, 16, 8, 8)
def image_attention(b: BlockBuilder) -> str:
    """Attention over the pixels of an image, with scaled keys that are channels of it, as in CoAtNet."""
    x = b.conv("x", 16, 32)
    qkv = b.op("Reshape", b.conv(x, 32, 96, 1), b.ints(1, 2, 48, 64))
    q, k, v = b.ops(3, "Split", qkv, axis=2)
    q, v = (b.op("Transpose", each, perm=[0, 1, 3, 2]) for each in (q, v))
    q, k = (b.op("Mul", each, b.floats(0.5)) for each in (q, k))
    s = b.op("Softmax", b.op("Add", b.op("MatMul", q, k), b.const(random_weights(1, 2, 64, 64))), axis=-1)
    o = b.op("Reshape", b.op("Transpose", b.op("MatMul", s, v), perm=[0, 1, 3, 2]), b.ints(1, 32, 8, 8))
    return b.op("Add", x, b.conv(o, 32, 32, 1))


@register_block(1, 3, 64, 64)
def space_to_depth(b: BlockBuilder) -> str:
    """The stem of TResNet: blocks of 4x4 pixels become channels of the first layer's input."""
    x = b.op("Transpose", b.op("Reshape", "x", b.ints(1, 3, 16, 4, 16, 4)), perm=[0, 3, 5, 1, 2, 4])
    x = b.op("Relu", b.conv(b.op("Reshape", x, b.ints(1, 48, 16, 16)), 48, 32))
    return b.conv(x, 32, 32)


@register_block(1, 8, 12, 12)
def linear_attention(b: BlockBuilder) -> str:
    """Attention without a softmax: the products of values and keys first, with a channel of ones for their sum."""
    x = b.conv("x", 8, 16)
    qkv = b.op("Reshape", b.conv(x, 16, 48, 1), b.ints(1, 2, 24, 144))
    q, k, v = b.ops(3, "Split", qkv, axis=2)
    q, v = (b.op("Transpose", each, perm=[0, 1, 3, 2]) for each in (q, v))
    q, k = b.op("Relu", q), b.op("Relu", k)
    v = b.op("Pad", v, b.ints(0, 0, 0, 0, 0, 0, 0, 1), b.floats(1.0), mode="constant")
    o = b.op("MatMul", q, b.op("MatMul", k, v))
    o, total = (b.op("Slice", o, b.ints(i), b.ints(j), b.ints(3)) for i, j in ((0, 8), (8, 9)))
    o = b.op("Transpose", b.op("Div", o, b.op("Add", total, b.floats(1e-3))), perm=[0, 1, 3, 2])
    return b.op("Add", x, b.conv(b.op("Reshape", o, b.ints(1, 16, 12, 12)), 16, 16, 1))


@register_block(1, 26, 32)
def rope_pairs(b: BlockBuilder) -> str:
    """Attention whose queries and keys are rotated in pairs of channels, but not the class token in front (EVA-02)."""
    shape, positions = b.ints(1, 26, 2, 16), (b.const(random_weights(25, 16, seed=k)) for k in (1, 2))
    cosines, sines = positions

    def rotated(z: str) -> str:
        """Rotates [1, 2, 26, 16]."""
        first = b.op("Slice", z, b.ints(0), b.ints(1), b.ints(2))
        rest = b.op("Slice", z, b.ints(1), b.ints(26), b.ints(2))
        even, odd = (b.op("Slice", rest, b.ints(k), b.ints(16), b.ints(3), b.ints(2)) for k in (0, 1))
        pairs = [b.op("Unsqueeze", half, b.ints(-1)) for half in (b.op("Neg", odd), even)]
        turned = b.op("Reshape", b.op("Concat", *pairs, axis=-1), b.ints(1, 2, 25, 16))
        rest = b.op("Add", b.op("Mul", rest, cosines), b.op("Mul", turned, sines))
        return b.op("Concat", first, rest, axis=2)

    q, k, v = (b.op("Transpose", b.op("Reshape", b.linear("x", 32, 32), shape), perm=[0, 2, 1, 3]) for _ in range(3))
    q = b.op("Mul", rotated(q), b.floats(0.5))
    k = b.op("Mul", b.op("Transpose", rotated(k), perm=[0, 1, 3, 2]), b.floats(0.5))
    o = b.op("MatMul", b.op("Softmax", b.op("MatMul", q, k), axis=-1), v)
    return b.linear(b.op("Reshape", b.op("Transpose", o, perm=[0, 2, 1, 3]), b.ints(1, 26, 32)), 32, 32)


@register_block(1, 16, 16, 16)
def parallel_convs(b: BlockBuilder) -> str:
    """Two blocks as MobileOne and RepVGG are trained: the sum of several layers and of a norm of the image."""

    def summed(x: str, groups: int, *kernels: int) -> str:
        statistics = [b.const(1 + random_weights(16, seed=k) ** 2) for k in range(4)]
        found = b.op("BatchNormalization", x, *statistics)
        for kernel in kernels:
            found = b.op("Add", found, b.conv(x, 16, 16, kernel, groups=groups))
        return b.op("Relu", found)

    return summed(summed(b.op("Relu", b.conv("x", 16, 16)), 16, 3, 3, 1), 1, 3, 1)


@register_block(1, 16, 8, 8)
def multi_query(b: BlockBuilder) -> str:
    """Attention of four heads to the same keys and values, which are pixels of a smaller image (MobileNet-v4)."""
    q = b.op("Transpose", b.op("Reshape", b.conv("x", 16, 64, 1), b.ints(1, 4, 16, 64)), perm=[0, 1, 3, 2])
    q = b.op("Mul", q, b.floats(0.5))
    k, v = (b.conv(b.conv("x", 16, 16, groups=16, stride=2), 16, 16, 1) for _ in range(2))
    k = b.op("Mul", b.op("Unsqueeze", b.op("Reshape", k, b.ints(1, 16, 16)), b.ints(1)), b.floats(0.5))
    v = b.op("Unsqueeze", b.op("Transpose", b.op("Reshape", v, b.ints(1, 16, 16)), perm=[0, 2, 1]), b.ints(1))
    o = b.op("MatMul", b.op("Softmax", b.op("MatMul", q, k), axis=-1), v)
    o = b.op("Reshape", b.op("Transpose", o, perm=[0, 1, 3, 2]), b.ints(1, 64, 8, 8))
    return b.op("Add", "x", b.conv(o, 64, 16, 1))
