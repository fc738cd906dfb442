"""Models that are wrong, hostile or only large: `inspect` and `compile` accept them, or refuse them with a message."""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.all_graphs.cases import build
from tests.fuzz.campaign import BrokenError, Part
from tests.fuzz.isolation import GIB, raptor

SECONDS, MEMORY_BYTES = 60, 2 * GIB
Spoiler = Callable[[ModelProto, Random], str]
HUGE = (0, -1, -(2**63), 2**20, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
FLOAT = TensorProto.FLOAT


def good_model(rng: Random) -> ModelProto:
    """Makes a small model that has every kind of part that can be spoilt."""
    draw = np.random.default_rng(rng.randrange(2**32))
    channels, filters = rng.randint(1, 4), rng.randint(1, 5)
    constants = {
        "w": draw.standard_normal((filters, channels, 3, 3)),
        "b": draw.standard_normal(filters),
        "s": draw.standard_normal((1, filters, 1, 1)),
        "v": draw.standard_normal((filters, 4)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1], strides=[1, 1]),
        helper.make_node("Mul", ["c", "s"], ["m"], "scale"),
        helper.make_node("Relu", ["m"], ["r"], "relu"),
        helper.make_node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["g"], "mean"),
        helper.make_node("Reshape", ["g", "shape"], ["f"], "flat"),
        helper.make_node("MatMul", ["f", "v"], ["z"], "full"),
        helper.make_node("Softmax", ["z"], ["y"], "soft", axis=-1),
    ]
    tensors = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in constants.items()]
    tensors.append(numpy_helper.from_array(np.array([1, -1], np.int64), "shape"))
    graph = helper.make_graph(
        nodes,
        "good",
        [helper.make_tensor_value_info("x", FLOAT, [1, channels, 6, 6])],
        [helper.make_tensor_value_info("y", FLOAT, [1, 4])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# Names and structure


def _node(model: ModelProto, rng: Random) -> NodeProto:
    return rng.choice(list(model.graph.node))


def _name(model: ModelProto, rng: Random) -> str:
    graph = model.graph
    names = [n for node in graph.node for n in (*node.input, *node.output)]
    odd = ["", "missing", "x" * 100_000, "\n", "..", "/etc/passwd", "ünïcode", "a\0b", "%s{0}"]
    odd += ["[red]x[/red]", "[/red]", "\x1b[2J"]
    return rng.choice(names) if rng.random() < 0.6 else rng.choice(odd)


def rename_operand(model: ModelProto, rng: Random) -> str:
    """Renames an input or output of a node: gives cycles, missing inputs, tensors defined twice, empty names."""
    node, name = _node(model, rng), _name(model, rng)
    names = rng.choice([node.input, node.output])
    names[rng.randrange(len(names))] = name
    return f"{node.name} reads or writes {name[:20]!r}"


def cycle(model: ModelProto, rng: Random) -> str:
    """Lets a node read its own result, or that of the last node."""
    node = _node(model, rng)
    node.input[0] = rng.choice([node.output[0], model.graph.node[-1].output[0]])
    return f"{node.name} reads {node.input[0]}"


def rename_everywhere(model: ModelProto, rng: Random) -> str:
    """Gives a tensor an odd name at all its places, so that the model stays correct."""
    old, new = rng.choice(["x", "y", "c", "w"]), _name(model, rng)
    graph = model.graph
    for node in graph.node:
        for names in (node.input, node.output):
            for k, name in enumerate(names):
                names[k] = new if name == old else name
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = new if value.name == old else value.name
    return f"{old} is called {new[:20]!r}"


def name_nodes(model: ModelProto, rng: Random) -> str:
    """Gives all nodes the same odd name."""
    name = rng.choice(["", "same", "a/b", "x" * 10_000, "\x1b[31m"])
    for node in model.graph.node:
        node.name = name
    return f"all nodes called {name[:20]!r}"


def repeat(model: ModelProto, rng: Random) -> str:
    """Repeats a node, input, output or constant."""
    what = rng.choice([model.graph.node, model.graph.input, model.graph.output, model.graph.initializer])
    what.append(rng.choice(list(what)))
    return "something twice"


def remove(model: ModelProto, rng: Random) -> str:
    """Removes a node, input, output or constant."""
    what = rng.choice([model.graph.node, model.graph.input, model.graph.output, model.graph.initializer])
    del what[rng.randrange(len(what))]
    return "something gone"


def shuffle_nodes(model: ModelProto, rng: Random) -> str:
    """Shuffles the nodes, which ONNX wants in topological order."""
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return "nodes in another order"


# Shapes and numbers


def odd_input_shape(model: ModelProto, rng: Random) -> str:
    """Gives the input an odd shape: huge, symbolic, of fewer or of many dimensions."""
    shape = model.graph.input[0].type.tensor_type.shape
    form = rng.randrange(4)
    if form == 0:
        shape.dim[rng.randrange(len(shape.dim))].dim_value = rng.choice(HUGE)
    elif form == 1:
        shape.dim[rng.randrange(len(shape.dim))].dim_param = rng.choice(["n", "", "-1"])
    elif form == 2:
        del shape.dim[rng.randrange(len(shape.dim)) :]
    else:
        for _ in range(rng.choice((1, 60, 2000))):
            shape.dim.add().dim_value = rng.choice((1, 2))
    return f"input {str([d.dim_value for d in shape.dim])[:60]}"


def odd_type(model: ModelProto, rng: Random) -> str:
    """Gives an input or output another element type, or none."""
    value = rng.choice([*model.graph.input, *model.graph.output])
    value.type.tensor_type.elem_type = rng.choice([*range(24), 99, -1])
    if rng.random() < 0.2:
        value.ClearField("type")
    return f"{value.name} of another type"


def lying_weights(model: ModelProto, rng: Random) -> str:
    """Makes shape, type and data of a constant contradict each other."""
    tensor = rng.choice(list(model.graph.initializer))
    form = rng.choice(("dims", "dims", "short", "long", "type", "fields", "rank"))
    if form == "dims":
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice((*HUGE, tensor.dims[0] + 1))
    elif form == "short":
        tensor.raw_data = tensor.raw_data[: -rng.choice((1, 4, len(tensor.raw_data)))]
    elif form == "long":
        tensor.raw_data += bytes(rng.choice((1, 4, 4000)))
    elif form == "type":
        tensor.data_type = rng.choice([*range(24), 99])
    elif form == "rank":
        tensor.dims.extend([1] * rng.choice((1, 100)))
    else:
        tensor.float_data.extend([1.0] * rng.choice((1, 1000)))
    return f"weights {tensor.name}: {form}"


def odd_numbers(model: ModelProto, rng: Random) -> str:
    """Puts NaN, infinity or another odd number into a constant."""
    tensor = rng.choice([t for t in model.graph.initializer if t.data_type == FLOAT])
    values = numpy_helper.to_array(tensor).copy()
    odd = rng.choice((np.nan, np.inf, -np.inf, 1e15, 1e-45, -0.0))
    values.ravel()[rng.randrange(values.size) :: rng.choice((1, 1000))] = odd
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return f"{odd} in {tensor.name}"


def other_weights(model: ModelProto, rng: Random) -> str:
    """Gives weights another shape, with as many numbers as it needs."""
    tensor = rng.choice([t for t in model.graph.initializer if t.data_type == FLOAT])
    dims = list(tensor.dims)
    if dims and rng.random() < 0.7:
        dims[rng.randrange(len(dims))] = rng.choice((1, 2, 3, 5, 7))
    else:
        dims = rng.choice(([], [1], [2, 3], [*dims, 1], [1, *dims], dims[::-1], dims[:-1]))
    values = np.random.default_rng(0).standard_normal(dims).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return f"{tensor.name} has the shape {dims}"


def odd_reshape(model: ModelProto, rng: Random) -> str:
    """Reshapes to an odd shape."""
    dims = [rng.choice((*HUGE, 1, 2, -1, 0)) for _ in range(rng.choice((0, 1, 2, 3, 60)))]
    tensor = next(t for t in model.graph.initializer if t.name == "shape")
    tensor.CopyFrom(numpy_helper.from_array(np.array(dims, np.int64), "shape"))
    return f"reshaped to {str(dims)[:60]}"


# Nodes


def odd_attribute(model: ModelProto, rng: Random) -> str:
    """Spoils an attribute of a node."""
    node = rng.choice([n for n in model.graph.node if n.attribute])
    attribute = rng.choice(list(node.attribute))
    form = rng.choice(("value", "value", "value", "type", "twice", "unknown", "empty", "gone"))
    if form == "value":
        attribute.i = rng.choice(HUGE)
        if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(HUGE)
    elif form == "type":
        attribute.type = rng.choice([*range(1, 15)])
    elif form == "twice":
        node.attribute.append(attribute)
    elif form == "unknown":
        node.attribute.append(helper.make_attribute("unknown", 1))
    elif form == "gone":
        node.attribute.remove(attribute)
    else:
        attribute.CopyFrom(AttributeProto(name=attribute.name))
    return f"{node.name}.{attribute.name}: {form}"


def other_operator(model: ModelProto, rng: Random) -> str:
    """Replaces the operator of a node by another one, or by one that does not exist."""
    node = _node(model, rng)
    ops = ["If", "Loop", "Scan", "SequenceConstruct", "Optional", "StringNormalizer", "NoSuchOp", "", "Conv", "LSTM"]
    ops += ["Gather", "Resize", "Einsum", "TopK", "NonZero", "RandomNormal", "Bernoulli", "ConstantOfShape", "Pad"]
    node.op_type = rng.choice(ops)
    if rng.random() < 0.3:
        node.domain = rng.choice(["com.microsoft", "ai.onnx.ml", "custom", "ai.onnx.training"])
    return f"{node.name} is a {node.op_type!r} of {node.domain!r}"


def _branch(value: str) -> Any:
    output = helper.make_tensor_value_info(f"{value}_out", FLOAT, None)
    return helper.make_graph([helper.make_node("Neg", [value], [f"{value}_out"])], "branch", [], [output])


def control_flow(model: ModelProto, rng: Random) -> str:
    """Adds an If, Loop or Scan that reads the result."""
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.array(rng.random() < 0.5), "cond"))
    graph.initializer.append(numpy_helper.from_array(np.array(rng.choice((0, 3, 2**40)), np.int64), "trips"))
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Neg", ["v"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", FLOAT, None),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_tensor_value_info("next", FLOAT, None)],
    )
    scan = helper.make_graph(
        [helper.make_node("Neg", ["e"], ["f2"])],
        "scan",
        [helper.make_tensor_value_info("e", FLOAT, None)],
        [helper.make_tensor_value_info("f2", FLOAT, None)],
    )
    node = rng.choice([
        helper.make_node("If", ["cond"], ["flow"], "if", then_branch=_branch("y"), else_branch=_branch("z")),
        helper.make_node("Loop", ["trips", "cond", "y"], ["flow"], "loop", body=body),
        helper.make_node("Scan", ["y"], ["flow"], "scan", body=scan, num_scan_inputs=1),
    ])  # fmt: skip
    graph.node.append(node)
    graph.output[0].name = "flow"
    return f"{node.op_type} over the result"


def nested_branches(model: ModelProto, rng: Random) -> str:
    """Adds branches within branches."""
    depth = rng.choice((3, 10, 30))  # protobuf writes no more than 33
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "cond"))
    inner = _branch("y")
    for level in range(depth):
        node = helper.make_node("If", ["cond"], [f"n{level}"], then_branch=inner, else_branch=_branch("y"))
        inner = helper.make_graph([node], "branch", [], [helper.make_tensor_value_info(f"n{level}", FLOAT, None)])
    model.graph.node.extend(inner.node)
    model.graph.output[0].name = f"n{depth - 1}"
    return f"{depth} branches within one another"


def functions(model: ModelProto, rng: Random) -> str:
    """Adds a function to the model: one that works, calls itself, has no body, or calls one that does not exist."""
    form = rng.choice(("good", "recursive", "empty", "missing"))
    inner = {"good": "Neg", "recursive": "Mine", "empty": "", "missing": "Other"}[form]
    domain = "" if form == "good" else "own"
    nodes = [helper.make_node(inner, ["a"], ["b"], domain=domain)] if inner else []
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model.functions.append(helper.make_function("own", "Mine", ["a"], ["b"], nodes, opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node.append(helper.make_node("Mine", ["y"], ["called"], "call", domain="own"))
    model.graph.output[0].name = "called"
    return f"a function, {form}"


def opset(model: ModelProto, rng: Random) -> str:
    """Gives the model an odd opset or IR version."""
    form = rng.choice(("version", "none", "twice", "ir"))
    if form == "version":
        model.opset_import[0].version = rng.choice((0, -1, 1, 5, 6, 7, 13, 30, 1000, 2**62))
    elif form == "none":
        del model.opset_import[:]
    elif form == "twice":
        model.opset_import.append(helper.make_opsetid("", 9))
    else:
        model.ir_version = rng.choice((0, -1, 2, 3, 100, 2**62))
    return f"opset: {form}"


# Size


def _chain(model: ModelProto, ops: Sequence[str], count: int) -> None:
    name = model.graph.output[0].name
    for k in range(count):
        model.graph.node.append(helper.make_node(ops[k % len(ops)], [name], [f"d{k}"], f"d{k}"))
        name = f"d{k}"
    model.graph.output[0].name = name


def deep(model: ModelProto, rng: Random) -> str:
    """Adds a long chain of nodes."""
    count = rng.choice((500, 1500))
    ops = rng.choice((["Neg", "Abs"], ["Identity"], ["Relu"], ["Sigmoid", "Tanh"]))
    _chain(model, ops, count)
    return f"{count} times {ops}"


def unused(model: ModelProto, rng: Random) -> str:
    """Adds many nodes whose results are not used."""
    count = rng.choice((100, 20_000))
    for k in range(count):
        model.graph.node.append(helper.make_node("Neg", ["x"], [f"u{k}"], f"u{k}"))
    return f"{count} results unused"


def expanding(model: ModelProto, rng: Random) -> str:
    """Adds a few bytes that need terabytes when constants are folded, or when the model is run."""
    size = [2**20, 2**20] if rng.random() < 0.5 else [rng.choice((2**16, 2**36))]
    model.graph.initializer.append(numpy_helper.from_array(np.array(size, np.int64), "size"))
    op = rng.choice(["ConstantOfShape", "Expand", "Tile", "Range", "OneHot"])
    graph = model.graph
    if op == "ConstantOfShape":
        graph.node.append(helper.make_node(op, ["size"], ["big"], "big"))
    elif op == "Range":
        for name, value in (("zero", 0), ("end", 2**40), ("one", 1)):
            graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
        graph.node.append(helper.make_node(op, ["zero", "end", "one"], ["big"], "big"))
    else:
        graph.node.append(helper.make_node("Expand" if op == "OneHot" else op, ["b", "size"], ["big"], "big"))
    graph.node.append(helper.make_node("ReduceSum", ["big"], ["sum"], "sum", keepdims=0))
    graph.node.append(helper.make_node("Add", ["y", "sum"], ["end_"], "plus"))
    graph.output[0].name = "end_"
    return f"{op} to {size}"


SPOILERS: tuple[Spoiler, ...] = (
    rename_operand, cycle, rename_everywhere, name_nodes, repeat, remove, shuffle_nodes, odd_input_shape, odd_type,
    lying_weights, lying_weights, other_weights, odd_numbers, odd_reshape, odd_attribute, odd_attribute,
    other_operator, control_flow, nested_branches, functions, opset, deep, unused, expanding,
)  # fmt: skip


# Files


def external(model: ModelProto, rng: Random, folder: Path) -> str:
    """Puts weights into another file: correctly, outside of the folder, through a link, or beyond the file's end."""
    (folder / "secret").write_bytes(bytes(10_000))
    inside = folder / "model"
    inside.mkdir()
    tensor = next(t for t in model.graph.initializer if t.name == "w")
    data = tensor.raw_data
    (inside / "data").write_bytes(data)
    os.symlink(folder / "secret", inside / "link")
    os.symlink(folder, inside / "folder")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    places = ["data", "data", "data", "../secret", "link", "folder/secret", str(folder / "secret")]
    places += ["/dev/zero", "", ".", "data/../data", "file:///etc/passwd"]
    entries: dict[str, Any] = {"location": rng.choice(places)}
    entries["offset"] = rng.choice((0, 0, 0, 1, -1, 2**40, "x", ""))
    entries["length"] = rng.choice((len(data), len(data), 0, 1, -1, 2**40, "0x10"))
    for key, value in entries.items():
        if rng.random() < 0.9:
            tensor.external_data.add(key=key, value=str(value))
    (inside / "model.onnx").write_bytes(model.SerializeToString())
    return f"external data {entries}"


def _spoilt_bytes(model: ModelProto, rng: Random) -> tuple[bytes, str]:
    content = bytearray(model.SerializeToString())
    form = rng.choice(("bits", "bits", "cut", "noise", "empty", "nested"))
    if form == "bits":
        for _ in range(rng.choice((1, 1, 5, 50))):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif form == "cut":
        del content[rng.randrange(len(content)) :]
    elif form == "noise":
        content = bytearray(rng.randbytes(rng.choice((1, 100, 10_000))))
    elif form == "nested":
        content = bytearray(_nested(rng.choice((50, 5000))))
    else:
        content.clear()
    return bytes(content), form


def _nested(depth: int) -> bytes:
    """Returns the bytes of a graph in an attribute of a node of a graph ..., which protobuf would refuse to write."""
    inner = b""
    for _ in range(depth):
        for key in (b"\x32", b"\x2a", b"\x0a"):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            inner = key + _varint(len(inner)) + inner
    return b"\x3a" + _varint(len(inner)) + inner


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def case(rng: Random, folder: Path) -> str:
    """Spoils a model; inspects, compiles and validates it."""
    form = rng.random()
    model = good_model(rng) if form < 0.7 else build(rng, "all", 6).model()
    path = folder / "model" / "model.onnx"
    if form < 0.12:
        done = external(model, rng, folder)
    else:
        path.parent.mkdir()
        if form < 0.3:
            content, done = _spoilt_bytes(model, rng)
        else:
            done = _spoil(model, rng)
            content = model.SerializeToString()
        path.write_bytes(content)
    return _outcome(folder, path, done, terminal=rng.random() < 0.5)


def _spoil(model: ModelProto, rng: Random) -> str:
    done: list[str] = []
    for spoil in _in_order(rng.sample(SPOILERS, rng.choice((1, 1, 1, 2)))):
        with suppress(IndexError, StopIteration, ValueError):  # another model, or spoilt already: the part is missing
            done.append(f"{spoil.__name__}: {spoil(model, rng)}")
    return "; ".join(done)


def _in_order(spoilers: Sequence[Spoiler]) -> Sequence[Spoiler]:
    """Sorts spoilers: those that need the original model come first."""
    return sorted(spoilers, key=lambda s: s in (remove, repeat, rename_operand, odd_type, lying_weights))


def _outcome(folder: Path, path: Path, done: str, *, terminal: bool) -> str:
    statuses: list[int | None] = []
    options = ("--xbar", "16", "--cell-bits", "8")
    for command in (["inspect"], ["compile", "-q", "--cores", "300", "-o", folder / "out"]):
        given = (command[0], path, *options, *command[1:])
        outcome = raptor(*given, seconds=SECONDS, memory_bytes=MEMORY_BYTES, terminal=terminal)
        if fault := outcome.fault((0, 2)):
            raise BrokenError(f"{done}: {command[0]}: {fault}")
        if len(outcome.err) > 20_000:
            raise BrokenError(f"{done}: {command[0]}: a message of {len(outcome.err)} characters")
        statuses.append(outcome.status)
    if statuses[1] != 0:
        if (folder / "out").exists():
            raise BrokenError(f"{done}: refused, but wrote something")
        return "refused"
    return _validated(folder / "out", done, terminal=terminal)


def _validated(out: Path, done: str, *, terminal: bool) -> str:
    """Validates a compiled model: it must be right. It may overflow only in onnxruntime, because scales are folded."""
    outcome = raptor("validate", out, seconds=SECONDS, memory_bytes=MEMORY_BYTES, terminal=terminal)
    if fault := outcome.fault():
        raise BrokenError(f"{done}: validate: {fault}")
    if outcome.status == 2 and "onnxruntime" in outcome.err:
        return "compiled, but onnxruntime refuses it without optimisations"
    if outcome.status == 1 and re.search(r"differs .*want -?(inf|nan)", outcome.out):
        return "compiled, but overflows in onnxruntime"
    if outcome.status != 0:
        raise BrokenError(f"{done}: compiled, but validate says {outcome.status}: {outcome.out} {outcome.err}")
    return "compiled, and right"


def prepare() -> None:
    from tests.fuzz import programs

    programs.prepare()


MODELS = Part("models", "malformed, hostile and large models", short=25, long=500, case=case, prepare=prepare)
