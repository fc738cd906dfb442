"""Lays sequences out for streaming: a token is a pixel with all its channels, and a sequence is a line of tokens.

The front end takes axis 1 of every tensor for the channels, as ONNX does for images. In a sequence [1, N, D] these are
the tokens: then a mean over D is a pool along a line, and elements move before every product. This pass gives such
tensors the layout that the products need, composes consecutive moves, and turns sums over D into a `ChannelSum`. The
results stay the same. A tensor [H, N, d] of the heads of an attention becomes an image of H lines.

A tensor [1, H, W, C] that is a transposed image [1, C, H, W] gets the pixels and the lines of that image: H lines of W
tokens. So transpositions between the two become renames, and the operators between them stream as on the image.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from raptor.common.disjoint import DisjointSets
from raptor.graph.constants import smallest
from raptor.graph.ir import (
    ChannelSum,
    Constant,
    Dot,
    Elementwise,
    Filter,
    Graph,
    Map,
    Move,
    Node,
    Operator,
    Pool,
    Rename,
    Softmax,
    Take,
    Tensor,
)
from raptor.graph.layers import is_pointwise
from raptor.graph.moves import move
from raptor.graph.requantise import Requantise
from raptor.graph.streams import is_tokens, without_unused
from raptor.graph.window import Window, input_pixels
from raptor.target.layout import Image

Ints = npt.NDArray[np.int64]


def lay_out_tokens(graph: Graph) -> Graph:
    """Returns the graph with its sequences laid out as tokens. A graph without sequences is returned as it is."""
    layouts = _Layouts(graph)
    images = layouts.images()
    if not images:
        return graph
    tensors = {n: replace(t, image=images.get(n, t.image)) for n, t in graph.tensors.items()}
    sums = {name for name in images if layouts.alike.find(name) in layouts.sums}
    changed = _Changed(graph, tensors, images, sums, layouts.over)
    nodes = tuple(made for node in graph.nodes for made in changed.nodes(node))
    return without_unused(replace(graph, tensors=tensors, nodes=tuple(_composed(nodes, tensors))))


@dataclass(slots=True)
class _Layouts:
    """Finds the tensors that are sequences, and the images that they get.

    alike: sets of tensors of one layout, because element-wise operators and renames connect them; a set is named by its
    representative. fixed: sets whose present layout an operator needs. odd: sets with an operator that cannot compute
    on lines of tokens. varied: sets with constants of a `Requantise` that differ between pixels or channels, and so fix
    their order. pools: reductions of pixels or channels, whose operand may get another layout. repeated: pairs of a set
    and a set of one pixel, which an element-wise operator broadcasts to the pixels of the first. sums: sets of results
    of pools that become sums over channels. over: results of pools that become pools over all tokens. made: tensor ->
    node that computes it.
    """

    graph: Graph
    alike: DisjointSets = field(default_factory=DisjointSets)
    fixed: set[str] = field(default_factory=set[str])
    odd: set[str] = field(default_factory=set[str])
    varied: set[str] = field(default_factory=set[str])
    pools: list[Node] = field(default_factory=list[Node])
    repeated: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    sums: set[str] = field(default_factory=set[str])
    over: set[str] = field(default_factory=set[str])
    made: dict[str, Node] = field(default_factory=dict[str, Node])

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            if isinstance(node.operator, Elementwise | Rename | Softmax):
                for name in node.inputs:
                    if isinstance(node.operator, Rename) or self.image(name) == self.image(node.output):
                        self.alike.join(node.output, name)
        for node in self.graph.nodes:
            self.made[node.output] = node
            self.bind(node)

    def image(self, name: str) -> Image:
        return self.graph.tensors[name].image

    def bind(self, node: Node) -> None:
        """Records the constraints of a node on the layouts of its operands and its result."""
        sets = {self.alike.find(name) for name in (*node.inputs, node.output)}
        match node.operator:
            case Move() | Rename():
                pass
            case Pool() as pool if self.graph.tensors[node.output].element.kind == "float" and _may_change(pool):
                self.pools.append(node)
            case Filter(window=window) if is_pointwise(window):
                self.fixed |= sets
            case ChannelSum() if self.image(node.output).channels == 1 and self.is_turned(node.inputs[0]):
                self.pools.append(node)
            case Dot() | Softmax() | ChannelSum():
                self.fixed |= sets
            case Take() if is_tokens(self.image(node.output)):
                self.odd |= {self.alike.find(name) for name in node.inputs}
                self.fixed.add(self.alike.find(node.output))
            case _ if isinstance(node.operator, Elementwise):
                if isinstance(node.operator, Requantise) and _differs(node.operator, (0, 1, 2)):
                    self.varied.add(self.alike.find(node.output))
                made = self.alike.find(node.output)
                self.repeated += ((made, other) for other in sorted(sets - {made}))
            case _:
                self.odd |= sets

    def is_turned(self, name: str) -> bool:
        """Checks whether a tensor has several pixels, and its channels are not the last dimension."""
        return self.image(name).pixels > 1 and not _is_last(self.image(name))

    def images(self) -> dict[str, Image]:
        """Returns the new images, by name of the tensor."""
        channels = self.tokens()
        lines = self.lines(channels)
        found: dict[str, Image] = {}
        for name, tensor in self.graph.tensors.items():
            key = self.alike.find(name)
            if key in channels:
                pixels = tensor.image.elements // channels[key]
                found[name] = Image((lines[key], pixels // lines[key], channels[key]), 2)
        return found

    def tokens(self) -> dict[str, int]:
        """Returns the sets that are laid out as tokens, each with its number of channels."""
        known = {key: self.image(key).channels for key in self.fixed - self.odd if _is_last(self.image(key))}
        for name, channels, _ in self.turned():
            key = self.alike.find(name)
            if key not in known and self.takes(key, channels):
                known[key] = channels
        sums = {self.alike.find(node.output) for node in self.pools}
        moves = [node for node in self.graph.nodes if isinstance(node.operator, Move)]
        before = -1
        while before < len(known):
            before = len(known)
            for node in moves:
                names = {name: self.alike.find(name) for name in (*node.inputs, node.output)}
                self.spread(node, {name: key for name, key in names.items() if key not in sums}, known)
        return self.with_sums(known)

    def spread(self, node: Node, names: dict[str, str], known: dict[str, int]) -> None:
        """Adds the sets that a move connects with a `known` set. names: tensor of the move -> its set."""
        if known.keys() >= {*names.values()}:
            return
        for one, key in names.items():
            channels = known.get(key, 0)
            count = self.image(one).elements // channels if channels else 0
            if count > 1 and self.keeps_tokens(node, count):
                found = {other: self.image(name).elements // count for name, other in names.items()}
            elif count > 1 and channels > 1 and self.picks_tokens(node, channels):
                found = dict.fromkeys(names.values(), channels)
            else:
                continue
            known.update({k: n for k, n in found.items() if k not in known and self.takes(k, n)})
            return

    def takes(self, key: str, channels: int) -> bool:
        """Checks whether a set may become tokens of `channels` channels; a `varied` set must have this layout."""
        if key in self.varied and (not _is_last(self.image(key)) or self.image(key).channels != channels):
            return False
        return key not in self.fixed | self.odd

    def turned(self) -> Iterator[tuple[str, int, int]]:
        """Yields (tensor, channels, lines) of tensors that are an image with the channels last, [1, H, W, C].

        Moves make one from the other, and an operator needs the layout of the image [1, C, H, W]. In C order, the
        tensor holds the pixels of the image one after another, or parts of each pixel, such as the anchors of a
        detector: [1, A, H, W, C] of [1, A * C, H, W].
        """
        for node in self.graph.nodes:
            if not isinstance(node.operator, Move):
                continue
            made, after = node.output, self.image(node.output)
            for given, sources in self.origins(made):
                before = self.image(given)
                if self.is_kept(given) and (channels := _piece(before, after, sources)) > 1:
                    yield made, channels, _lines(before, after, sources, channels)
                    break
                if self.is_kept(made) and np.array_equal(_positions(before)[sources], np.arange(before.elements)):
                    yield given, after.channels, after.rows
                    break

    def origins(self, name: str) -> Iterator[tuple[str, Ints]]:
        """Yields (source, its elements that the tensor `name` takes) along a chain of moves, the nearest source first.

        The chain ends at a source with fewer elements than the tensor, at a move of several inputs, or one that adds
        zeros. Elements are numbered pixel by pixel.
        """
        elements = self.image(name).elements
        sources = np.arange(elements)
        while (node := self.made.get(name)) is not None and isinstance(node.operator, Move | Rename):
            if isinstance(node.operator, Move):
                sources = node.operator.sources.reshape(-1)[sources]
            name = node.inputs[0]
            if len(node.inputs) > 1 or self.image(name).elements < elements or sources.min() < 0:
                return
            yield name, sources

    def is_kept(self, name: str) -> bool:
        """Checks whether a tensor has several pixels and channels, and is an image that keeps its layout."""
        key, image = self.alike.find(name), self.image(name)
        stays = key in self.odd or (key in self.fixed and not _is_last(image))
        return stays and min(image.pixels, image.channels) > 1

    def is_same_order(self, node: Node) -> bool:
        """Checks whether a move keeps the elements in C order, so that it only changes the layout."""
        assert isinstance(node.operator, Move)
        given, made = self.image(node.inputs[0]), self.image(node.output)
        if given.elements != made.elements:
            return False
        return np.array_equal(_positions(given)[node.operator.sources.reshape(-1)], _positions(made))

    def keeps_tokens(self, node: Node, count: int) -> bool:
        """Checks whether a move takes the elements of each of `count` tokens from the tokens of the same number.

        It may take some of their channels, as a split does, or the channels of several operands, and add zeros.
        """
        assert isinstance(node.operator, Move)
        given, made = [self.image(name) for name in node.inputs], self.image(node.output)
        sources = node.operator.sources.reshape(-1)
        if any(image.elements % count for image in (*given, made)):
            return False
        token = np.concatenate([_positions(image) // (image.elements // count) for image in given])
        taken, wanted = sources >= 0, _positions(made) // (made.elements // count)
        return bool(taken.any()) and np.array_equal(token[sources[taken]], wanted[taken])

    def picks_tokens(self, node: Node, channels: int) -> bool:
        """Checks whether a move only permutes, repeats or drops whole tokens of `channels` channels."""
        assert isinstance(node.operator, Move)
        given, made = [self.image(name) for name in node.inputs], self.image(node.output)
        if any(image.elements % channels for image in (*given, made)):
            return False
        tokens = _moved_from(node.operator, given, made).reshape(-1, channels)
        starts = tokens[:, 0]
        return bool((starts >= 0).all() and not (starts % channels).any() and (np.diff(tokens, axis=1) == 1).all())

    def with_sums(self, known: dict[str, int]) -> dict[str, int]:
        """Adds the sets of sums over the channels of tokens.

        A set whose layout would change is dropped if a pool reads or writes it that is neither such a sum nor over all
        tokens, or if another tensor than such a sum is broadcast to its pixels. Nothing can be broadcast to the pixels
        of sums.
        """
        pools = [(self.alike.find(node.inputs[0]), self.alike.find(node.output), node) for node in self.pools]
        banned = self.fixed | self.odd | known.keys()
        while True:
            changed = known.keys() - self.fixed
            over = {n.output for given, _, n in pools if given in changed and self.is_over_tokens(n, known[given])}
            adds = [given in changed and self.adds_channels(node, known[given]) for given, _, node in pools]
            others = {made for (_, made, _), is_sum in zip(pools, adds, strict=True) if not is_sum}
            sums = {made for (_, made, _), is_sum in zip(pools, adds, strict=True) if is_sum} - banned - others
            read = [*((given, made) for given, made, node in pools if node.output not in over), *self.repeated]
            wrong = {key for pair in read if (pair[0] in changed) != (pair[1] in sums) for key in pair}
            wrong |= changed.intersection([*(made for _, made, _ in pools), *(one for _, one in self.repeated)])
            wrong |= sums.intersection([*(given for given, *_ in pools), *(made for made, _ in self.repeated)])
            if not wrong & (changed | sums):
                self.sums, self.over = sums, over
                return known | dict.fromkeys(sums, 1)
            known = {key: count for key, count in known.items() if key not in wrong or key in self.fixed}
            banned |= wrong & sums

    def adds_channels(self, node: Node, channels: int) -> bool:
        """Checks whether each result of a pool is the sum of `channels` consecutive elements in C order."""
        if not isinstance(node.operator, Pool) or node.operator.function != "sum":
            return False
        elements = self.image(node.inputs[0]).elements
        return self.puts_together(node, np.arange(elements).reshape(-1, channels))

    def is_over_tokens(self, node: Node, channels: int) -> bool:
        """Checks whether a pool reduces all tokens of `channels` elements in C order, each channel separately."""
        elements = self.image(node.inputs[0]).elements
        return self.puts_together(node, np.arange(elements).reshape(-1, channels).T)

    def puts_together(self, node: Node, wanted: Ints) -> bool:
        """Checks whether each result of a pool reduces the elements in its row of `wanted`; both in C order."""
        given, made = self.image(node.inputs[0]), self.image(node.output)
        if wanted.size != given.elements or made.elements != len(wanted):
            return False
        positions = _positions(given).reshape(given.pixels, given.channels)
        if isinstance(node.operator, Pool):
            read = input_pixels(node.operator.window)
            if read.shape[1] != wanted.shape[1] or (read < 0).any():
                return False
            positions = positions[read].swapaxes(1, 2).reshape(wanted.shape)
        return np.array_equal(np.sort(positions, axis=1), wanted[_positions(made)])

    def lines(self, channels: dict[str, int]) -> dict[str, int]:
        """Returns the number of lines of each set: the heads of adjacent products of computed tensors, or image lines.

        It is 1 if there are neither, or if the tokens of a set do not divide into equal lines.
        """
        near = DisjointSets()
        for node in self.graph.nodes:
            if isinstance(node.operator, Filter | Softmax | ChannelSum | Pool) and node.output not in self.over:
                near.join(self.alike.find(node.output), self.alike.find(node.inputs[0]))
        heads: dict[str, set[int]] = {}
        for node in self.graph.nodes:
            if isinstance(node.operator, Dot):
                for name in (*node.inputs, node.output):
                    heads.setdefault(near.find(self.alike.find(name)), set()).add(node.operator.batch)
        chosen = {key: heads[near.find(key)] for key in channels if near.find(key) in heads}
        rows = self.rows(near, channels)
        found: dict[str, int] = {}
        for key, count in channels.items():
            lines = chosen.get(key) or rows.get(near.find(key), {1})
            most = max(lines) if len(lines) == 1 else 1
            found[key] = most if self.image(key).elements % (most * count) == 0 else 1
        return found

    def rows(self, near: DisjointSets, channels: dict[str, int]) -> dict[str, set[int]]:
        """Returns set of `near` -> numbers of rows of the images whose pixels are its tokens.

        near: sets with equal numbers of lines; sets that a move only lays out anew are joined, in place.
        """
        for node in self.graph.nodes:
            if isinstance(node.operator, Move) and len(node.inputs) == 1:
                given, made = (self.alike.find(name) for name in (node.inputs[0], node.output))
                if given in channels and channels[given] == channels.get(made) and self.is_same_order(node):
                    near.join(given, made)
        found: dict[str, set[int]] = {}
        for name, count, rows in self.turned():
            if channels.get(self.alike.find(name)) == count:
                found.setdefault(near.find(self.alike.find(name)), set()).add(rows)
        for node in self.graph.nodes:
            key = near.find(self.alike.find(node.output))
            if key in found and isinstance(node.operator, Requantise) and _differs(node.operator, (0, 1)):
                # Its constants belong to the rows of the image in its present layout.
                found[key].add(self.image(node.output).rows)
        return found


def _differs(operator: Requantise, axes: tuple[int, ...]) -> bool:
    """Checks whether constants differ along axes of the image [rows, width, channels]."""
    arrays = (array for term in operator.terms for array in (term.multiplier, term.offset))
    return any(array.shape[axis] > 1 for array in arrays for axis in axes)


def _is_last(image: Image) -> bool:
    """Checks whether the channels are the last dimension that is larger than 1, and there are several pixels."""
    behind = image.shape[image.channel_axis + 1 :]
    return image.pixels > 1 and all(n == 1 for n in behind)


def _piece(given: Image, made: Image, sources: Ints) -> int:
    """Returns the length of the runs of neighbouring channels that make up a moved image in C order; 0 if it varies.

    sources: for each element of `made`, counted pixel by pixel, the element of `given` that it is.
    """
    element = _in_order(sources, made)
    starts = np.flatnonzero(np.diff(element, prepend=-1) * (element % given.channels != 0) != 1)
    return made.elements // len(starts) if len({*np.diff(starts, append=made.elements).tolist()}) == 1 else 0


def _lines(given: Image, made: Image, sources: Ints, channels: int) -> int:
    """Returns the number of lines of runs (`_piece`) such that each line comes from one line of `given`; else 1."""
    row = _in_order(sources, made)[::channels] // (given.channels * given.width)
    if len(row) % given.width:
        return 1
    lines = row.reshape(-1, given.width)
    return len(lines) if (lines == lines[:, :1]).all() else 1


def _in_order(values: Ints, image: Image) -> Ints:
    """Reorders values of the elements of an image from pixel by pixel to C order."""
    return image.from_pixels(values.reshape(image.rows, image.width, image.channels)).reshape(-1)


def _may_change(pool: Pool) -> bool:
    """Checks whether a pool can get another layout: a sum, or a maximum over whole dimensions."""
    window = pool.window
    whole = all(size in (1, pixels) for size, pixels in zip(window.kernel, window.in_dims, strict=True))
    return pool.function == "sum" or (whole and not any(window.pads))


def _over_all(image: Image) -> Window:
    """Returns the window of a pool over all pixels."""
    lines, point = (image.rows, image.width), (1, 1)
    return Window(lines, point, lines, point, (0, 0), point)


def _positions(image: Image) -> Ints:
    """Returns for each element, counted pixel by pixel, its position in C order."""
    return image.to_pixels(np.arange(image.elements).reshape(image.shape)).reshape(-1)


def _moved_from(operator: Move, given: list[Image], made: Image) -> Ints:
    """Returns result element of a move -> element of its operands, both in C order; -1 for a zero."""
    firsts = np.cumsum([0, *(image.elements for image in given)])
    place = np.concatenate([*(_positions(i) + f for i, f in zip(given, firsts, strict=False)), [-1]])
    found = np.empty(operator.sources.size, np.int64)
    found[_positions(made)] = place[operator.sources.reshape(-1)]
    return found


@dataclass(frozen=True, slots=True)
class _Changed:
    """Builds the nodes for the new layouts.

    `graph`: before the change. `tensors`: with the new images. `images`: the changed images. `sums`: tensors that
    become sums over channels. `over`: results of pools that become pools over all tokens.
    """

    graph: Graph
    tensors: dict[str, Tensor]
    images: dict[str, Image]
    sums: set[str]
    over: set[str]

    def nodes(self, node: Node) -> Iterator[Node]:
        """Yields the node for the new images of its operands and its result; before it, moves that repeat sums."""
        if not any(name in self.images for name in (*node.inputs, node.output)):
            yield replace(node, operator=self.operator(node)) if isinstance(node.operator, Filter) else node
            return
        if node.output in self.over:
            yield from self.over_tokens(node)
            return
        if isinstance(node.operator, Elementwise):
            image, names = self.tensors[node.output].image, list(node.inputs)
            for i, name in enumerate(names):
                if name in self.sums and self.tensors[name].image != image:
                    names[i] = f"{node.output}.repeated{i}"
                    self.tensors[names[i]] = replace(self.tensors[node.output], name=names[i], in_model=False)
                    sources = np.repeat(np.arange(image.pixels)[:, None], image.channels, axis=1)
                    yield Node(node.name, node.op_type, Move(sources), (name,), names[i])
            node = replace(node, inputs=tuple(names))
        yield replace(node, operator=self.operator(node))

    def over_tokens(self, node: Node) -> Iterator[Node]:
        """Yields a pool over all tokens, and the operators that turn its channels into the pixels of the old result."""
        image, operator = self.tensors[node.inputs[0]].image, node.operator
        function = operator.function if isinstance(operator, Pool) else "sum"
        steps: list[Operator] = [Pool(function, _over_all(image))]
        if isinstance(operator, ChannelSum) and operator.factor != 1:
            steps.append(Map("mul", (0, Constant(np.full((1, 1, 1), operator.factor, np.float32)))))
        name = node.inputs[0]
        for i, step in enumerate(steps):
            result = f"{node.output}.over{i}"
            small = Image((1, 1, image.channels), 2)
            self.tensors[result] = replace(self.tensors[node.output], name=result, image=small, in_model=False)
            yield Node(node.name, node.op_type, step, (name,), result)
            name = result
        back = self.tensors[node.output].image
        sources = _positions(back).reshape(back.pixels, back.channels)
        yield Node(node.name, node.op_type, Move(sources), (name,), node.output)

    def operator(self, node: Node) -> Operator:
        """Returns the operator for the new layouts."""
        match node.operator:
            case Move() as operator:
                return self.moved(node, operator)
            case Map() as operator:
                operands = tuple(self.constant(node, o) if isinstance(o, Constant) else o for o in operator.operands)
                return replace(operator, operands=operands)
            case Requantise() as operator if len(set(operator.row_class)) == 1:
                return replace(operator, row_class=np.zeros(self.tensors[node.output].image.rows, np.int64))
            case Pool() if node.output in self.sums:
                return ChannelSum(1.0)
            case Pool(window=window) as pool if window.is_over_all and is_tokens(
                image := self.tensors[node.inputs[0]].image
            ):
                return replace(pool, window=_over_all(image))
            case Filter() as operator if is_pointwise(operator.window) and is_tokens(
                image := self.tensors[node.output].image
            ):
                # A window over one dimension becomes one over lines, also where the layout was right before.
                return replace(operator, window=Window.point((image.rows, image.width)))
            case _:
                return node.operator

    def moved(self, node: Node, operator: Move) -> Move:
        """Returns the same move between the new layouts."""
        given = [self.graph.tensors[n].image for n in node.inputs]
        wanted = _moved_from(operator, given, self.graph.tensors[node.output].image)
        return move([self.tensors[n].image for n in node.inputs], wanted, self.tensors[node.output].image)

    def constant(self, node: Node, constant: Constant) -> Constant:
        """Returns a constant operand for the new layout of the result."""
        if constant.pixels.size == 1:
            return constant
        old, new = (tensors[node.output].image for tensors in (self.graph.tensors, self.tensors))
        full = np.broadcast_to(constant.pixels, (old.rows, old.width, old.channels))
        return Constant(smallest(new.to_pixels(old.from_pixels(full).reshape(new.shape))))


def _composed(nodes: tuple[Node, ...], tensors: dict[str, Tensor]) -> Iterator[Node]:
    """Yields the nodes with consecutive moves composed: the last one reads the inputs of the first.

    A move that leaves all elements in place becomes a rename. A rename of moved elements that a dot product reads
    becomes a move, which can be a view.
    """
    multiplied = {name for node in nodes if isinstance(node.operator, Dot) for name in node.inputs}
    known: dict[str, tuple[tuple[str, ...], Ints]] = {}
    for node in nodes:
        if not isinstance(node.operator, Move | Rename):
            yield node
            continue
        made = tensors[node.output].image
        sources = node.operator.sources if isinstance(node.operator, Move) else np.arange(made.elements)
        inputs, sources = _through(node.inputs, sources.reshape(-1), tensors, known)
        known[node.output] = inputs, sources
        given = tensors[inputs[0]].image
        if len(inputs) == 1 and given.has_pixels_of(made) and np.array_equal(sources, np.arange(made.elements)):
            yield replace(node, operator=Rename(), inputs=inputs)
        elif isinstance(node.operator, Rename) and (inputs == node.inputs or node.output not in multiplied):
            yield node
        else:
            yield replace(node, operator=Move(sources.reshape(made.pixels, made.channels)), inputs=inputs)


def _through(
    names: tuple[str, ...], sources: Ints, tensors: dict[str, Tensor], known: dict[str, tuple[tuple[str, ...], Ints]]
) -> tuple[tuple[str, ...], Ints]:
    """Returns the tensors from which a move takes its elements, through earlier moves, and these elements."""
    inputs: list[str] = []
    places: list[Ints] = []
    first = 0
    for name in names:
        own, place = known.get(name, ((name,), np.arange(tensors[name].image.elements)))
        places.append(np.where(place < 0, -1, place + first))
        inputs += own
        first += sum(tensors[n].image.elements for n in own)
    return tuple(inputs), np.concatenate([*places, [-1]])[sources]
