"""Fuses parallel linear layers of one image, whose results are added, into one layer.

Some networks are trained with parallel layers whose results are added: convolutions of several sizes, a scaled copy of
the image, the image itself (RepVGG, MobileOne). Each is linear, so their sum is a layer, too. The weights of a smaller
kernel are added where it lies in the largest one, and a copy of the image is a diagonal in its middle. [Ding et al.,
"RepVGG: Making VGG-style ConvNets Great Again", CVPR 2021, section 3.3]
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Constant, Filter, Graph, Indices, Map, Node, Operator, Rename, Tensor, unused_name
from raptor.graph.layers import is_channel_sum
from raptor.graph.window import Window
from raptor.target.chip_elements import MODELLED_FLOAT
from raptor.transforms.rewrite_choices import JoinedLayer, RewriteChoice

Doubles = npt.NDArray[np.float64]
ONE: Doubles = np.ones(1)
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, eq=False)
class _Term:
    """A term of a sum: `factor` (scalar or per channel) times a layer of `source`; without `layer`, `source` itself."""

    source: str
    layer: Node | None
    factor: Doubles

    @property
    def filter(self) -> Filter | None:
        return self.layer.operator if self.layer and isinstance(self.layer.operator, Filter) else None


@dataclass(slots=True, eq=False)
class _Sum:
    """A tensor as a sum of `terms` and `constants` (scalar or per channel). `inner`: nodes that the sum replaces."""

    node: Node
    terms: list[_Term] = field(default_factory=list[_Term])
    constants: list[Doubles] = field(default_factory=list[Doubles])
    inner: list[Node] = field(default_factory=list[Node])

    @property
    def constant(self) -> Doubles:
        """The sum of the constants: [1, 1, channels or 1]."""
        return sum(self.constants, np.zeros((1, 1, 1)))


@dataclass(frozen=True, slots=True, eq=False)
class _FusedTerms:
    """Terms of a sum that one layer, `operator`, computes; the remaining terms are added to its result."""

    sum: _Sum
    terms: Sequence[_Term]
    operator: Filter

    @property
    def layers(self) -> list[Node]:
        return [term.layer for term in self.terms if term.layer is not None]

    @property
    def rest(self) -> list[_Term]:
        return [term for term in self.sum.terms if term not in self.terms]

    def nodes(self, tensors: dict[str, Tensor]) -> Iterator[Node]:
        """Yields the nodes that replace the sum; adds their results to `tensors`."""
        node, first, names = self.sum.node, self.layers[0], " + ".join(dict.fromkeys(n.name for n in self.layers))
        result = tensors[node.output]
        tensors[first.output] = replace(tensors[first.output], in_model=False)
        yield Node(names, first.op_type, self.operator, (self.terms[0].source,), first.output)
        others: list[tuple[Operator, tuple[str, ...]]] = []
        if self.sum.constants:
            others.append((Map("add", (0, Constant(self.sum.constant.astype(np.float32)))), ()))
        others += [(Map("add", (0, 1)), (term.layer.output if term.layer else term.source,)) for term in self.rest]
        last = first.output
        for i, (operator, more) in enumerate(others or [(Rename(), ())], 1):
            name = node.output if i == max(1, len(others)) else unused_name(f"{node.output}.sum{i}", tensors)
            yield Node(node.name, node.op_type, operator, (last, *more), name)
            tensors.setdefault(name, replace(result, name=name, in_model=False))
            last = name


def find_branches(graph: Graph) -> dict[str, JoinedLayer]:
    """Returns the layers, by key, that an earlier layer can absorb, because their results are added."""
    found: dict[str, JoinedLayer] = {}
    for together in _SumAnalysis(graph).found():
        first, *others = together.layers
        found |= {layer.output: JoinedLayer(first.output) for layer in others}
    return found


def fuse_parallel_branches(graph: Graph, rewrites: RewriteChoice) -> Graph:
    """Returns the graph with one layer for each sum of layers of one image, if the choice joins all of its layers.

    A sum stays as it is if the choice has other records for its layers, or if tensors do not stream. The sum of a layer
    and its own input is such a sum, too, and needs no record.
    """
    if not rewrites.streaming:
        return graph
    layers = rewrites.joined
    found: dict[str, _FusedTerms] = {}
    for together in _SumAnalysis(graph).found():
        first, *others = together.layers
        if all(layers.get(layer.output) == JoinedLayer(first.output) for layer in others):
            found[together.sum.node.output] = together
    if not found:
        return graph
    kept = {term.layer.output for each in found.values() for term in each.rest if term.layer is not None}
    gone = {node.output for each in found.values() for node in each.sum.inner} - kept
    nodes, tensors = list[Node](), dict(graph.tensors)
    for node in graph.nodes:
        if node.output in found:
            nodes += found[node.output].nodes(tensors)
        elif node.output not in gone:
            nodes.append(node)
    names = {*graph.inputs, *(node.output for node in nodes)}
    return replace(graph, nodes=tuple(nodes), tensors={n: t for n, t in tensors.items() if n in names})


@dataclass
class _SumAnalysis:
    """The sums of a graph."""

    graph: Graph

    @cached_property
    def made(self) -> dict[str, Node]:
        return {node.output: node for node in self.graph.nodes}

    @cached_property
    def uses(self) -> Counter[str]:
        return Counter(name for node in self.graph.nodes for name in _operands(node)) + Counter(self.graph.outputs)

    def found(self) -> list[_FusedTerms]:
        """Returns the sums of which one layer can compute several terms, in the order of the graph."""
        found: list[_FusedTerms] = []
        seen: set[str] = set()
        for node in reversed(self.graph.nodes):
            if node.output in seen or not isinstance(node.operator, Map):
                continue
            whole = self.sum_of(node)
            groups = list(self.together(whole))
            # Parts of a sum that has no such terms have none either.
            if not groups or _is_plain(groups[0]):
                seen.update(each.output for each in whole.inner)
                found += groups[:1]
        return found[::-1]

    def sum_of(self, node: Node) -> _Sum:
        """Returns a tensor as a sum of layers and other tensors, expanded through nodes that only the sum reads."""
        found = _Sum(node)
        parts = [(node.output, ONE)]
        while parts:
            name, factor = parts.pop()
            inner = self.made.get(name)
            more = None
            if inner is not None and (inner is node or self.uses[name] == 1):
                more = self.parts(inner, factor, found)
            if more is None:
                found.terms.append(_Term(name, None, factor))
            else:
                parts += reversed(more)
        return found

    def parts(self, node: Node, factor: Doubles, found: _Sum) -> list[tuple[str, Doubles]] | None:
        """Returns the operands of a node with their factors, if it adds them; None if it is no part of a sum.

        Adds to `found` the node, its constants, and the node as a term if it is a layer.
        """
        tensors = self.graph.tensors
        if any(tensors[name].element != MODELLED_FLOAT for name in (*node.inputs, node.output)):
            return None
        parts, constants = list[tuple[str, Doubles]](), list[Doubles]()
        match node.operator:
            case Filter() as operator if _is_simple(operator) and not is_channel_sum(self.graph, node):
                found.terms.append(_Term(node.inputs[0], node, factor))
            case Map("add" | "sub" as function, (a, b)):
                for operand, own in ((a, factor), (b, -factor if function == "sub" else factor)):
                    if isinstance(operand, int):
                        parts.append((node.inputs[operand], own))
                    elif _of_channels(operand):
                        constants.append(operand.pixels[0, 0] * own)
                    else:
                        return None
            case Map("mul", (int(a), Constant() as b)) | Map("mul", (Constant() as b, int(a))) if _of_channels(b):
                parts.append((node.inputs[a], b.pixels[0, 0] * factor))
            case _:
                return None
        if any(tensors[name].image != tensors[node.output].image for name, _ in parts):
            return None
        found.constants += constants
        found.inner.append(node)
        return parts

    def together(self, whole: _Sum) -> Iterator[_FusedTerms]:
        """Yields the groups of terms of a sum that one layer can compute; the terms of a group read one image."""
        by_source: defaultdict[str, list[_Term]] = defaultdict(list)
        for term in whole.terms:
            by_source[term.source].append(term)
        for source, terms in by_source.items():
            layers = [term for term in terms if term.filter is not None]
            if not layers or len(terms) == 1:
                continue
            largest = max(layers, key=lambda term: term.filter.window.tap_count if term.filter else 0)
            assert largest.filter is not None
            same = self.graph.tensors[source].image == self.graph.tensors[whole.node.output].image
            alike = [term for term in terms if (term.filter or same) and _lies_in(term.filter, largest.filter)]
            if len(alike) == 1:
                continue
            weights = _added(alike, largest.filter)
            if all((abs(values) < LARGEST).all() for values in (weights, whole.constant)):
                alike.sort(key=lambda term: 0 if term.layer is None else self.places[term.layer.output])
                yield _FusedTerms(whole, alike, replace(largest.filter, weights=weights.astype(np.float32)))

    @cached_property
    def places(self) -> dict[str, int]:
        return {node.output: i for i, node in enumerate(self.graph.nodes, 1)}


def _operands(node: Node) -> list[str]:
    """Returns the tensors that a node reads, with repetitions."""
    if isinstance(node.operator, Map):
        return [node.inputs[o] for o in node.operator.operands if isinstance(o, int)]
    return [*node.inputs]


def _is_simple(operator: Filter) -> bool:
    """Checks whether a layer has no shared weights, ReLU or transposed window."""
    return not operator.key and not operator.relu and not operator.window.transposed


def _of_channels(constant: Constant) -> bool:
    return constant.pixels.shape[:2] == (1, 1) and bool(np.isfinite(constant.pixels).all())


def _is_plain(together: _FusedTerms) -> bool:
    """Checks whether all remaining terms have the factor 1."""
    return all((term.factor == 1).all() for term in together.rest)


def _lies_in(filter_: Filter | None, largest: Filter) -> bool:
    """Checks whether a layer reads only pixels that the largest layer reads. `filter_`: None for the image itself."""
    window = largest.window
    if filter_ is None:
        stands = window.in_dims == window.out_dims and all(s == 1 for s in window.strides)
        return stands and largest.in_channels == largest.weights.shape[2] and _taps(None, window) is not None
    own = filter_.window
    same = replace(own, kernel=window.kernel, pads=window.pads, dilations=window.dilations) == window
    shapes = (filter_.groups, filter_.weights.shape[1:]) == (largest.groups, largest.weights.shape[1:])
    return same and shapes and _taps(own, window) is not None


def _taps(window: Window | None, largest: Window) -> list[int] | None:
    """Returns the position in the largest kernel of each kernel position of `window`; None if one is outside.

    window: None for the pixel itself.
    """
    axes: list[list[int]] = []
    for d, (kernel, pad, dilation) in enumerate(zip(largest.kernel, largest.pads, largest.dilations, strict=True)):
        known = [tap * dilation - pad for tap in range(kernel)]
        own = [0] if window is None else [t * window.dilations[d] - window.pads[d] for t in range(window.kernel[d])]
        if not set(own) <= set(known):
            return None
        axes.append([known.index(offset) for offset in own])
    return [int(np.ravel_multi_index(place, largest.kernel)) for place in product(*axes)]


def _added(terms: Sequence[_Term], largest: Filter) -> Doubles:
    """Returns the weights of the layer that computes the sum of all terms."""
    weights: Doubles = np.zeros(largest.weights.shape)
    for term in terms:
        taps = _taps(term.filter.window if term.filter else None, largest.window)
        assert taps is not None, "it lies in the largest"
        if term.filter is not None:
            weights[taps] += term.filter.weights * term.factor
        else:
            channels: Indices = np.arange(weights.shape[2], dtype=np.int64)
            weights[taps[0], channels % weights.shape[1], channels] += term.factor
    return weights
