"""Pooling of one output line: down the columns first, then along the line."""

from collections.abc import Iterator
from dataclasses import replace

from raptor.spatial.ir import PoolTile, Tile


def pool_ops(pool: PoolTile) -> Iterator[PoolTile]:
    """Two operations of as many inputs as the kernel is high and wide, where one would have as many as its area.

    The first works on whole lines, whatever the stride.
    """
    window, (_, first) = pool.window, pool.inputs[0]
    if 1 in window.kernel:
        yield pool
        return
    column = Tile(f"{pool.result.name}.columns", 1, first.width, pool.result.channels)
    down = replace(
        window,
        out_dims=(window.out_dims[0], window.in_dims[1]),
        kernel=(window.kernel[0], 1),
        strides=(window.strides[0], 1),
        pads=(window.pads[0], 0),
        dilations=(window.dilations[0], 1),
    )
    yield replace(pool, result=column, window=down)
    along = replace(
        window,
        in_dims=(window.out_dims[0], window.in_dims[1]),
        kernel=(1, window.kernel[1]),
        strides=(1, window.strides[1]),
        pads=(0, window.pads[1]),
        dilations=(1, window.dilations[1]),
    )
    yield replace(pool, inputs=((pool.row, column),), window=along)
