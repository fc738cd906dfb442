"""Estimates the flits of a sample that cross the links between chips, before cores have places.

Cores are taken to be on the chip of their number. Where a layer and the one before it share all their cores, nothing
moves.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import product

from raptor.graph.ir import Dot, Filter, Graph, Move, Node, Rename
from raptor.mapping.decision import ByLine, DotGrid, Layer, LineUnfolding, OnVectorUnit, filter_key
from raptor.target.arch import Target


def size_flits(graph: Graph, name: str, arch: Target) -> int:
    """Returns the flits of a tensor."""
    tensor = graph.tensors[name]
    return -(-tensor.image.elements * arch.bytes_of(tensor.element) // arch.network.flit_bytes)


def crossing_flits(
    graph: Graph, layers: Mapping[str, Layer], flow: ByLine, arch: Target
) -> tuple[list[float], dict[int, float]]:
    """Returns the flits over each link, from the first to the last, and those of each core that cross any.

    `graph` is as the layers compute it.
    """
    links, busy = [0.0] * (arch.chips - 1), defaultdict[int, float](float)
    made = {name: tuple(core for _, core in pairs) for name, pairs in flow.loaders.items()}
    for node in graph.nodes:
        given = next((made[name] for name in node.inputs if name in made), ())
        shares = _shares(node, layers, flow) or [dict.fromkeys(given, 1 / max(1, len(set(given))))] * len(node.inputs)
        for name, parts in zip(node.inputs, shares, strict=False):
            source = set(made.get(name, ()))
            if source and parts and source != set(parts):
                evenly = dict.fromkeys(source, 1 / len(source))
                _add(links, busy, evenly, parts, size_flits(graph, name, arch), arch)
        made[node.output] = tuple(shares[0]) if shares else ()
    return links, busy


def _add(
    links: list[float],
    busy: defaultdict[int, float],
    source: Mapping[int, float],
    to: Mapping[int, float],
    flits: int,
    arch: Target,
) -> None:
    """Adds the flits of a tensor that go to other chips: to each link on their way, and to both ends."""
    sent, read = _by_chip(source, arch), _by_chip(to, arch)
    for a, b in product(range(arch.chips), repeat=2):
        for link in range(min(a, b), max(a, b)):
            links[link] += sent[a] * read[b] * flits
    for core, part in source.items():
        busy[core] += part * flits * (sum(read) - read[core // arch.cores_per_chip])
    for core, part in to.items():
        busy[core] += part * flits * (1 - sent[core // arch.cores_per_chip])


def messages_of(
    part: Graph, fed: Collection[str], layers: Mapping[str, Layer], flow: ByLine, arch: Target
) -> tuple[dict[int, float], dict[int, float]]:
    """Returns by core the flits that a stage gets from stages before, and those that it sends to stages behind.

    `fed`: its inputs that are made before. A tensor is sent once, as it is not known how many cores will read it.
    """
    sizes = {name: size_flits(part, name, arch) for name in fed}
    made, got = dict[str, tuple[int, ...]](), defaultdict[int, float](float)
    for node in part.nodes:
        shares = _shares(node, layers, flow)
        own = tuple(shares[0]) if shares else next((made[n] for n in node.inputs if n in made), ())
        made[node.output] = own
        for number, name in enumerate(node.inputs):
            if name in sizes and isinstance(node.operator, Move | Rename):
                sizes[node.output] = sizes[name]
            elif name in sizes:
                evenly = dict.fromkeys(own, 1 / max(1, len(set(own))))
                parts = shares[number] if number < len(shares) else evenly
                for core, share in parts.items():
                    got[core] += share * sizes[name]
    sent = defaultdict[int, float](float)
    for name in part.outputs:
        cores = set(made.get(name, ()))
        for core in cores:
            sent[core] += size_flits(part, name, arch) / len(cores)
    return got, sent


def _shares(node: Node, layers: Mapping[str, Layer], flow: ByLine) -> list[dict[int, float]]:
    """Returns for each input the part of it that each core reads; nothing for work that stays where its input is."""
    layer = layers.get(filter_key(node)) if isinstance(node.operator, Filter) else None
    grid = flow.products.get(node.output)
    if isinstance(layer, LineUnfolding):
        return [_of_lines(layer)]
    if layer is not None and not isinstance(layer, OnVectorUnit):
        return [dict.fromkeys(layer.cores, 1 / len(set(layer.cores)))]
    return _of_product(grid) if isinstance(node.operator, Dot) and grid is not None else []


def _of_lines(layer: LineUnfolding) -> dict[int, float]:
    width = max(1, layer.grid.cols[-1][1])
    channels = max(1, sum(b - a for group in layer.grid.ins for a, b in group))
    found = defaultdict[int, float](float)
    for s, (first, last) in enumerate(layer.grid.cols):
        for g, group in enumerate(layer.grid.ins):
            share = (last - first) / width * sum(b - a for a, b in group) / channels
            for p in range(len(layer.grid.outs)):
                found[layer.core(s, g, p)] += share
    return found


def _of_product(grid: DotGrid) -> list[dict[int, float]]:
    """Returns the parts of both operands: a core needs its own rows of the first, and all of the second's lines."""
    first, second = dict[int, float](), dict[int, float]()
    for _, _, core in grid.places():
        first[core] = first.get(core, 0.0) + 1 / len(grid.cores)
        second[core] = second.get(core, 0.0) + 1 / len(grid.rows)
    return [first, second]


def _by_chip(parts: Mapping[int, float], arch: Target) -> list[float]:
    found = [0.0] * arch.chips
    for core, part in parts.items():
        found[core // arch.cores_per_chip] += part
    return found
