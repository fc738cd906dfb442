"""Eliminates control flow that constants determine: the chip has neither branches nor loops.

An If becomes one of its branches. A Loop or Scan is unrolled into one copy of its body per iteration ("turn"). A
sequence of tensors becomes the tensors in it.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from onnx import GraphProto, ModelProto, NodeProto, helper

from raptor.common.errors import UserError
from raptor.frontend.control_flow.inline_subgraphs import UniqueNames, hoist_constants, inline_body
from raptor.frontend.control_flow.node_maker import NodeMaker
from raptor.frontend.control_flow.partial_evaluation import PartialEvaluator, UndecidedError
from raptor.frontend.control_flow.resolve_sequences import SequenceResolver, is_sequence_operator
from raptor.frontend.operator_sets import STANDARD_DOMAINS
from raptor.frontend.proto.model_checks import describe_node
from raptor.frontend.proto.read_model import find_reads

MOST_ITERATIONS = 1024
"""Maximum number of iterations of one loop."""
MOST_NODES = 20_000
"""Maximum number of nodes made from all branches and loops of a model."""
_OPERATORS = frozenset(("If", "Loop", "Scan"))


def eliminate_control_flow(proto: ModelProto) -> Mapping[str, str]:
    """Replaces every If, Loop, Scan and operator of sequences that constants and shapes determine, in place.

    Returns first output -> reason for each node that is left. Raises `UserError` if unrolling exceeds `MOST_NODES`.
    """
    if not any(is_control_flow(node) or is_sequence_operator(node) for node in proto.graph.node):
        return {}
    return _Resolver(proto).run()


def is_control_flow(node: NodeProto) -> bool:
    """Checks whether a node is an If, Loop or Scan."""
    return node.op_type in _OPERATORS and node.domain in STANDARD_DOMAINS


class _Resolver:
    """State of the elimination.

    reasons: first output -> why the node is left. read: tensors that something reads. own: constants of the outer
    graph.
    """

    def __init__(self, proto: ModelProto) -> None:
        self.proto, self.names = proto, UniqueNames(proto.graph)
        self.version = next((o.version for o in proto.opset_import if o.domain in STANDARD_DOMAINS), 1)
        self.own = {t.name for t in proto.graph.initializer}
        proto.graph.initializer.extend(hoist_constants(proto.graph, self.names))
        self.read = {v.name for v in proto.graph.output} | {r for n in proto.graph.node for r in find_reads(n)}
        self.known = PartialEvaluator(proto)
        self.maker = NodeMaker(self.names, self.version, self.known.constants)
        self.sequences = SequenceResolver(self.known, self.maker)
        self.reasons: dict[str, str] = {}
        self.made = 0

    def run(self) -> Mapping[str, str]:
        for node in list(self.proto.graph.node):
            self.add(node)
        del self.proto.graph.node[:]
        self.proto.graph.node.extend(self._used())
        self._keep_constants()
        return self.reasons

    def _used(self) -> list[NodeProto]:
        """Returns the nodes except those that only computed a condition or a resolved sequence.

        The chip may lack an operator for them.
        """
        needed = {v.name for v in self.proto.graph.output}
        used: list[NodeProto] = []
        known = self.known.evaluated | self.sequences.elements.keys()
        for node in reversed(self.known.nodes):
            if needed.isdisjoint(node.output) and known.issuperset(filter(None, node.output)):
                continue
            needed.update(find_reads(node))
            used.append(node)
        return used[::-1]

    def _keep_constants(self) -> None:
        """Drops constants that only a removed branch used; the outer graph's own constants are kept."""
        used = self.own | {name for node in self.proto.graph.node for name in find_reads(node)}
        del self.proto.graph.initializer[:]
        self.proto.graph.initializer.extend(t for n, t in self.known.constants.items() if n in used)

    def add(self, node: NodeProto) -> None:
        """Adds a node, or the nodes that replace it."""
        count = len(self.known.nodes)
        try:
            if is_control_flow(node):
                _RESOLVE[node.op_type](self, node)
                return
            if self.sequences.reads_or_makes(node):
                for made in self.sequences.resolve_node(node):
                    self.known.add(made)
                if node.output[0] not in self.sequences.elements:
                    return
        except UndecidedError as undecided:
            self.known.drop_nodes_from(count)
            self.reasons[node.output[0]] = f"only supported where constants decide it, and not {undecided}"
        # A sequence is still made for an output of the model, or for a node that is not resolved.
        self.known.add(node)

    def add_body(
        self, node: NodeProto, body: GraphProto, inputs: Mapping[str, str], wanted: Sequence[str] = ()
    ) -> list[str]:
        """Adds a copy of the nodes of a body; returns the names of its outputs."""
        self.made += 1 + len(body.node)
        if self.made > MOST_NODES:
            raise UserError(
                f"{describe_node(node)} ({node.op_type}): unrolled, the loops have more than {MOST_NODES} nodes"
            )
        nodes, outputs = inline_body(body, inputs, self.names, wanted)
        self.read.update(outputs, (name for inner in nodes for name in find_reads(inner)))
        for inner in nodes:
            self.add(inner)
        return outputs

    def add_node(self, op_type: str, inputs: Sequence[str], output: str, axis: int | None = None) -> str:
        node = helper.make_node(op_type, inputs, [output])
        if axis is not None:
            node.attribute.append(helper.make_attribute("axis", axis))
        self.add(node)
        return output

    def stack(self, turns: Sequence[str], axis: int, output: str) -> None:
        """Concatenates the results of all iterations along a new axis."""
        if not turns:
            raise UndecidedError(f"'{output}', which is empty, as the loop has no turn")
        for node in self.maker.make_stack(turns, axis, output):
            self.known.add(node)


def _resolve_if(to: _Resolver, node: NodeProto) -> None:
    branches = {a.name: a.g for a in node.attribute}
    is_true = _truth(to, node.input[0])
    branch = branches.get("then_branch" if is_true else "else_branch", GraphProto())
    _check_body(branch, 0, len(node.output))
    to.add_body(node, branch, {}, node.output)


def _resolve_loop(to: _Resolver, node: NodeProto) -> None:
    """Unrolls a Loop. Its inputs: trip count, initial condition, carried values; the first two may be absent."""
    body = next((a.g for a in node.attribute if a.name == "body"), GraphProto())
    most, start, *carried = [*node.input, "", ""][: max(2, len(node.input))]
    _check_body(body, 2 + len(carried), 1 + len(node.output))
    limit = int(to.known.evaluate(most).ravel()[0]) if most else None
    goes_on = _truth(to, start) if start else True
    stacked: list[list[str]] = [[] for _ in node.output[len(carried) :]]
    turn = 0
    while goes_on and (limit is None or turn < limit):
        _check_turn(turn)
        given = [
            to.maker.add_constant(turn, f"{node.output[0]}.turn_number"),
            to.maker.add_constant(True, f"{node.output[0]}.goes_on"),
        ]
        outputs = to.add_body(node, body, _bound(body, [*given, *carried]))
        goes_on = _truth(to, outputs[0]) if start or not most else True
        carried = outputs[1 : 1 + len(carried)]
        _append(stacked, outputs[1 + len(carried) :])
        turn += 1
    _finish(to, node, carried, [(parts, 0) for parts in stacked])


def _resolve_scan(to: _Resolver, node: NodeProto) -> None:
    """Unrolls a Scan. Its inputs: carried values, then tensors that are sliced, one slice per iteration."""
    attributes = {a.name: a for a in node.attribute}
    body = attributes["body"].g if "body" in attributes else GraphProto()
    count = attributes["num_scan_inputs"].i if "num_scan_inputs" in attributes else 0
    if to.version < 9 or not 0 < count <= len(node.input):
        raise UndecidedError("a Scan without slices, or of operator version 8")
    carried, scanned = list(node.input[: len(node.input) - count]), list(node.input[len(node.input) - count :])
    _check_body(body, len(node.input), len(node.output))
    axes = _each(node, "scan_input_axes", count)
    backwards = _each(node, "scan_input_directions", count)
    stacked: list[list[str]] = [[] for _ in node.output[len(carried) :]]
    turns = to.known.static_length(scanned[0], axes[0])
    for turn in range(turns):
        _check_turn(turn)
        slices = [
            _slice(to, name, turns - 1 - turn if back else turn, axis, node.output[0])
            for name, axis, back in zip(scanned, axes, backwards, strict=True)
        ]
        outputs = to.add_body(node, body, _bound(body, [*carried, *slices]))
        carried = outputs[: len(carried)]
        _append(stacked, outputs[len(carried) :])
    out_axes = _each(node, "scan_output_axes", len(stacked))
    reversed_ = _each(node, "scan_output_directions", len(stacked))
    parts = [(p[::-1] if back else p, axis) for p, axis, back in zip(stacked, out_axes, reversed_, strict=True)]
    _finish(to, node, carried, parts)


_RESOLVE: Mapping[str, Callable[[_Resolver, NodeProto], None]] = MappingProxyType(
    {"If": _resolve_if, "Loop": _resolve_loop, "Scan": _resolve_scan}
)


def _truth(to: _Resolver, name: str) -> bool:
    value = to.known.evaluate(name)
    if value.size != 1:
        raise UndecidedError(f"'{name}', which is not one truth value")
    return bool(value.ravel()[0])


def _check_body(body: GraphProto, inputs: int, outputs: int) -> None:
    if len(body.input) != inputs or len(body.output) != outputs or body.sparse_initializer:
        raise UndecidedError("a body whose inputs and outputs are not those of the node")


def _check_turn(turn: int) -> None:
    if turn >= MOST_ITERATIONS:
        raise UndecidedError(f"more than {MOST_ITERATIONS} turns")


def _bound(body: GraphProto, given: Sequence[str]) -> dict[str, str]:
    return {v.name: name for v, name in zip(body.input, given, strict=True)}


def _append(stacked: Sequence[list[str]], outputs: Sequence[str]) -> None:
    for parts, output in zip(stacked, outputs, strict=True):
        parts.append(output)


def _each(node: NodeProto, attribute: str, count: int) -> list[int]:
    given = [number for a in node.attribute if a.name == attribute for number in a.ints]
    return given if len(given) == count else [0] * count


def _slice(to: _Resolver, name: str, index: int, axis: int, stem: str) -> str:
    at = to.maker.add_constant(index, f"{stem}.turn_number")
    return to.add_node("Gather", [name, at], to.names.unique_tensor(f"{name}.slice"), axis)


def _finish(
    to: _Resolver, node: NodeProto, carried: Sequence[str], stacked: Sequence[tuple[Sequence[str], int]]
) -> None:
    """Names the values after the last iteration, and the stacked results, as the node's outputs."""
    for name, output in zip(carried, node.output, strict=False):
        if output:
            to.add_node("Identity", [name], output)
    for (parts, axis), output in zip(stacked, node.output[len(carried) :], strict=True):
        if output in to.read:
            to.stack(parts, axis, output)
