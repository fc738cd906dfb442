"""Resolves sequences of tensors, which exporters write for lists: the chip has tensors only.

A sequence becomes the list of its elements while its length and all positions are constants. Then what reads an element
reads the tensor itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from onnx import NodeProto, helper

from raptor.common.errors import UserError
from raptor.frontend.control_flow.node_maker import NodeMaker
from raptor.frontend.control_flow.partial_evaluation import PartialEvaluator, UndecidedError
from raptor.frontend.operator_sets import STANDARD_DOMAINS
from raptor.frontend.proto.model_checks import describe_node


@dataclass(frozen=True, slots=True)
class SequenceResolver:
    """Replaces the sequences of a graph by the tensors in them.

    elements: names of the tensors in each resolved sequence, by its name.
    """

    known: PartialEvaluator
    maker: NodeMaker
    elements: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def reads_or_makes(self, node: NodeProto) -> bool:
        """Checks whether a node makes a sequence, or reads one whose elements are known."""
        if node.op_type == "Identity":
            return any(name in self.elements for name in node.input)
        return is_sequence_operator(node)

    def resolve_node(self, node: NodeProto) -> list[NodeProto]:
        """Resolves one node. Returns the nodes that replace it, which compute tensors from the elements of sequences.

        If the node makes a sequence, its elements are recorded. Raises `UndecidedError` if constants and shapes do not
        decide which elements these are.
        """
        return _RESOLVE[node.op_type](self, node)

    def find_elements(self, node: NodeProto) -> tuple[str, ...]:
        """Returns the tensors in the sequence that a node reads as its first operand."""
        if node.input[0] not in self.elements:
            raise UndecidedError(f"the sequence '{node.input[0]}'")
        return self.elements[node.input[0]]

    def evaluate_integer(self, name: str) -> int:
        """Returns the value of a tensor of one integer."""
        value = self.known.evaluate(name)
        if value.size != 1:
            raise UndecidedError(f"'{name}', which is not one number")
        return int(value.ravel()[0])

    def find_position(self, node: NodeProto, operand: int, count: int, default: int) -> int:
        """Returns the position in a sequence that an operand of a node names; without the operand, `default`.

        Negative positions count from the end of the sequence. The result is from 0 to `count` - 1; raises `UserError`
        for a position outside.
        """
        name = node.input[operand] if len(node.input) > operand else ""
        given = self.evaluate_integer(name) if name else default
        length = len(self.find_elements(node))
        if not -length <= given < count:
            fault = f"position {given} of a sequence of {length}"
            raise UserError(f"{describe_node(node)} ({node.op_type}): {fault}")
        return given + length if given < 0 else given


def is_sequence_operator(node: NodeProto) -> bool:
    """Checks whether a node is a standard operator that only reads or makes sequences of tensors."""
    return node.op_type in SEQUENCE_OPERATORS and node.domain in STANDARD_DOMAINS


def _attribute(node: NodeProto, name: str, default: int) -> int:
    return next((a.i for a in node.attribute if a.name == name), default)


def _make_empty(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
    to.elements[node.output[0]] = ()
    return []


def _make_sequence(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
    to.elements[node.output[0]] = tuple(node.input)
    return []


def _copy_sequence(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
    to.elements[node.output[0]] = to.find_elements(node)
    return []


def _insert_element(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
    old = to.find_elements(node)
    at = to.find_position(node, 2, len(old) + 1, len(old))
    to.elements[node.output[0]] = (*old[:at], node.input[1], *old[at:])
    return []


def _erase_element(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
    old = to.find_elements(node)
    at = to.find_position(node, 1, len(old), -1)
    to.elements[node.output[0]] = (*old[:at], *old[at + 1 :])
    return []


def _take_element(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
    found = to.find_elements(node)
    name = found[to.find_position(node, 1, len(found), -1)]
    return [helper.make_node("Identity", [name], node.output, node.name)]


def _count_elements(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
    length = to.maker.add_constant(len(to.find_elements(node)), f"{node.output[0]}.length")
    return [helper.make_node("Identity", [length], node.output, node.name)]


def _concat_elements(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
    parts, axis = to.find_elements(node), _attribute(node, "axis", 0)
    if not parts:
        raise UndecidedError(f"'{node.input[0]}', which is empty")
    if _attribute(node, "new_axis", 0):
        return to.maker.make_stack(parts, axis, node.output[0])
    return [helper.make_node("Concat", parts, node.output, node.name, axis=axis)]


def _split_tensor(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
    """Cuts a tensor into parts: of one length, of given lengths, or of length 1, whose axis may then be dropped."""
    (name, *split), output = node.input, node.output[0]
    axis = _attribute(node, "axis", 0)
    given: Any = to.known.evaluate(split[0]) if split and split[0] else None
    if given is not None and given.ndim:
        lengths = [int(n) for n in given]
    else:
        length, step = to.known.static_length(name, axis), 1 if given is None else int(given)
        if step < 1:
            raise UndecidedError(f"'{split[0]}', which is no length")
        lengths = [min(step, length - at) for at in range(0, length, step)]
    elements = tuple(to.maker.names.unique_tensor(f"{output}.part") for _ in lengths)
    to.elements[output] = elements
    # As in onnxruntime, given lengths of 1 do not change what becomes of the axis.
    if _attribute(node, "keepdims", 1) or set(lengths) != {1}:
        return [to.maker.make_split(name, lengths, axis, elements)] if elements else []
    places = [to.maker.add_constant(k, f"{output}.place") for k in range(len(lengths))]
    pairs = zip(places, elements, strict=True)
    return [helper.make_node("Gather", [name, place], [element], axis=axis) for place, element in pairs]


_RESOLVE: Mapping[str, Callable[[SequenceResolver, NodeProto], list[NodeProto]]] = MappingProxyType(
    {
        "ConcatFromSequence": _concat_elements,
        "Identity": _copy_sequence,
        "SequenceAt": _take_element,
        "SequenceConstruct": _make_sequence,
        "SequenceEmpty": _make_empty,
        "SequenceErase": _erase_element,
        "SequenceInsert": _insert_element,
        "SequenceLength": _count_elements,
        "SplitToSequence": _split_tensor,
    }
)
SEQUENCE_OPERATORS = frozenset(_RESOLVE) - {"Identity"}
"""Operators that read or make sequences, and nothing else."""
