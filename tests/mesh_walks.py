"""Routes on the mesh, step by step: what RAPTOR computes from sums is compared with them."""

Link = tuple[int, int]


def walk(source: int, to: int, cols: int) -> set[Link]:
    """Returns the links of a route, one step after another: first along the row, then along the column."""
    at, links = source, set[Link]()
    while at != to:
        across, down = to % cols - at % cols, to // cols - at // cols
        step = across // abs(across) if across else cols * (down // abs(down))
        links.add((min(at, at + step), max(at, at + step)))
        at += step
    return links
