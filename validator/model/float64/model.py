"""Float64 reference: evaluates a model node by node in float64, and again with random rounding errors.

Nothing of the compiler is used. A node is computed by the first of these that is possible:

1. onnxruntime in float64, where it has such a kernel; normalisations and recurrent layers in steps, and the branch of
   an If that a constant decides node by node;
2. a convolution here, or onnx's reference implementation, in float64. They are used only if they agree with
   onnxruntime's float32 kernel on the operands of the first run;
3. onnxruntime's float32 kernel.
"""

from collections import ChainMap
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper

from raptor.common.errors import RaptorError
from raptor.target.tensor_layout import Floats
from validator.model import onnx_resize
from validator.model.float64.kernels import SingleNode
from validator.model.float64.normalisations import OPSET, steps
from validator.model.float64.recurrent import NodeEvaluator, Recurrence, RecurrentLayer
from validator.model.float_types import floats_as, inline_functions
from validator.model.interpreter import Interpreter, NodeGraph
from validator.model.node import Array, ModelNode, Opsets, constants_of, nodes_of

_OF_SHAPES = frozenset(["Shape", "Size"])


class NoFloat64Error(RaptorError):
    """The model cannot be computed in float64; the message says why."""


@contextmanager
def _unknown_errors() -> Generator[None]:
    """Raises `NoFloat64Error` for any error: those of onnx, onnxruntime, protobuf and numpy have no common base."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as e:
        raise NoFloat64Error(f"{type(e).__name__}: {' '.join(str(e).split())[:200]}") from e


@dataclass(slots=True, eq=False)
class Float64Model:
    """A model that is evaluated in float64.

    `constants`: tensors that do not depend on inputs, in float32; the first run fills them. `types`: types of inputs
    that are not floats. `evaluators`: what computes each node, keyed by its first result; the first run chooses.
    """

    graph: NodeGraph
    constants: dict[str, Array]
    types: Mapping[str, "np.dtype[np.generic]"] = field(default_factory=dict[str, "np.dtype[np.generic]"])
    evaluators: dict[str, NodeEvaluator] = field(default_factory=dict[str, NodeEvaluator])

    def run(
        self, inputs: Mapping[str, Floats], names: Sequence[str], rng: np.random.Generator | None = None
    ) -> dict[str, Array]:
        """Returns the tensors `names` in float64. With `rng`, random errors are added at every node that rounds.

        The errors change operands and results by as much as one rounding to float32 can, with random sign and size, so
        the results are about as wrong as float32 results. Raises `NoFloat64Error` if the model cannot be computed.
        """
        with _unknown_errors(), np.errstate(all="ignore"):
            return self.compute({n: a.astype(self.types.get(n, np.float64)) for n, a in inputs.items()}, names, rng)

    def compute(
        self, inputs: Mapping[str, Array], names: Sequence[str], rng: np.random.Generator | None
    ) -> dict[str, Array]:
        """Computes tensors like `run`, from inputs in float64; raises the errors of the libraries."""
        run = _Float64Run(self, self.constants, dict(inputs), rng)
        run.evaluate(self.graph.needed(names)[0], names)
        return {name: run.value(name) for name in names}

    def evaluator(self, node: ModelNode, operands: Mapping[str, Array], *, single: bool) -> NodeEvaluator:
        """Returns what computes a node, which the operands of its first run decide. `single`: in float32."""
        name = node.writes[0]
        if name not in self.evaluators:
            self.evaluators[name] = self._chosen(node, operands, single=single)
        return self.evaluators[name]

    def _chosen(self, node: ModelNode, operands: Mapping[str, Array], *, single: bool) -> NodeEvaluator:
        known = [n for n in node.reads if n in self.constants]
        fixed = frozenset(n for n in known if operands[n].dtype.kind != "f" or not operands[n].size)
        alone = SingleNode(node, operands, fixed)
        if single:
            return alone.float32_kernel()
        if protos := steps(node.proto, operands):
            return _as_model(protos)
        if node.proto.op_type == "If" and node.proto.input[0] in known:
            return _taken_branch(node, operands, {name: self.constants[name] for name in known})
        if layer := RecurrentLayer.from_node(node.proto, operands):
            return Recurrence(layer, [_as_model(layer.nodes(d)) for d in range(len(layer.reversed_directions))])
        return alone.kernel()


@dataclass(slots=True, eq=False)
class _Float64Run(Interpreter[Array]):
    """One evaluation. `values`: tensors that depend on inputs; `sizes`: those of them that depend on shapes only."""

    model: Float64Model
    constants: dict[str, Array]
    values: dict[str, Array]
    rng: np.random.Generator | None
    sizes: set[str] = field(default_factory=set[str])

    def value(self, name: str) -> Array:
        return floats_as(ChainMap(self.values, self.constants)[name], np.float64)

    def compute(self, node: ModelNode, *, constant: bool) -> None:
        """Computes a node.

        Nodes that depend only on constants and shapes are computed in float32 without errors: sizes may follow from
        them.
        """
        known = node.proto.op_type in _OF_SHAPES or all(n in self.constants or n in self.sizes for n in node.reads)
        operands = {name: self.value(name) for name in node.reads}
        evaluator = self.model.evaluator(node, operands, single=known)
        results = evaluator.compute(operands, node.writes, None if known else self.rng)
        if known:
            self.sizes.update(node.writes)
        if constant:
            self.constants |= {name: floats_as(a, np.float32) for name, a in results.items()}
        else:
            self.values |= results

    def forget(self, name: str) -> None:
        self.values.pop(name, None)


def load_float64(
    path: Path,
    constants: Mapping[str, Array],
    shapes: Mapping[str, Sequence[int]] | None = None,
    leave: Collection[str] = (),
) -> Float64Model:
    """Reads a model in which some inputs are `constants`. `shapes`: shapes of its inputs.

    Nodes in which onnxruntime deviates from ONNX's own suite are computed as in the suite, except those in `leave`.
    Raises `NoFloat64Error` for a model that cannot be computed node by node.
    """
    with _unknown_errors():
        model = inline_functions(onnx.load(str(path)))  # pyright: ignore[reportUnknownMemberType]
        if shapes is not None and onnx_resize.may_need_rewrite(path):
            onnx_resize.rewrite_resizes(model, shapes, leave)
        graph = model.graph
        if graph.sparse_initializer:
            raise NoFloat64Error("the model has sparse constants")
        kinds = {v.name: helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in graph.input}
        found = _model(graph.node, model.opset_import, constants, graph.initializer)
        return replace(found, types={name: kind for name, kind in kinds.items() if kind.kind in "iub"})


def _model(
    protos: Sequence[NodeProto],
    opsets: Opsets,
    known: Mapping[str, Array],
    initializers: Sequence[TensorProto] = (),
) -> Float64Model:
    """Returns the evaluation of nodes that read `known` constants and their own."""
    constants = {**constants_of(protos, initializers), **known}
    singles = {name: floats_as(array, np.float32) for name, array in constants.items()}
    return Float64Model(NodeGraph(nodes_of(protos, list(opsets))), singles)


def _as_model(protos: Sequence[NodeProto]) -> Float64Model:
    return _model(protos, [helper.make_opsetid("", OPSET)], {})


def _taken_branch(node: ModelNode, operands: Mapping[str, Array], known: Mapping[str, Array]) -> Float64Model:
    """Returns the nodes of the branch that an If takes. Inside one If, an error in an exponent of 2 would make NaN."""
    taken = "then_branch" if operands[node.proto.input[0]].all() else "else_branch"
    graph = next(a.g for a in node.proto.attribute if a.name == taken)
    results = (
        helper.make_node("Identity", [o.name], [w]) for o, w in zip(graph.output, node.proto.output, strict=True) if w
    )
    return _model([*graph.node, *results], node.opsets, known, graph.initializer)
