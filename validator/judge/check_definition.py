"""Compares the definition with onnxruntime, each node alone: all nodes read the definition's integers.

So a difference of one does not grow from layer to layer. Where onnxruntime finds another integer, the exact number must
be so near to a tie that its float32 arithmetic cannot decide (`RoundedCodes.explains`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, helper

from raptor.common.errors import UserError
from validator.judge.integer_difference import IntegerDifference
from validator.model.definition.evaluator import DefinitionRun, ModelDefinition
from validator.model.definition.exact_values import Array, RoundedCodes, first_index
from validator.model.definition.float_sections import is_narrow_type, make_model_input, to_runtime_type
from validator.model.ort_session import create_session, run

_SUFFIX = ".as_defined"


@dataclass(frozen=True, slots=True, eq=False)
class NodewiseSession:
    """An onnxruntime session in which every integer tensor is computed from given integers."""

    session: Any
    tensors: tuple[str, ...]
    types: Mapping[str, "np.dtype[Any]"]

    def run(self, inputs: Mapping[str, Array], given: Mapping[str, Array]) -> dict[str, Array]:
        """Returns every integer tensor as onnxruntime computes it from the given integers."""
        feed = {_input_name(f"{name}{_SUFFIX}", given[name]): to_runtime_type(given[name]) for name in self.tensors}
        asked = {i.name for i in self.session.get_inputs()}
        feed |= {name: to_runtime_type(array) for name, array in inputs.items()}
        names = [_output_name(name, self.types[name]) for name in self.tensors]
        if not names:  # a model may have no inner integers, and onnxruntime refuses to compute nothing
            return {}
        found = run(self.session, names, {n: a for n, a in feed.items() if n in asked}, "onnxruntime: ")
        return {name: a.astype(self.types[name]) for name, a in zip(self.tensors, found.values(), strict=True)}


def _input_name(name: str, array: Array) -> str:
    return f"{name}.wide" if is_narrow_type(array.dtype.name) else name


def _output_name(name: str, dtype: "np.dtype[Any]") -> str:
    return f"{name}.out" if is_narrow_type(dtype.name) else name


def load_nodewise_session(definition: ModelDefinition, known: DefinitionRun, path: Path) -> NodewiseSession:
    """Opens the model, cut at its integer tensors, whose names and types `known` has."""
    types = {name: array.dtype for name, array in known.codes.items()}
    model = ModelProto.FromString(definition.model.SerializeToString())
    doors = [make_model_input(f"{name}{_SUFFIX}", dtype) for name, dtype in types.items()]
    for node in model.graph.node:
        for k, name in enumerate(node.input):
            if name in types:
                node.input[k] = f"{name}{_SUFFIX}"
    nodes = [cast for door in doors for cast in door[1]] + list(model.graph.node)
    wide = [(name, dtype) for name, dtype in types.items() if is_narrow_type(dtype.name)]
    to = {name: helper.np_dtype_to_tensor_dtype(to_runtime_type(np.zeros(1, dtype)).dtype) for name, dtype in wide}
    nodes += [helper.make_node("Cast", [name], [f"{name}.out"], to=to[name]) for name, _ in wide]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.input.extend(door[0] for door in doors)
    del model.graph.output[:]
    del model.graph.value_info[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=_output_name(name, dtype)) for name, dtype in types.items())
    return NodewiseSession(create_session(model.SerializeToString(), path), tuple(types), types)


def find_differences(
    definition: ModelDefinition, known: DefinitionRun, computed: Mapping[str, Array]
) -> list[IntegerDifference]:
    """Compares each integer tensor. Each entry says how many elements differ, and how many of these are explained."""
    return [_difference(definition, known, name, computed[name]) for name in known.codes]


def _difference(definition: ModelDefinition, known: DefinitionRun, name: str, got: Array) -> IntegerDifference:
    want, node = known.codes[name], definition.name_of(name)
    if got.shape != want.shape:
        raise UserError(f"{node}: {name!r} has shape {list(got.shape)} in onnxruntime, expected {list(want.shape)}")
    wrong = got != want
    count = int(wrong.sum())
    if not count:
        return IntegerDifference(name, node, want.size)
    explained = wrong & _explained(definition.round_tensor(name, known.values), got, wrong)
    at = first_index(wrong & ~explained if (wrong & ~explained).any() else wrong)
    return IntegerDifference(name, node, want.size, count, int(explained.sum()), at, int(got[at]), int(want[at]))


def _explained(rounded: RoundedCodes | None, got: Array, wrong: Array) -> Array:
    found = np.zeros(wrong.shape, np.bool_)
    if rounded is not None:
        found[wrong] = rounded.explains(got, wrong)
    return found
