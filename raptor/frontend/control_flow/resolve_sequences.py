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
    """Keeps the elements of the sequences of a graph. elements: sequence -> the tensors in it."""

    known: PartialEvaluator
    maker: NodeMaker
    elements: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def reads_or_makes(self, node: NodeProto) -> bool:
        """Checks whether a node makes a sequence, or reads one whose elements are known."""
        if node.op_type == "Identity":
            return any(name in self.elements for name in node.input)
        return is_sequence_operator(node)

    def resolve(self, node: NodeProto) -> list[NodeProto]:
        """Returns nodes that make the node's tensors from the elements, and records the elements of its sequence.

        Raises `UndecidedError` if constants and shapes do not decide them.
        """
        return _RESOLVE[node.op_type](self, node)

    def of(self, node: NodeProto) -> tuple[str, ...]:
        """Returns the elements of the sequence that a node reads."""
        if node.input[0] not in self.elements:
            raise UndecidedError(f"the sequence '{node.input[0]}'")
        return self.elements[node.input[0]]

    def number(self, name: str) -> int:
        """Returns the value of a tensor of one integer."""
        value = self.known.evaluate(name)
        if value.size != 1:
            raise UndecidedError(f"'{name}', which is not one number")
        return int(value.ravel()[0])

    def position(self, node: NodeProto, operand: int, count: int, default: int) -> int:
        """Returns the position that an operand of a node gives, or the default, as one of `count` from 0 on."""
        name = node.input[operand] if len(node.input) > operand else ""
        given = self.number(name) if name else default
        length = len(self.of(node))
        if not -length <= given < count:
            fault = f"position {given} of a sequence of {length}"
            raise UserError(f"{describe_node(node)} ({node.op_type}): {fault}")
        return given + length if given < 0 else given


def is_sequence_operator(node: NodeProto) -> bool:
    """Checks whether a node is one of the operators of sequences."""
    return node.op_type in SEQUENCE_OPERATORS and node.domain in STANDARD_DOMAINS


def _attribute(node: NodeProto, name: str, default: int) -> int:
    return next((a.i for a in node.attribute if a.name == name), default)


def _empty(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
    to.elements[node.output[0]] = ()
    return []


def _construct(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
    to.elements[node.output[0]] = tuple(node.input)
    return []


def _rename(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
    to.elements[node.output[0]] = to.of(node)
    return []


def _insert(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
    old = to.of(node)
    at = to.position(node, 2, len(old) + 1, len(old))
    to.elements[node.output[0]] = (*old[:at], node.input[1], *old[at:])
    return []


def _erase(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
    old = to.of(node)
    at = to.position(node, 1, len(old), -1)
    to.elements[node.output[0]] = (*old[:at], *old[at + 1 :])
    return []


def _element(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
    found = to.of(node)
    name = found[to.position(node, 1, len(found), -1)]
    return [helper.make_node("Identity", [name], node.output, node.name)]


def _length(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
    length = to.maker.constant(len(to.of(node)), f"{node.output[0]}.length")
    return [helper.make_node("Identity", [length], node.output, node.name)]


def _join(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
    parts, axis = to.of(node), _attribute(node, "axis", 0)
    if not parts:
        raise UndecidedError(f"'{node.input[0]}', which is empty")
    if _attribute(node, "new_axis", 0):
        return to.maker.stack(parts, axis, node.output[0])
    return [helper.make_node("Concat", parts, node.output, node.name, axis=axis)]


def _split(to: SequenceResolver, node: NodeProto) -> list[NodeProto]:
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
        return [to.maker.split(name, lengths, axis, elements)] if elements else []
    places = [to.maker.constant(k, f"{output}.place") for k in range(len(lengths))]
    pairs = zip(places, elements, strict=True)
    return [helper.make_node("Gather", [name, place], [element], axis=axis) for place, element in pairs]


_RESOLVE: Mapping[str, Callable[[SequenceResolver, NodeProto], list[NodeProto]]] = MappingProxyType(
    {
        "ConcatFromSequence": _join,
        "Identity": _rename,
        "SequenceAt": _element,
        "SequenceConstruct": _construct,
        "SequenceEmpty": _empty,
        "SequenceErase": _erase,
        "SequenceInsert": _insert,
        "SequenceLength": _length,
        "SplitToSequence": _split,
    }
)
SEQUENCE_OPERATORS = frozenset(_RESOLVE) - {"Identity"}
"""Operators that read or make sequences, and nothing else."""
