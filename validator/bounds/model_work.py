"""The work of an ONNX model that no mapping of RAPTOR's forms avoids, read from the file without the compiler.

A layer is made of products: any lines x pixels x channels of the image, at most the rows of a crossbar, times any lines
x pixels x channels of the result, at most the columns of a core's crossbars. Layers of one image may stand side by
side; of layers whose results are added, only the largest counts. The vector unit adds the results of products, and
computes biases, functions, pools, depthwise layers and products of two computed tensors. An operator without a rule
here counts nothing. Where integers are computed, only products and their additions count.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil, prod
from typing import Any

import numpy as np
import onnx

from validator.bounds.chip_times import CertificateRefused, ChipTimes
from validator.bounds.product_layer import Axis, ProductLayer, cut_channels

MOST_READS = 2**24
"""Largest number of kernel positions of all outputs of a dimension for which a layer counts."""
_AT_ONE = ("Conv", "ConvTranspose", "Gemm", "MatMul", "MatMulInteger", "ConvInteger")
WEIGHTS_AT = {**dict.fromkeys(_AT_ONE, 1), "QLinearConv": 3, "QLinearMatMul": 3}
"""Layers, and the place of the weights in their inputs."""
GATES = {"LSTM": (4, 5, 8), "GRU": (3, 3, 7), "RNN": (1, 1, 1)}
"""Numbers by hidden element and step: results of each of the two products, functions of one operand, and of two."""
SAME = {"Identity", "Dropout", "QuantizeLinear", "DequantizeLinear"}
VIEWS = SAME | {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Cast"}
UNARY, BINARY = {"Relu", "Clip", "Sigmoid", "Tanh", "Erf"}, {"Add", "Sub", "Mul", "Max"}
POOLS = {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}
KEEPING = SAME | UNARY | BINARY | POOLS | {"BatchNormalization", "HardSigmoid", "HardSwish", "LeakyRelu"}
"""Operators whose result has the channels of their first computed input, in the same ranges."""
LINEAR = {"BatchNormalization", "Neg", "Add", "Sub", "Mul", "Div"}
"""Operators that are linear in a tensor if their other operands are constants."""
PICKS = {"Slice", "Gather", "GatherND", "GatherElements", "Split", "Shape", "Size", "SpaceToDepth", "Resize", "Pad"}
"""Operators that may need only a part of their input."""
ONE = Axis(1, 1)


class ModelWork:
    """The work of a model on a chip, in ns: `layers`, vector work by node, inputs and outputs on cores and the port."""

    def __init__(self, model: onnx.ModelProto, chip: ChipTimes, shapes: Mapping[str, Sequence[int]]) -> None:
        """`shapes`: of the inputs, where the file leaves them open."""
        graph, self.chip = model.graph, chip
        self._one_ns, self._two_ns = chip.vector_ns(1, chip.bytes), chip.vector_ns(2, chip.bytes)
        tensors = {
            n.output[0]: a.t for n in graph.node if n.op_type == "Constant" for a in n.attribute if a.HasField("t")
        }
        self._tensors = tensors | {t.name: t for t in graph.initializer}
        inputs = [v.name for v in graph.input if v.name not in self._tensors]
        self._shapes, self._computed = _infer_shapes(model, shapes), set(inputs)
        self._outputs, self._readers = {v.name for v in graph.output}, defaultdict[str, list[onnx.NodeProto]](list)
        self._needed, self._same, self._makers = set(self._outputs), dict[str, str](), dict[str, onnx.NodeProto]()
        self._whole = set(self._outputs)  # tensors of which all elements are read
        for node in reversed(graph.node):
            passes = node.op_type not in VIEWS | UNARY | BINARY | LINEAR or not self._whole.isdisjoint(node.output)
            for name in node.input if self._needed.intersection(node.output) else ():
                self._needed.add(name)
                self._readers[name].append(node)
                self._whole.update([name] if passes and node.op_type not in PICKS else [])
        self._joined = defaultdict[tuple[Any, ...], dict[str, int]](
            dict
        )  # layers by image and window, and their outputs
        self._sizes, self._terms, self._partial = dict[str, int](), dict[str, dict[str, str]](), Counter[str]()
        first = {
            name: cut_channels(self._shapes[name][1], chip.rows)
            for name in inputs
            if len(self._shapes.get(name, ())) == 4
        }
        self._ranges: dict[str, tuple[int, ...]] = first  # sizes of the channel ranges, where moves leave them known
        self._biases, self._vector = dict[str, tuple[str, Any]](), defaultdict[str, Fraction](Fraction)
        seen = dict[object, onnx.NodeProto]()
        for node in graph.node:
            self._read(node, seen)
        for out, (name, bias) in self._biases.items():
            self._vector[name] += self._two_ns * int(np.count_nonzero(bias)) * (self._count(out) // len(bias))
        integers = any(word in n.op_type for n in graph.node for word in ("Quant", "QLinear", "Integer"))
        self.vector_ns = {} if integers else {name: Fraction(ns) for name, ns in self._vector.items() if ns}
        self.layers = self._make_layers()
        known = [name for name in inputs if name in self._shapes]
        get = sum(self._partial[name] or self._count(name) for name in known if name in self._whole)
        put = sum(self._count(name) for name in self._outputs if name in self._computed and name in self._shapes)
        self.transfer_ns = chip.load_ns * get + chip.store_ns * put
        self.port_ns = chip.port_load_ns * get + chip.port_store_ns * put

    def _make_layers(self) -> list[ProductLayer]:
        found = dict[object, ProductLayer]()
        for (_, *window), layers in self._joined.items():
            outs = sum(layers.values())
            if outs and window[0].pairs and window[1].pairs:
                key = (*window, outs)
                y, x, ins, groups, times, ranges = window
                layer = found.setdefault(key, ProductLayer(y, x, ins, outs, groups, times, ranges, self.chip))
                layer.nodes.append(list(layers))
        return list(found.values())

    def _count(self, name: str) -> int:
        return prod(self._shapes[name])

    def _array(self, name: str) -> Any:
        """Returns the values of a constant, None if the file does not hold them."""
        tensor = self._tensors.get(name)
        return None if tensor is None or tensor.external_data else onnx.numpy_helper.to_array(tensor)

    def _root(self, name: str) -> str:
        while (maker := self._makers.get(name)) is not None and maker.op_type in VIEWS:
            name = self._same.get(maker.input[0], maker.input[0])
        return name

    def _is_folded(self, name: str) -> bool:
        """Checks whether a tensor has the pixels of an image as channels, so that a layer may read the image itself."""
        maker = self._makers.get(self._root(name))
        parts = [self._makers.get(self._root(n)) for n in maker.input] if maker and maker.op_type == "Concat" else []
        picked = bool(parts) and all(part is not None and part.op_type in PICKS for part in parts)
        return picked or (maker is not None and maker.op_type == "SpaceToDepth")

    def _read(self, node: onnx.NodeProto, seen: dict[object, onnx.NodeProto]) -> None:
        inputs = [self._same.get(name, name) for name in node.input]
        if not self._computed.intersection(inputs) or node.op_type in ("Shape", "Size"):
            return  # a constant
        attributes = tuple(sorted(a.SerializeToString() for a in node.attribute))
        first = seen.setdefault((node.op_type, node.domain, tuple(inputs), attributes), node)
        self._computed.update(node.output)
        if first is not node:
            self._same.update(zip(node.output, first.output, strict=False))
            return
        self._makers.update(dict.fromkeys(node.output, node))
        shaped = all(name in self._shapes for name in (*node.input, *node.output) if name)
        if shaped and self._needed.intersection(node.output) and node.domain in ("", "ai.onnx"):
            values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            self._add(node, node.name or node.output[0], inputs, values)

    def _add(self, node: onnx.NodeProto, name: str, inputs: list[str], values: dict[str, Any]) -> None:
        """Adds the work of a node whose shapes are known."""
        op, out = node.op_type, next(filter(None, node.output))
        source = next(name for name in inputs if name in self._computed)
        self._keep_ranges(op, out, inputs, values)
        given, count = self._shapes[source], self._count(out)
        if op in WEIGHTS_AT:
            self._add_product(node, name, inputs, values)
        elif op in GATES:
            self._add_recurrent(node, name, inputs, values)
        elif op in UNARY:
            self._add_function(op, name, out, inputs, values)
        elif op in LINEAR and (op == "Neg" or not self._computed.issuperset(inputs)):
            self._add_constants(node, inputs, values)
        elif op in BINARY and len(inputs) == 2:
            self._add_binary(op, name, out, inputs)
        elif out not in self._whole:
            return
        elif op in ("MaxPool", "AveragePool") and len(given) in (3, 4):
            y, x = self._window(node, values, values["kernel_shape"])
            results, apart = y.made * x.made, y.pairs * x.pairs - y.made * x.made
            down = (y.pairs - y.made) * x.ins + y.made * (x.pairs - x.made)
            along = (x.pairs - x.made) * y.ins + x.made * (y.pairs - y.made)
            self._vector[name] += count // max(1, results) * max(0, min(apart, down, along)) * self._two_ns
        elif op in ("GlobalAveragePool", "GlobalMaxPool") or (
            op == "ReduceMean" and len(given) == 4 and self._shapes[out][2:] in ([], [1, 1])
        ):
            self._vector[name] += (self._count(source) - count) * self.chip.vector_ns(1, self.chip.bytes, 0)

    def _keep_ranges(self, op: str, out: str, inputs: Sequence[str], values: dict[str, Any]) -> None:
        """Sets the channel ranges of a result that has those of its operands."""
        source = next(name for name in inputs if name in self._computed)
        parts = [self._ranges.get(name) for name in inputs]
        if op == "Concat" and values["axis"] == 1 and all(parts):
            self._ranges[out] = tuple(size for part in parts for size in part or ())
        elif op in KEEPING and source in self._ranges and self._shapes[source][:2] == self._shapes[out][:2]:
            self._ranges[out] = self._ranges[source]

    def _add_function(self, op: str, name: str, out: str, inputs: Sequence[str], values: dict[str, Any]) -> None:
        """Adds a function of one tensor. A product may do the ReLU of a layer where no bias follows."""
        if out not in self._whole:
            return
        count, bias = self._count(out), np.ones(1)
        found = (*map(values.get, ("min", "max")), *map(self._array, inputs[1:]))
        limits = [float(limit) for limit in found if limit is not None]
        if op in ("Relu", "Clip") and inputs[0] in self._biases:
            bias = self._biases[inputs[0]][1]
        first = count // len(bias) * int(np.count_nonzero(bias))
        if op != "Clip" or limits:
            self._vector[name] += first * self._one_ns
        if op == "Clip" and len(limits) == 2 and limits[0] == 0 < limits[1] < 1e9:
            self._vector[name] += 3 * count * self._two_ns  # 6 - max(0, 6 - x)

    def _terms_of(self, name: str) -> dict[str, str]:
        """Returns the images from which a tensor is computed by sums, and the largest layer of each; "" is a copy."""
        root = self._root(name)
        return {**self._terms.get(root, {}), root: ""}

    def _add_binary(self, op: str, name: str, out: str, inputs: Sequence[str]) -> None:
        """Adds a function of two tensors. A sum of layers of one image may be one layer, without additions."""
        mine, other = map(self._terms_of, inputs)
        common = mine.keys() & other.keys() if op in ("Add", "Sub") else set[str]()
        for image in common:
            small, large = sorted((mine[image], other[image]), key=lambda layer: self._sizes.get(layer, 0))
            for layers in self._joined.values() if small != large else ():
                layers.pop(small, None)
            self._biases = {made: bias for made, bias in self._biases.items() if bias[0] not in (small, large)}
            mine = {**mine, image: large}
        if op in ("Add", "Sub"):
            self._terms[out] = {**other, **mine}
        if not common and out in self._whole and self._root(inputs[0]) != self._root(inputs[1]):
            self._vector[name] += self._count(out) * self._two_ns

    def _add_constants(self, node: onnx.NodeProto, inputs: Sequence[str], values: dict[str, Any]) -> None:
        """Follows a linear function with constants, which may change the bias of a layer; it counts nothing itself."""
        source = next(name for name in inputs if name in self._computed)
        self._terms[node.output[0]] = self._terms_of(source)
        if source not in self._biases or len(self._readers[source]) > 1:
            return
        (name, bias), arrays = self._biases.pop(source), [self._array(n) for n in inputs if n != source]
        channels = self._shapes[source][-1 if self._makers[source].op_type == "MatMul" else 1]
        if any(a is None or a.size != channels for a in arrays):
            return
        if node.op_type == "BatchNormalization":
            scale, beta, mean, variance = (a.astype(float) for a in arrays)
            factor = scale / np.sqrt(variance + values.get("epsilon", 1e-5))
            self._biases[node.output[0]] = name, bias * factor + beta - mean * factor
        elif node.op_type == "Add":
            self._biases[node.output[0]] = name, bias + arrays[0].reshape(-1)

    def _add_product(self, node: onnx.NodeProto, name: str, inputs: list[str], values: dict[str, Any]) -> None:
        """Adds a layer, or a product of two computed tensors."""
        op, out = node.op_type, node.output[0]
        source, weights = inputs[0], inputs[WEIGHTS_AT[op]]
        left = "MatMul" in op and source not in self._computed  # weights times tensor
        source, weights = (weights, source) if left else (source, weights)
        given, shape, made = self._shapes[source], self._shapes[weights], self._shapes[out]
        self._terms[out] = {self._root(source): name}  # also of layers that count nothing
        if weights in self._computed:
            if op == "MatMul" and out in self._whole:
                self._vector[name] += self._count(out) * given[-1] * self.chip.vector_ns(2, self.chip.bytes, 0)
        elif "Conv" in op and len(given) in (3, 4):
            y, x = self._window(node, values, shape[2:])
            if len(self._readers[source]) == 1 and source == node.input[0]:
                self._partial[source] = prod(given[:2]) * y.ins * x.ins
            window, channels = (y._replace(copies=given[0]), x), (given[1], made[1])
            if y.kernel == x.kernel == 1 and (y.stride == x.stride == 1 or source not in self._ranges):
                window = (ONE, Axis(given[0] * y.ins * x.ins, given[0] * y.ins * x.ins))
            self._add_layer(node, name, (source, weights), window, channels, values)
        elif op == "Gemm" and not values.get("transA", 0):
            self._add_layer(node, name, (source, weights), (ONE, Axis(given[0], given[0])), (given[1], made[1]), values)
        elif "MatMul" in op and len(shape) >= 2 and prod(shape[:-2]) == 1 and len(given) >= 2:
            ins, outs = (given[-2], shape[-2]) if left else (given[-1], shape[-1])
            window = (ONE, Axis(self._count(out) // outs, self._count(out) // outs))
            self._add_layer(node, name, (source, weights), window, (ins, outs), values)

    def _add_layer(
        self,
        node: onnx.NodeProto,
        name: str,
        inputs: tuple[str, str],
        window: tuple[Axis, Axis],
        channels: tuple[int, int],
        values: dict[str, Any],
    ) -> None:
        """Adds a layer of `inputs` (image, weights), whose image and result have `channels`."""
        (source, weights), (y, x), (ins, outs), out = inputs, window, channels, node.output[0]
        is_conv, groups, array = "Conv" in node.op_type, values.get("group", 1), self._array(weights)
        image, ranges = self._root(source), self._ranges.get(source) if is_conv else None
        self._sizes[name] = y.pairs * x.pairs * ins * outs // groups
        # A layer whose weights are all equal adds up its channels, which is no product of crossbars.
        if self._is_folded(source) or (groups == 1 and array is not None and bool((array == array.flat[0]).all())):
            return
        if ins % groups or outs % groups:
            return
        self._joined[(image if groups == 1 else name, y, x, ins, groups, 1, ranges)][name] = outs
        columns, readers = self.chip.outputs * self.chip.xbars, ceil(y.kernel / y.stride) * ceil(x.kernel / x.stride)
        if is_conv and (groups > 1 or readers == 1 or readers * min(outs, self.chip.rows) <= columns):
            self._ranges[out] = cut_channels(outs, self.chip.rows)
        biased = node.op_type in ("Conv", "ConvTranspose", "Gemm") and len(node.input) > 2
        bias = self._array(node.input[2]) if biased else np.zeros(outs)
        if bias is not None and bias.size == outs and values.get("beta", 1) == 1:
            self._biases[out] = name, bias.reshape(-1).astype(float)

    def _add_recurrent(self, node: onnx.NodeProto, name: str, inputs: list[str], values: dict[str, Any]) -> None:
        """Adds the products and functions of all steps but the first, which needs no product with the state."""
        plain = not set(values) - {"hidden_size", "direction", "linear_before_reset", "layout"}
        if (
            self._computed.intersection(inputs[1:3])
            or any(inputs[4:5])
            or (self._whole.isdisjoint(node.output) and not self._reads_last_step(node, values))
        ):
            return
        (gates, one, two), (directions, _, ins), hidden = (
            GATES[node.op_type],
            self._shapes[inputs[1]],
            values["hidden_size"],
        )
        steps, batch = self._shapes[inputs[0]][:2] if not values.get("layout", 0) else self._shapes[inputs[0]][1::-1]
        if inputs[0] in self._computed:
            x = Axis(steps * batch, steps * batch)
            self._joined[(self._root(inputs[0]), ONE, x, ins, 1, 1, None)][name] = directions * gates * hidden
        for direction in range(directions if steps > 1 else 0):
            window = (ONE, Axis(batch, batch), hidden, 1, steps - 1, None)
            self._joined[(f"{name} {direction}", *window)][name] = gates * hidden
        if plain:
            self._vector[name] += directions * (steps - 1) * batch * hidden * (one * self._one_ns + two * self._two_ns)

    def _reads_last_step(self, node: onnx.NodeProto, values: dict[str, Any]) -> bool:
        """Checks whether the last step of a single forward direction is read, for which all others are needed."""
        steps = self._shapes[node.input[0]][0]
        if values.get("layout", 0) or values.get("direction", b"forward") != b"forward" or not node.output[0]:
            return False
        for reader in self._readers[node.output[0]]:
            first = self._array(reader.input[1]) if reader.op_type in ("Slice", "Gather") else None
            axes = self._array(reader.input[3]) if reader.op_type == "Slice" and len(reader.input) > 3 else np.zeros(1)
            along = any(a.name == "axis" and a.i for a in reader.attribute) or axes is None or axes.any()
            if first is not None and first.size == 1 and int(first.flat[0]) in (-1, steps - 1) and not along:
                return True
        return False

    def _window(self, node: onnx.NodeProto, values: dict[str, Any], kernel: Sequence[int]) -> list[Axis]:
        """Returns the two axes of a window; a signal has one line."""
        given, made, n = self._shapes[node.input[0]][2:], self._shapes[node.output[0]][2:], len(kernel)
        strides, steps = values.get("strides", [1] * n), values.get("dilations", [1] * n)
        pads, auto = values.get("pads", [0] * n), values.get("auto_pad", b"NOTSET")
        turned = node.op_type == "ConvTranspose"
        if max(given[i] + made[i] + kernel[i] * (given if turned else made)[i] for i in range(n)) > MOST_READS:
            raise CertificateRefused(f"{node.name}: a window of more than {MOST_READS:,} inputs and kernel positions")
        if auto in (b"SAME_UPPER", b"SAME_LOWER"):
            missing = [max(0, (made[i] - 1) * strides[i] + (kernel[i] - 1) * steps[i] + 1 - given[i]) for i in range(n)]
            pads = [m // 2 if auto == b"SAME_UPPER" else m - m // 2 for m in missing]
        return [ONE] * (2 - n) + [
            Axis(given[i], made[i], kernel[i], strides[i], pads[i], steps[i], turned) for i in range(n)
        ]


def _infer_shapes(model: onnx.ModelProto, given: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Returns the shapes that onnx finds, where they are static. Large constants are left out of what it reads."""
    bare = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    bare.graph.CopyFrom(
        onnx.GraphProto(name="bare", node=model.graph.node, input=model.graph.input, output=model.graph.output)
    )
    for value in bare.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, given.get(value.name, ()), strict=False):
            if dim.HasField("dim_value") and dim.dim_value != size:
                raise CertificateRefused(f"input {value.name}: {size} where the model has {dim.dim_value}")
            dim.dim_value = size
    for tensor in model.graph.initializer:
        small = prod(tensor.dims) <= 64
        bare.graph.initializer.append(
            tensor if small else onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        )
    graph = onnx.shape_inference.infer_shapes(bare, data_prop=True).graph
    known = (*graph.input, *graph.value_info, *graph.output)
    found = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in known
        if v.type.tensor_type.HasField("shape")
    }
    found |= {t.name: list(t.dims) for t in graph.initializer}
    return {name: shape for name, shape in found.items() if all(0 < size < 2**31 for size in shape)}
