"""Lays out tensors that no layer fixes: model inputs that are only moved, and what functions of elements make of them.

The front end takes axis 1 of every tensor for the channels, as ONNX does for images. For a grey image [1, H, W] or a
vector that is wrong, or leaves one pixel for one core. Before the first layers and behind the last ones, where only
element-wise functions and moves make and read a set of tensors, any layout computes the same. Each such set gets the
layout that streams with the least work: a move copies runs of neighbouring elements, and an element-wise function has
operations for each line.

Vectors between fully connected layers are free, too, if much work makes them. A layer then reads a copy: each of its
cores gathers the elements that its matrices multiply. At last, states that are only taken apart get the layouts of
their next values (`lay_out_states`).
"""

from collections import Counter
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np

from raptor.common.union_find import DisjointSets
from raptor.graph.constant_arrays import drop_repetitions
from raptor.graph.ir import (
    Bound,
    Constant,
    Filter,
    Graph,
    Indices,
    Lookup,
    Map,
    Move,
    Node,
    Operator,
    Rename,
    unused_name,
)
from raptor.graph.layers import is_dense
from raptor.graph.rearrangement import count_move_work, make_move
from raptor.graph.streaming_layout import MOST_LINES, can_stream, drop_unused_moves
from raptor.target.tensor_layout import Image
from raptor.transforms.lay_out_states import lay_out_states
from raptor.transforms.tokens.token_layouts import moved_from

_Moved = tuple[Hashable, tuple[Image, ...], Image]
"""A node that moves elements, with the images of its operands and of its result."""

_OfElements = Map | Bound | Lookup

FEWEST_ELEMENTS = 1024
"""Fewest elements of a tensor that is laid out anew: less work is not worth several cores."""

PIXEL = 16
"""Largest number of elements of a pixel of a vector that is cut into pixels.

A core takes several neighbouring pixels, and its operations all of them at once. So small pixels cost nothing, and more
cores share the copies where each element is a copy of its own.
"""

FEWEST_COPIES = 64
"""Least work that makes `ELEMENTS_PER_TILE` elements of a vector beside a fully connected layer, to lay it out anew.

In copies of runs. Otherwise, a core works on a tile: 64 copies take 4 us on `bench`. An index of 1200 elements, read
four times, then sines: 21.6 us instead of 46.4 on 64 cores.
"""

ELEMENTS_PER_TILE = 128
"""Number of elements of a vector on which a core works if it is not laid out anew, if crossbars have 128 rows."""

ELEMENTS_PER_FUNCTION = 64
"""Number of elements for which an element-wise function on `bench` takes about the time of the copy of a short run."""

GATHERING = 1.2
"""Factor on the work of a move that makes one line of many computed lines, which end the work line by line.

The class of each pixel of 32 x 32, on 200 cores of `bench`: 250 us with 1, 159 with 1.2 to 4. With 1.5, the head of a
detector takes 31 us on 64 cores instead of 27.
"""

ROUNDS = 3
"""Number of times that each set is laid out: the best layout depends on those of sets that moves connect it with."""


def lay_out_free_tensors(graph: Graph) -> Graph:
    """Returns the graph with its free tensors laid out. A graph without such tensors is returned as it is."""
    images = _FreeLayouts(_with_copies(graph)).images()
    return lay_out_states(_laid_out(graph, images) if images else graph)


def _laid_out(graph: Graph, images: Mapping[str, Image]) -> Graph:
    """Returns the graph with new images of some tensors, by name."""
    graph = _with_copies(graph, images)
    tensors = {n: replace(t, image=images.get(n, t.image)) for n, t in graph.tensors.items()}
    changed = replace(graph, tensors=tensors)
    nodes = tuple(_changed(node, graph, changed) for node in graph.nodes)
    return drop_unused_moves(replace(changed, nodes=nodes))


def _with_copies(graph: Graph, names: Container[str] | None = None) -> Graph:
    """Returns the graph with copies of the vectors that fully connected layers read, and of their results.

    A layer reads a copy of its own; element-wise functions read a copy of a layer's result. They also read copies of
    operands of one pixel, one for each pixel of their results, so that all their operands have equal images. names: the
    vectors to copy for layers, and the copies of results and of pixels to make; None for all.
    """
    nodes, tensors, copied = list[Node](), dict(graph.tensors), dict[str, str]()

    def copy(node: Node, name: str, result: str, pixels: int = 1) -> str:
        shape = tensors[node.output if pixels > 1 else name]
        tensors[result] = replace(tensors[name], name=result, image=shape.image, shape=shape.shape, in_model=False)
        same = np.tile(np.arange(tensors[name].image.elements), (pixels, 1))
        nodes.append(Node(node.name, node.op_type, Move(same), (name,), result))
        return result

    def new_name(stem: str) -> str:
        """Returns a name that no tensor of the graph has; the same one whichever `names` there are."""
        return unused_name(stem, graph.tensors)

    def repeated(node: Node, name: str) -> str:
        """Returns an operand of an element-wise function, or the copy of a pixel for each pixel of the result."""
        pixels, result = tensors[node.output].image.pixels, new_name(f"{node.output}.{name}.repeated")
        alone = name in tensors and tensors[name].image.pixels == 1 < pixels
        return copy(node, name, result, pixels) if alone and (names is None or result in names) else name

    for node in graph.nodes:
        if isinstance(node.operator, _OfElements):
            node = replace(node, inputs=tuple(repeated(node, name) for name in node.inputs))
        if isinstance(node.operator, _OfElements) and not copied.keys().isdisjoint(node.inputs):
            node = replace(node, inputs=tuple(copied.get(name, name) for name in node.inputs))
        if not isinstance(node.operator, Filter) or not is_dense(node.operator) or node.operator.key:
            nodes.append(node)
            continue
        (name,), lines = node.inputs, new_name(f"{node.output}.lines")
        if graph.tensors[name].image.pixels == 1 and (names is None or name in names):
            node = replace(node, inputs=(copy(node, name, new_name(f"{node.output}.operand")),))
        nodes.append(node)
        if names is None or lines in names:
            copied[node.output] = copy(node, node.output, lines)
    return drop_unused_moves(replace(graph, nodes=tuple(nodes), tensors=tensors))


@dataclass(slots=True)
class _FreeLayouts:
    """Finds sets of tensors that may have any layout, and chooses one for each.

    alike: sets of tensors that must have equal images. members: the tensors of each free set. moves: the nodes that
    move elements from or to a free set, by set. functions: number of element-wise functions of each set. chosen: new
    image of each set. known: work of moves between images. content_of: memo of `contents`, by result. beside: sets
    that moves connect with fully connected layers. moved: model inputs, and what moves alone make of them.
    """

    graph: Graph
    alike: DisjointSets = field(default_factory=DisjointSets)
    members: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    moves: dict[str, list[Node]] = field(default_factory=dict[str, list[Node]])
    functions: Counter[str] = field(default_factory=Counter[str])
    chosen: dict[str, Image] = field(default_factory=dict[str, Image])
    known: dict[_Moved, float] = field(default_factory=dict[_Moved, float])
    content_of: dict[str, Hashable] = field(default_factory=dict[str, Hashable])
    beside: set[str] = field(default_factory=set[str])
    moved: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        kept = {self.alike.find(name) for name in self.joined()}
        self.beside.update(self.find_beside())
        groups: dict[str, list[str]] = {}
        for name in self.graph.tensors:
            groups.setdefault(self.alike.find(name), []).append(name)
        for node in self.graph.nodes:
            keys = {self.alike.find(name) for name in (*node.inputs, node.output)} - kept
            if isinstance(node.operator, Move | Rename) and not self.only_renames(node):
                for key in sorted(keys):
                    self.moves.setdefault(key, []).append(node)
            elif isinstance(node.operator, _OfElements):
                self.functions.update(keys)
        chosen = {key for key in groups.keys() - kept if self.is_worth_it(key, groups[key])}
        moved = self.moved = self.find_moved_inputs()
        for node in reversed(self.graph.nodes):  # also small tensors of which large ones are made
            if (
                isinstance(node.operator, Move)
                and self.alike.find(node.output) in chosen
                and moved.issuperset(node.inputs)
            ):
                chosen.update(key for name in node.inputs if (key := self.alike.find(name)) not in kept | self.beside)
        self.members.update((key, groups[key]) for key in groups if key in chosen)

    def is_worth_it(self, key: str, names: Sequence[str]) -> bool:
        """Checks whether a set has enough elements, or beside a fully connected layer enough work, to be laid out."""
        elements = self.image(names[0]).elements
        if key not in self.beside:
            return elements >= FEWEST_ELEMENTS
        moves = (node.operator for node in self.moves.get(key, ()) if self.alike.find(node.output) == key)
        copies = sum(_count_runs(move.sources) for move in moves if isinstance(move, Move))
        copies += self.functions[key] * elements / ELEMENTS_PER_FUNCTION
        return copies >= FEWEST_COPIES * -(-elements // ELEMENTS_PER_TILE)

    def joined(self) -> set[str]:
        """Joins tensors that must have equal images. Returns the tensors that are not free."""
        fixed, early, late = set[str](), {*self.graph.inputs}, {*self.graph.tensors}
        for node in self.graph.nodes:
            if self.is_elementwise(node) or self.only_renames(node):
                for name in node.inputs:
                    self.alike.union(node.output, name)
            elif not isinstance(node.operator, Move | Rename):
                fixed.update((*node.inputs, node.output))
                if self.is_vector_layer(node):
                    early.add(node.output)
                continue
            if early.issuperset(node.inputs):
                early.add(node.output)
        for node in reversed(self.graph.nodes):
            if node.output not in late or not isinstance(node.operator, _OfElements | Move | Rename):
                late.difference_update(node.inputs)
        return fixed | (self.graph.tensors.keys() - early - late)

    def find_moved_inputs(self) -> set[str]:
        """Returns the model inputs, and what moves alone make of them."""
        found = {*self.graph.inputs}
        for node in self.graph.nodes:
            if isinstance(node.operator, Move | Rename) and found.issuperset(node.inputs):
                found.add(node.output)
        return found

    def find_beside(self) -> set[str]:
        """Returns the sets that moves connect with fully connected layers."""
        layers = [node for node in self.graph.nodes if self.is_vector_layer(node)]
        ends, found = {name for node in layers for name in (*node.inputs, node.output)}, set[str]()
        for node in self.graph.nodes:
            if isinstance(node.operator, Move) and not ends.isdisjoint((*node.inputs, node.output)):
                found.update(self.alike.find(name) for name in (*node.inputs, node.output))
        return found

    def is_vector_layer(self, node: Node) -> bool:
        """Checks whether a node is a fully connected layer, and no step of a recurrent layer."""
        return isinstance(node.operator, Filter) and not node.operator.key and is_dense(node.operator)

    def is_elementwise(self, node: Node) -> bool:
        """Checks whether a node computes each element of its result from the same element of equal images."""
        images = {self.image(name) for name in (*node.inputs, node.output)}
        return isinstance(node.operator, _OfElements) and len(images) == 1

    def only_renames(self, node: Node) -> bool:
        """Checks whether a node gives another name to the elements of a tensor, in the same order."""
        return isinstance(node.operator, Rename) and self.image(node.inputs[0]).has_layout_of(self.image(node.output))

    def image(self, name: str) -> Image:
        """Returns the image of a tensor as chosen so far."""
        return self.chosen.get(self.alike.find(name), self.graph.tensors[name].image)

    def images(self) -> dict[str, Image]:
        """Returns the new image of each tensor that gets one."""
        for _ in range(ROUNDS):
            before = dict(self.chosen)
            for key in self.members:
                self.choose(key)
            if self.chosen == before:
                break
        return {name: image for key, image in self.chosen.items() for name in self.members[key]}

    def choose(self, key: str) -> None:
        """Chooses the image of a set with the least work, given those of all other sets; on ties, the first one."""
        now = self.image(key)
        candidates = [c for c in dict.fromkeys(self.candidates(key, now)) if can_stream(c)]
        best = min(candidates, key=lambda image: self.set_work(key, image), default=now)
        if best != now and (not can_stream(now) or self.set_work(key, best) < self.set_work(key, now)):
            self.chosen[key] = best

    def candidates(self, key: str, now: Image) -> Iterator[Image]:
        """Yields images for the tensors of a set.

        A signal as a line; as they are; the last axis as channels; as tensors at the other end of moves; in pixels.
        """
        if now.channel_axis <= 1 and len(now.shape) == now.channel_axis + 2:
            yield Image((*now.shape[:-1], 1, now.shape[-1]), now.channel_axis)
        yield now
        *_, width, last = (1, 1, *self.graph.tensors[self.members[key][0]].shape)
        yield Image((1, now.elements // last, last), 2)
        yield Image((now.elements // (width * last), width, last), 2)
        for node in self.moves.get(key, ()):
            for name in (*node.inputs, node.output):
                other = self.image(name)
                if self.alike.find(name) != key and other.elements == now.elements:
                    yield from (other, Image((other.rows, other.width, other.channels), 2))
        pixel = next(n for n in range(PIXEL, 0, -1) if now.elements % n == 0)
        yield Image((1, now.elements // pixel, pixel), 2)

    def set_work(self, key: str, image: Image) -> float:
        """Returns the work with an image for a set, in copies of runs (`count_move_work`) and operations on lines."""
        now = self.chosen.get(key)
        self.chosen[key] = image
        found = sum(self.move_work(node) for node in self.moves.get(key, ()))
        if now is None:
            del self.chosen[key]
        else:
            self.chosen[key] = now
        return found + image.rows * self.functions[key]

    def move_work(self, node: Node) -> float:
        """Returns the work of a move between images as chosen so far; 0 if no element changes its place."""
        given, made = tuple(self.image(name) for name in node.inputs), self.image(node.output)
        key = self.contents(node), given, made
        if key not in self.known:
            operator = _moved(node, self.graph, given, made)
            work = count_move_work(operator, given, made) if isinstance(operator, Move) else 0.0
            computed = not self.moved.issuperset(node.inputs)
            gathers = computed and made.rows == 1 and max(image.rows for image in given) > MOST_LINES
            self.known[key] = work * (GATHERING if gathers else 1)
        return self.known[key]

    def contents(self, node: Node) -> Hashable:
        """Returns all that the work of a move depends on, except for the new images: equal layers share it."""
        if node.output not in self.content_of:
            sources = node.operator.sources.tobytes() if isinstance(node.operator, Move) else b""
            images = tuple(self.graph.tensors[name].image for name in (*node.inputs, node.output))
            computed = not self.moved.issuperset(node.inputs)
            self.content_of[node.output] = type(node.operator), sha256(sources).digest(), images, computed
        return self.content_of[node.output]


def _moved(node: Node, before: Graph, given: Sequence[Image], made: Image) -> Operator:
    """Returns the operator that moves the same elements between other images."""
    old = [before.tensors[name].image for name in node.inputs]
    result = before.tensors[node.output].image
    operator = node.operator
    if not isinstance(operator, Move):
        operator = Move(np.arange(result.elements).reshape(result.pixels, result.channels))
    found = make_move(given, moved_from(operator, old, result), made)
    stays = np.array_equal(found.sources.reshape(-1), np.arange(made.elements))
    same = stays and len(given) == 1 and given[0].has_pixels_of(made)
    return Rename() if same else found


def _count_runs(sources: Indices) -> int:
    """Returns the number of runs of neighbouring elements that a move copies."""
    return int(np.count_nonzero(np.diff(sources.reshape(-1)) != 1)) + 1


def _changed(node: Node, before: Graph, after: Graph) -> Node:
    """Returns a node for the new images."""
    names = (*node.inputs, node.output)
    if all(before.tensors[name].image == after.tensors[name].image for name in names):
        return node
    old, new = before.tensors[node.output].image, after.tensors[node.output].image
    match node.operator:
        case Map() as operator:
            operands = tuple(o if isinstance(o, int) else _constant(o, old, new) for o in operator.operands)
            return replace(node, operator=replace(operator, operands=operands))
        case Move() | Rename():
            given = [after.tensors[name].image for name in node.inputs]
            return replace(node, operator=_moved(node, before, given, new))
        case _:
            return node


def _constant(constant: Constant, old: Image, new: Image) -> Constant:
    """Returns a constant operand for another image of the result."""
    if constant.pixels.size == 1:
        return constant
    full = np.broadcast_to(constant.pixels, (old.rows, old.width, old.channels))
    return Constant(drop_repetitions(new.to_pixels(old.from_pixels(full).reshape(new.shape))))
