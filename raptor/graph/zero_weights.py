"""Blocks of a layer's weights that are all 0, so that no product with them is needed."""

from raptor.graph.ir import Filter, Numbers

Range = tuple[int, int]


def has_weights(filter_: Filter, rows: Range, cols: Range, taps: Range | None = None) -> bool:
    """Checks whether a weight between input channels `rows` and output channels `cols` is not 0.

    `taps`: the kernel positions to look at; None for all. Weights between channels of different groups are 0.
    """
    weights = filter_.weights if taps is None else filter_.weights[slice(*taps)]
    ins, outs = weights.shape[1], weights.shape[2] // filter_.groups
    first, last = max(rows[0] // ins, cols[0] // outs), min(-(-rows[1] // ins), -(-cols[1] // outs))
    return any(
        _has_any(
            weights[
                :,
                max(rows[0] - group * ins, 0) : min(rows[1] - group * ins, ins),
                max(cols[0], group * outs) : min(cols[1], (group + 1) * outs),
            ]
        )
        for group in range(first, last)
    )


def _has_any(block: Numbers) -> bool:
    """Returns `block.any()`; nearly always, the first input channel tells."""
    return bool(block[:, :1].any() or block.any())


def find_zero_taps(filter_: Filter, rows: Range, cols: Range) -> frozenset[int]:
    """Returns the kernel positions whose weights between input channels `rows` and outputs `cols` are all 0."""
    taps = range(filter_.weights.shape[0])
    return frozenset(tap for tap in taps if not has_weights(filter_, rows, cols, (tap, tap + 1)))
