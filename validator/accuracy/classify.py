"""Classes from scores: the largest of several, or a single score that is compared with a threshold."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, numpy_helper

from raptor.common.errors import UserError
from validator.accuracy.labelled_data import LabelledData
from validator.model.ort_session import read_model
from validator.program.program import LoadedProgram

Array = npt.NDArray[Any]
_ALIKE = frozenset(("Cast", "Clip", "Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
"""Operators that keep a score on the same side of its threshold."""
_SCALED = frozenset(("QuantizeLinear", "DequantizeLinear"))
_PROBABILITIES = frozenset(("HardSigmoid", "Sigmoid"))
_AROUND_ZERO = frozenset(
    ("Add", "BatchNormalization", "Conv", "FusedGemm", "FusedMatMul", "Gemm", "MatMul", "Sub", "Sum", "Tanh")
)
"""Last operators of a score whose threshold is 0: a logit, or a number from -1 to 1."""
_OF_CODES: Mapping[str, tuple[float, int]] = MappingProxyType(
    {"QLinearSigmoid": (0.5, 3), "QLinearMatMul": (0.0, 6), "QLinearConv": (0.0, 6), "QLinearAdd": (0.0, 6)}
    | {"QGemm": (0.0, 7)}
)
"""Operators that make codes: threshold of the real value, and position of the input with the scale."""


@dataclass(frozen=True, slots=True)
class ClassRule:
    """Rule that gives the class. `threshold`: of a single score, above which class 1 lies; None: largest score."""

    classes: int
    threshold: float | None = None

    def classify(self, scores: Array) -> npt.NDArray[np.int64]:
        """Returns the class of each sample, given scores [samples, scores]."""
        if self.threshold is None:
            return scores.argmax(1)
        return (scores[:, 0] > self.threshold).astype(np.int64)

    def check_labels(self, data: LabelledData, path: Path) -> None:
        """Raises `UserError` for labels that are no class of the model."""
        labels = data.labels
        wrong = 0 if labels is None else int((labels >= self.classes).sum())
        if labels is not None and wrong:
            raise UserError(
                f"--data {path}: {wrong} of {len(labels)} labels are no class of the model: labels are "
                f"{labels.min()} to {labels.max()}, the model has {self.classes} classes, 0 to {self.classes - 1}"
            )


def find_class_rule(program: LoadedProgram) -> ClassRule:
    """Returns the decision rule for the first output. Raises `UserError` if a single score has no known threshold."""
    output = program.outputs[0]
    count = int(np.prod(output.shape, dtype=np.int64))
    return ClassRule(count) if count > 1 else ClassRule(2, _threshold(program.model, output.name))


def _threshold(path: Path, name: str) -> float:
    """Returns the threshold of a model's single score: 0.5 for a probability, 0 for a logit, as a code if it is one.

    Raises `UserError` if it is neither.
    """
    graph = read_model(path).graph
    makers = {o: node for node in graph.node for o in node.output}
    constants = {t.name: t for t in graph.initializer}
    constants |= {
        n.output[0]: a.t for n in graph.node for a in n.attribute if n.op_type == "Constant" and a.name == "value"
    }
    steps = [*_back(name, makers)]
    known = steps[-1].op_type if steps else "an input"
    if known not in _PROBABILITIES | _AROUND_ZERO | _OF_CODES.keys():
        raise UserError(
            f"output {name!r} is one score, made by {known}: it tells no class, as it is neither a probability "
            "(Sigmoid) nor a logit (Gemm, MatMul, Add ...); give the model one of these as its last operator, or a "
            "score for each class"
        )
    threshold, first = _OF_CODES.get(known, (0.5 if known in _PROBABILITIES else 0.0, 1))
    for node in reversed(steps):
        if node.op_type in _SCALED | _OF_CODES.keys():
            at = first if node.op_type in _OF_CODES else 1
            scale, zero = (_scalar(constants, node, position, name) for position in (at, at + 1))
            if node.op_type == "DequantizeLinear":
                threshold = (threshold - zero) * scale
            elif scale > 0:
                threshold = threshold / scale + zero
    return threshold


def _back(name: str, makers: Mapping[str, NodeProto]) -> Iterator[NodeProto]:
    """Yields the nodes from an output backwards, up to the node that computes its score."""
    while name in makers:
        node = makers[name]
        yield node
        if node.op_type not in _ALIKE | _SCALED:
            return
        name = node.input[0]


def _scalar(constants: Mapping[str, TensorProto], node: NodeProto, position: int, output: str) -> float:
    """Returns a scale or a zero point, which is 0 if absent."""
    if position >= len(node.input) or not node.input[position]:
        return 0.0
    found = constants.get(node.input[position])
    if found is None:
        raise UserError(
            f"output {output!r} is one score, quantised with a scale that is not constant: it tells no class"
        )
    return float(numpy_helper.to_array(found).reshape(-1)[0])
