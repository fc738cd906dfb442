"""Finds the sequences of a graph, and the layouts in which their tokens are lines."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raptor.common.union_find import DisjointSets
from raptor.graph.ir import (
    ChannelSum,
    Concat,
    ConstantTensor,
    Dot,
    Elementwise,
    Filter,
    Graph,
    Move,
    Node,
    Pool,
    Rename,
    Softmax,
    Take,
)
from raptor.graph.layers import is_pointwise
from raptor.graph.requantise.definition import Requantise
from raptor.graph.streaming_layout import can_stream
from raptor.graph.window import cached_input_pixels
from raptor.target.tensor_layout import Image

Ints = npt.NDArray[np.int64]

FEWEST_ELEMENTS = 1024
"""Fewest elements of a tensor for a layout as tokens that no layer asks for: less work is not worth several cores."""


@dataclass(slots=True)
class TokenLayouts:
    """Finds the tensors that are sequences, and the images that they get.

    alike: tensors of one layout, because element-wise operators and renames connect them. fixed: sets whose layout an
    operator needs as it is. odd: sets with an operator for which tokens are no lines. varied: sets with constants of a
    `Requantise` that differ between pixels or channels, and so need the order of these. pools: operators that put
    pixels or channels together, and whose operand may get another layout. repeated: a set, and another of one pixel
    that an element-wise operator repeats for all pixels of the first. repeating: the first of these where no pool makes
    the other. sums: the sets that pools make which become sums
    over channels. over: the results of those that become pools over all tokens. made: the node that makes each tensor.
    """

    graph: Graph
    alike: DisjointSets = field(default_factory=DisjointSets)
    fixed: set[str] = field(default_factory=set[str])
    odd: set[str] = field(default_factory=set[str])
    varied: set[str] = field(default_factory=set[str])
    pools: list[Node] = field(default_factory=list[Node])
    repeated: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    repeating: set[str] = field(default_factory=set[str])
    sums: set[str] = field(default_factory=set[str])
    over: set[str] = field(default_factory=set[str])
    made: dict[str, Node] = field(default_factory=dict[str, Node])

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            if isinstance(node.operator, Elementwise | Rename | Softmax):
                for name in node.inputs:
                    if isinstance(node.operator, Rename) or self.image(name) == self.image(node.output):
                        self.alike.union(node.output, name)
        for node in self.graph.nodes:
            self.made[node.output] = node
            self.bind(node)
        for names in self.joined():
            self.fixed |= names
        results = {self.alike.find(node.output) for node in self.pools}
        self.repeating = {one for one, other in self.repeated if other not in results}

    def image(self, name: str) -> Image:
        return self.graph.tensors[name].image

    def bind(self, node: Node) -> None:
        """Records what a node asks of the layouts of its operands and its result."""
        sets = {self.alike.find(name) for name in (*node.inputs, node.output)}
        match node.operator:
            case Move() | Rename() | ConstantTensor():
                pass
            case Concat() if all(is_channels_last(self.image(name)) for name in (*node.inputs, node.output)):
                pass
            case Pool() as pool if self.graph.tensors[node.output].element.kind == "float" and _may_change(pool):
                self.pools.append(node)
            case Filter(window=window) if is_pointwise(window):
                self.fixed |= sets
            case ChannelSum() if self.image(node.output).channels == 1 and self.is_turned(node.inputs[0]):
                self.pools.append(node)
            case Dot() | Softmax() | ChannelSum():
                self.fixed |= sets
            case Take() if is_channels_last(self.image(node.output)):
                self.odd |= {self.alike.find(name) for name in node.inputs}
                self.fixed.add(self.alike.find(node.output))
            case _ if isinstance(node.operator, Elementwise):
                if isinstance(node.operator, Requantise) and _differs(node.operator, (0, 1, 2)):
                    self.varied.add(self.alike.find(node.output))
                made = self.alike.find(node.output)
                self.repeated += ((made, other) for other in sorted(sets - {made}))
            case _:
                self.odd |= sets

    def joined(self) -> Iterator[set[str]]:
        """Yields the sets that concatenations of channels connect; these have the layout of tokens together, or none.

        If an operator of one of them is `odd`, all are.
        """
        concats = [node for node in self.graph.nodes if isinstance(node.operator, Concat)]
        found = [{self.alike.find(name) for name in (*node.inputs, node.output)} for node in concats]
        before = -1
        while before < len(self.odd):
            before = len(self.odd)
            self.odd.update(*(names for names in found if names & self.odd))
        yield from (names for names in found if not names & self.odd)

    def is_turned(self, name: str) -> bool:
        """Tells whether a tensor has several pixels, and its channels are not the last dimension."""
        return self.image(name).pixels > 1 and not is_channels_last(self.image(name))

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
        known = {key: self.image(key).channels for key in self.fixed - self.odd if is_channels_last(self.image(key))}
        for name, channels, _ in self.turned():
            key = self.alike.find(name)
            if key not in known and self.takes(key, channels):
                known[key] = channels
        sums = {self.alike.find(node.output) for node in self.pools}
        moves = [node for node in self.graph.nodes if isinstance(node.operator, Move)]
        self.spread_all(moves, sums, known)
        for key in sorted({self.alike.find(name) for name in self.graph.tensors} - known.keys() - sums):
            if key not in known and self.is_alone(key):
                known[key] = self.image(key).channels
                self.spread_all(moves, sums, known)
        return self.with_sums(known)

    def spread_all(self, moves: list[Node], sums: set[str], known: dict[str, int]) -> None:
        """Adds to `known` the sets that a chain of `moves` connects with a set in it. sums: sets that pools make."""
        before = -1
        while before < len(known):
            before = len(known)
            for node in moves:
                names = {name: self.alike.find(name) for name in (*node.inputs, node.output)}
                self.spread(node, {name: key for name, key in names.items() if key not in sums}, known)

    def is_alone(self, key: str) -> bool:
        """True if the tensors of a set are large and can only stream as tokens that have their present channels."""
        image = self.image(key)
        large = image.elements >= FEWEST_ELEMENTS and is_channels_last(image) and not can_stream(image)
        return large and self.takes(key, image.channels)

    def spread(self, node: Node, names: dict[str, str], known: dict[str, int]) -> None:
        """Adds to the `known` sets those that a move connects with one of them. names: its tensors, with their sets."""
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
            for k, n in found.items():
                wanted = self.image(k).channels if k in self.repeating else n
                if k not in known and self.takes(k, wanted):
                    known[k] = wanted
            return

    def takes(self, key: str, channels: int) -> bool:
        """Tells whether a set can be tokens of so many channels: nothing needs its layout, or it is laid out so.

        Each pool that reads it must put together the channels of a token, or all tokens. A sequence of merged patches
        consists of tokens, and of parts of them, which are the pixels of the image before: a norm tells which. A pixel
        that is repeated for all tokens has their channels, unless it is a sum.
        """
        if (key in self.repeating or key in self.varied) and not self.has_channels(key, channels):
            return False
        pools = (node for node in self.pools if self.alike.find(node.inputs[0]) == key)
        suits = all(self.adds_channels(node, channels) or self.is_over_tokens(node, channels) for node in pools)
        return suits and key not in self.fixed | self.odd

    def has_channels(self, key: str, channels: int) -> bool:
        """True if the pixels of a set already have `channels` channels, which are its last dimension."""
        return is_channels_last(self.image(key)) and self.image(key).channels == channels

    def turned(self) -> Iterator[tuple[str, int, int]]:
        """Yields tensors that are images with the channels last, such as [1, H, W, C] of [1, C, H, W].

        Moves make one of the other, and an operator needs the layout of the image as it is. The elements of the tensor,
        in C order, are those of the image, pixel by pixel, or pieces of its pixels, as the anchors of a detector are:
        [1, A, H, W, C] of [1, A * C, H, W]. With each come its channels and its lines.
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
                if self.is_kept(made) and np.array_equal(c_positions(before)[sources], np.arange(before.elements)):
                    yield given, after.channels, after.rows
                    break

    def origins(self, name: str) -> Iterator[tuple[str, Ints]]:
        """Yields the tensors of which moves make a tensor, the nearest first, and which of their elements it takes.

        They have at least as many elements as the tensor. Elements are numbered pixel by pixel.
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
        """Tells whether a tensor has pixels and channels, and stays the image that it is."""
        key, image = self.alike.find(name), self.image(name)
        stays = key in self.odd or (key in self.fixed and not is_channels_last(image))
        return stays and min(image.pixels, image.channels) > 1

    def is_same_order(self, node: Node) -> bool:
        """Tells whether a move keeps the elements in C order, so that it only changes the layout."""
        assert isinstance(node.operator, Move)
        given, made = self.image(node.inputs[0]), self.image(node.output)
        if given.elements != made.elements:
            return False
        return np.array_equal(c_positions(given)[node.operator.sources.reshape(-1)], c_positions(made))

    def keeps_tokens(self, node: Node, count: int) -> bool:
        """Tells whether a move takes the elements of each of `count` tokens from the tokens of the same number.

        It may take some of their channels, as a split does, or those of several operands, and add zeros.
        """
        assert isinstance(node.operator, Move)
        given, made = [self.image(name) for name in node.inputs], self.image(node.output)
        sources = node.operator.sources.reshape(-1)
        if any(image.elements % count for image in (*given, made)):
            return False
        token = np.concatenate([c_positions(image) // (image.elements // count) for image in given])
        taken, wanted = sources >= 0, c_positions(made) // (made.elements // count)
        return bool(taken.any()) and np.array_equal(token[sources[taken]], wanted[taken])

    def picks_tokens(self, node: Node, channels: int) -> bool:
        """Tells whether a move only puts whole tokens of so many channels in another order, or leaves some out."""
        assert isinstance(node.operator, Move)
        given, made = [self.image(name) for name in node.inputs], self.image(node.output)
        if any(image.elements % channels for image in (*given, made)):
            return False
        tokens = moved_from(node.operator, given, made).reshape(-1, channels)
        starts = tokens[:, 0]
        return bool((starts >= 0).all() and not (starts % channels).any() and (np.diff(tokens, axis=1) == 1).all())

    def with_sums(self, known: dict[str, int]) -> dict[str, int]:
        """Adds the sets of sums over the channels of tokens.

        Sets of another layout than before are left out if a pool reads or makes them that is neither such a sum nor
        over all tokens, or if something else than such a sum is repeated for their pixels, unless these have the same
        channels as before. For the pixels of sums, nothing can be repeated.
        """
        same = {key for key, count in known.items() if self.has_channels(key, count)}
        repeated = [pair for pair in self.repeated if pair[0] not in same]
        pools = [(self.alike.find(node.inputs[0]), self.alike.find(node.output), node) for node in self.pools]
        banned = self.fixed | self.odd | known.keys()
        while True:
            changed = known.keys() - self.fixed
            over = {n.output for given, _, n in pools if given in changed and self.is_over_tokens(n, known[given])}
            adds = [given in changed and self.adds_channels(node, known[given]) for given, _, node in pools]
            others = {made for (_, made, _), is_sum in zip(pools, adds, strict=True) if not is_sum}
            sums = {made for (_, made, _), is_sum in zip(pools, adds, strict=True) if is_sum} - banned - others
            read = [*((given, made) for given, made, node in pools if node.output not in over), *repeated]
            wrong = {key for pair in read if (pair[0] in changed) != (pair[1] in sums) for key in pair}
            wrong |= changed.intersection([*(made for _, made, _ in pools), *(one for _, one in self.repeated)])
            wrong |= sums.intersection([*(given for given, *_ in pools), *(made for made, _ in self.repeated)])
            if not wrong & (changed | sums):
                self.sums, self.over = sums, over
                return known | dict.fromkeys(sums, 1)
            known = {key: count for key, count in known.items() if key not in wrong or key in self.fixed}
            banned |= wrong & sums

    def adds_channels(self, node: Node, channels: int) -> bool:
        """Tells whether each result of a pool is the sum of `channels` elements that follow one another in C order."""
        if not isinstance(node.operator, Pool) or node.operator.function != "sum":
            return False
        elements = self.image(node.inputs[0]).elements
        return puts_together(self.graph, node, np.arange(elements).reshape(-1, channels))

    def is_over_tokens(self, node: Node, channels: int) -> bool:
        """Tells whether a pool puts together all tokens of `channels` elements in C order, each channel by itself."""
        elements = self.image(node.inputs[0]).elements
        return puts_together(self.graph, node, np.arange(elements).reshape(-1, channels).T)

    def lines(self, channels: dict[str, int]) -> dict[str, int]:
        """Returns the number of lines of each set: of the heads next to products of computed tensors, or of an image.

        It is 1 if there are neither, or if the tokens of a set are not as many for each head.
        """
        near = DisjointSets()
        for node in self.graph.nodes:
            if (
                isinstance(node.operator, Concat | Filter | Softmax | ChannelSum | Pool)
                and node.output not in self.over
            ):
                for name in node.inputs:
                    near.union(self.alike.find(node.output), self.alike.find(name))
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
        """Returns the rows of images whose pixels are the tokens of some sets, by sets of these.

        near: sets that have the same lines; those that a move only lays out anew are joined.
        """
        for node in self.graph.nodes:
            if isinstance(node.operator, Move) and len(node.inputs) == 1:
                given, made = (self.alike.find(name) for name in (node.inputs[0], node.output))
                if given in channels and channels[given] == channels.get(made) and self.is_same_order(node):
                    near.union(given, made)
        found: dict[str, set[int]] = {}
        for name, count, rows in self.turned():
            if channels.get(self.alike.find(name)) == count:
                found.setdefault(near.find(self.alike.find(name)), set()).add(rows)
        for node in self.graph.nodes:
            key = near.find(self.alike.find(node.output))
            if key in found and isinstance(node.operator, Requantise) and _differs(node.operator, (0, 1)):
                # Its constants are those of the rows of the image as it is.
                found[key].add(self.image(node.output).rows)
        return found


def _differs(operator: Requantise, axes: tuple[int, ...]) -> bool:
    """Tells whether constants differ along axes of the image [rows, width, channels]."""
    arrays = (array for term in operator.terms for array in (term.multiplier, term.offset))
    return any(array.shape[axis] > 1 for array in arrays for axis in axes)


def is_channels_last(image: Image) -> bool:
    """Tells whether the channels are the last dimension that is larger than 1, and there are several pixels."""
    behind = image.shape[image.channel_axis + 1 :]
    return image.pixels > 1 and all(n == 1 for n in behind)


def puts_together(graph: Graph, node: Node, wanted: Ints) -> bool:
    """Tells whether each result of a pool is made of the elements of its row in `wanted`; both in C order."""
    given, made = graph.tensors[node.inputs[0]].image, graph.tensors[node.output].image
    if wanted.size != given.elements or made.elements != len(wanted):
        return False
    positions = c_positions(given).reshape(given.pixels, given.channels)
    if isinstance(node.operator, Pool):
        read = cached_input_pixels(node.operator.window)
        if read.shape[1] != wanted.shape[1] or (read < 0).any():
            return False
        positions = positions[read].swapaxes(1, 2).reshape(wanted.shape)
    return np.array_equal(np.sort(positions, axis=1), wanted[c_positions(made)])


def _piece(given: Image, made: Image, sources: Ints) -> int:
    """Returns of how many neighbouring channels of a pixel a moved image consists, in C order; 0 if it varies.

    sources: for each element of `made`, counted pixel by pixel, that of `given`.
    """
    element = _in_order(sources, made)
    starts = np.flatnonzero(np.diff(element, prepend=-1) * (element % given.channels != 0) != 1)
    return made.elements // len(starts) if len({*np.diff(starts, append=made.elements).tolist()}) == 1 else 0


def _lines(given: Image, made: Image, sources: Ints, channels: int) -> int:
    """Returns in how many lines the pieces of pixels are, so that each is of one line of `given`; else 1."""
    row = _in_order(sources, made)[::channels] // (given.channels * given.width)
    if len(row) % given.width:
        return 1
    lines = row.reshape(-1, given.width)
    return len(lines) if (lines == lines[:, :1]).all() else 1


def _in_order(values: Ints, image: Image) -> Ints:
    """Returns values of the elements of an image, which are counted pixel by pixel, in C order."""
    return image.from_pixels(values.reshape(image.rows, image.width, image.channels)).reshape(-1)


def _may_change(pool: Pool) -> bool:
    """Tells whether a pool can be of tokens: a sum, or the maximum of all pixels along some dimensions."""
    window = pool.window
    whole = all(size in (1, pixels) for size, pixels in zip(window.kernel, window.in_dims, strict=True))
    return pool.function == "sum" or (whole and not any(window.pads))


def c_positions(image: Image) -> Ints:
    """Returns for each element, counted pixel by pixel, its position in C order."""
    return image.to_pixels(np.arange(image.elements).reshape(image.shape)).reshape(-1)


def moved_from(operator: Move, given: list[Image], made: Image) -> Ints:
    """Returns the operand element that each element of a move's result copies, both counted in C order; -1: a zero."""
    firsts = np.cumsum([0, *(image.elements for image in given)])
    place = np.concatenate([*(c_positions(i) + f for i, f in zip(given, firsts, strict=False)), [-1]])
    found = np.empty(operator.sources.size, np.int64)
    found[c_positions(made)] = place[operator.sources.reshape(-1)]
    return found
