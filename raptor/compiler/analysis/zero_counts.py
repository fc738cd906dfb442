"""Counts what is all zeros among the weights of a layer: matrices, inputs and outputs."""

from collections.abc import Iterator, Sequence

from pydantic import Field

from raptor.common.files.schema_types import StrictSchema
from raptor.graph.ir import Filter, Numbers
from raptor.graph.layers import tile_channels
from raptor.mapping.decision import Matrix
from raptor.mapping.modes.kernel_unfolding import count_zero_matrices
from raptor.target.arch import Target


class ZeroInfo(StrictSchema):
    """Matrices and channels of a layer whose weights are all 0 in the model."""

    matrices: int = Field(description="matrices of a crossbar's rows and of a tile's outputs; they are left out")
    all_matrices: int
    inputs: int = Field(description="input channels without weights")
    outputs: int = Field(description="output channels without weights")


def count_zeros(filters: Sequence[Filter], arch: Target) -> ZeroInfo | None:
    """Returns the zeros among the weights of the filters of a layer; None if no matrix and no channel is all zeros."""
    zero = every = inputs = outputs = 0
    for filter_ in filters:
        found, all_matrices = count_zero_matrices(filter_, arch, tile_channels(arch, filter_.weight_bits))
        zero, every = zero + found, every + all_matrices
        made = filter_.weights.any(axis=(0, 1))
        outputs += int((~made).sum())
        inputs += filter_.in_channels - sum(int(group.any(axis=(0, 2)).sum()) for group in _split_groups(filter_))
    if not (zero or inputs or outputs):
        return None
    return ZeroInfo(matrices=zero, all_matrices=every, inputs=inputs, outputs=outputs)


def count_held_weights(filter_: Filter, matrices: Sequence[Matrix]) -> int:
    """Returns the number of weights of a layer in some of its matrices, without what is between groups."""
    ins, outs = filter_.weights.shape[1], filter_.weights.shape[2] // filter_.groups
    found = 0
    for (low, high), (first, last) in ((matrix.rows, matrix.cols) for matrix in matrices):
        for group in range(max(low // ins, first // outs), min(-(-high // ins), -(-last // outs))):
            rows = min(high, (group + 1) * ins) - max(low, group * ins)
            found += rows * (min(last, (group + 1) * outs) - max(first, group * outs))
    return found


def _split_groups(filter_: Filter) -> Iterator[Numbers]:
    outs = filter_.weights.shape[2] // filter_.groups
    return (filter_.weights[:, :, k * outs : (k + 1) * outs] for k in range(filter_.groups))
