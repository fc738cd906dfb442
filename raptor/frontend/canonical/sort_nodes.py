"""Normalises ONNX files: the domain alias `ai.onnx`, and nodes out of topological order.

onnxruntime accepts both; onnx's checker, reference implementation and shape inference do not.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto

from raptor.common.errors import UserError
from raptor.frontend.proto.read_model import subgraphs, walk_graphs

_ALIAS = "ai.onnx"
"""Alias of the standard's domain, which is empty."""
_SHOWN = 8


def normalise_model(proto: ModelProto) -> bool:
    """Gives standard operators the empty domain, and sorts nodes topologically, in place. Returns False if unchanged.

    Raises `UserError` for a tensor that nothing computes, and for a cycle.
    """
    bodies = [*walk_graphs(proto.graph), *(g for f in proto.functions for n in f.node for g in subgraphs(n))]
    nodes = [n for body in (*bodies, *proto.functions) for n in body.node if n.domain == _ALIAS]
    changed = bool(nodes) or any(o.domain == _ALIAS for f in proto.functions for o in f.opset_import)
    for node in nodes:
        node.domain = ""
    if changed:
        for owner in (proto, *proto.functions):
            _rename_imports(owner)
    return _sort(proto.graph, frozenset()) or changed


def _rename_imports(owner: ModelProto | FunctionProto) -> None:
    """Keeps one version of the standard, the last that is imported, as onnxruntime does."""
    imports: dict[str, int] = {}
    for opset in owner.opset_import:
        imports["" if opset.domain == _ALIAS else opset.domain] = opset.version
    del owner.opset_import[:]
    owner.opset_import.extend(OperatorSetIdProto(domain=d, version=v) for d, v in imports.items())


def _sort(graph: GraphProto, outer: Set[str]) -> bool:
    """Sorts the nodes of a graph and its subgraphs, in place. Returns False if all are in order."""
    given = outer | {v.name for v in graph.input} | {t.name for t in graph.initializer}
    given |= {t.values.name for t in graph.sparse_initializer}
    own = {o for node in graph.node for o in node.output if o}
    changed = False
    for node in graph.node:
        for inner in subgraphs(node):
            changed |= _sort(inner, given | own)
    if not _is_sorted(graph.node, given):
        order = _ordered(graph.node, given, own)
        del graph.node[:]
        graph.node.extend(order)
        changed = True
    return changed


def _is_sorted(nodes: Sequence[NodeProto], given: Set[str]) -> bool:
    known = set(given)
    for node in nodes:
        if not known.issuperset(_outside(node)):
            return False
        known.update(node.output)
    return True


def _outside(node: NodeProto) -> Iterator[str]:
    """Yields the tensors that a node reads from its graph, without those computed inside its subgraphs."""
    yield from (name for name in node.input if name)
    for graph in subgraphs(node):
        own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
        own |= {t.values.name for t in graph.sparse_initializer} | {o for n in graph.node for o in n.output}
        yield from (name for inner in graph.node for name in _outside(inner) if name not in own)


def _ordered(nodes: Sequence[NodeProto], given: Set[str], own: Set[str]) -> list[NodeProto]:
    """Returns the nodes in topological order; among ready nodes, the file's order decides."""
    waits: list[set[str]] = []
    readers: defaultdict[str, list[int]] = defaultdict(list)
    for number, node in enumerate(nodes):
        found = set(_outside(node)) - given
        undefined = sorted(found - own)
        if undefined:
            raise UserError(f"not a valid ONNX model: {_shown(node)} reads '{undefined[0]}', which nothing computes")
        waits.append(found)
        for name in found:
            readers[name].append(number)
    ready = [number for number, names in enumerate(waits) if not names]
    order: list[NodeProto] = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        order.append(node)
        for name in filter(None, node.output):
            for reader in readers.pop(name, ()):
                waits[reader].discard(name)
                if not waits[reader]:
                    heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        left = [_shown(node) for node, names in zip(nodes, waits, strict=True) if names]
        more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        raise UserError(f"not a valid ONNX model: nodes wait for each other: {', '.join(left[:_SHOWN])}{more}")
    return order


def _shown(node: NodeProto) -> str:
    return f"{node.name or (node.output or [''])[0]} ({node.op_type})"
