"""Tiny ONNX models, and their comparison with onnxruntime."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from raptor.frontend import LoadedModel, load
from raptor.graph.evaluate import evaluate_graph
from validator.model.onnx_resize import rewrite_resizes
from validator.model.ort_session import create_session

Array = np.ndarray[Any, Any]


def make_model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Sequence[int | str | None]],
    outputs: Mapping[str, int] | Sequence[str],
    constants: Mapping[str, Array] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
) -> ModelProto:
    """Outputs are names, or names with their rank (4 unless told)."""
    ranks = outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs, 4)
    graph = helper.make_graph(
        list(nodes),
        "tiny",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * r) for n, r in ranks.items()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def node(op_type: str, inputs: str, outputs: str = "y", **attributes: Any) -> NodeProto:
    """A node named after its operator, inputs and outputs by blanks (`-` for an absent one)."""
    names = ["" if n == "-" else n for n in inputs.split()]
    attributes.setdefault("name", f"my_{op_type.lower()}")
    return helper.make_node(op_type, names, outputs.split(), **attributes)


def single(
    op_type: str, shape: Sequence[int], *, opset: int = 17, rank: int | None = None, **attributes: Any
) -> ModelProto:
    """x -> one operator -> y."""
    ranks = {"y": len(shape) if rank is None else rank}
    return make_model([node(op_type, "x", **attributes)], {"x": shape}, ranks, opset=opset)


def add_layer(
    nodes: list[NodeProto],
    constants: dict[str, Array],
    op_type: str,
    given: str,
    name: str,
    shape: tuple[int, ...],
    **attributes: Any,
) -> str:
    """Adds a node with random weights of a shape to a model that is being built. Returns its name."""
    constants[f"{name}.w"] = random(*shape, seed=len(constants))
    nodes.append(node(op_type, f"{given} {name}.w", name, name=name, **attributes))
    return name


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def golden(model: ModelProto, inputs: Mapping[str, Array], names: Sequence[str] | None = None) -> dict[str, Array]:
    """Outputs (or all tensors in `names`) by onnxruntime without any optimisation."""
    model_copy = ModelProto.FromString(model.SerializeToString())
    if names is not None:
        del model_copy.graph.output[:]
        model_copy.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in names)
    opened = create_session(model_copy.SerializeToString(), Path("golden"))
    outputs = [o.name for o in opened.get_outputs()]
    return dict(zip(outputs, opened.run(outputs, dict(inputs)), strict=True))


def compare(model: ModelProto, tolerance: float = 2e-5) -> LoadedModel:
    """Loads the model and compares every tensor that ONNX knows with onnxruntime, or with ONNX's suite (`standard`)."""
    loaded = load(model)
    graph = loaded.graph
    inputs = {n: random(*graph.tensors[n].shape, seed=i) for i, n in enumerate(graph.inputs)}
    values = evaluate_graph(graph, inputs)
    known = [n for n, t in graph.tensors.items() if t.in_model and n not in graph.inputs]
    assert set(graph.outputs) <= set(known)
    judge = ModelProto.FromString(model.SerializeToString())
    rewrite_resizes(judge, {n: graph.tensors[n].shape for n in graph.inputs})
    for name, wanted in golden(judge, inputs, known).items():
        assert graph.tensors[name].shape == wanted.shape, name
        np.testing.assert_allclose(values[name], wanted, rtol=tolerance, atol=tolerance, err_msg=name)
    return loaded


def rename_tensor(model: ModelProto, old: str, new: str) -> ModelProto:
    """Returns a model in which a tensor that is no input or output has another name."""
    renamed = ModelProto()
    renamed.CopyFrom(model)
    for each in renamed.graph.node:
        for names in (each.input, each.output):
            names[:] = [new if name == old else name for name in names]
    return renamed
