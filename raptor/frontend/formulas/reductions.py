"""Reductions over axes of a tensor in any layout; used by reductions, pools and normalisations."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from raptor.frontend.constant_pixels import Shape, natural_image
from raptor.frontend.formulas.builder import OperatorBuilder
from raptor.graph.ir import Pool, Tensor
from raptor.graph.rearrangement import c_order, make_move
from raptor.graph.window import Window
from raptor.target.tensor_layout import Image


@dataclass(frozen=True, slots=True)
class ReductionLayout:
    """A tensor laid out so that each dimension of its image is either reduced or kept. `reduced[d]`: True if reduced.

    channel_parts: if the channels consist of several dimensions, only some of which are reduced: the size of each, and
    whether it is reduced.
    """

    tensor: Tensor
    reduced: tuple[bool, ...]
    channel_parts: tuple[tuple[int, bool], ...] = ()

    @property
    def image(self) -> Image:
        return self.tensor.image

    @property
    def reduced_count(self) -> int:
        """Number of elements that are reduced to one."""
        dims = [*zip(self.image.shape, self.reduced, strict=True)]
        if self.channel_parts:
            dims[self.image.channel_axis : self.image.channel_axis + 1] = self.channel_parts
        return math.prod(n for n, chosen in dims if chosen)

    @property
    def result_channels(self) -> npt.NDArray[np.int64]:
        """[channels] -> result channel to which each channel contributes, where only some `parts` are reduced."""
        sizes, results = [n for n, _ in self.channel_parts], [1 if chosen else n for n, chosen in self.channel_parts]
        return np.broadcast_to(np.arange(math.prod(results)).reshape(results), sizes).reshape(-1)

    @property
    def reduces_channels(self) -> bool:
        """True if the channels are reduced."""
        return self.reduced[self.image.channel_axis] and self.image.channels > 1


def lay_out_reduction(
    build: OperatorBuilder, x: Tensor, axes: Sequence[int], *, grouped: bool = False
) -> ReductionLayout:
    """Returns a view of x that reduces the `axes` of its shape.

    Elements move only where a reshape has split the channels, or has made tokens of several pixels each, whose channels
    are reduced. With `grouped`, they stay in place even there if only some of the parts are reduced, as in a group
    normalisation (`ReductionLayout.channel_parts`).
    """
    if grouped and (seen := _grouped(build, x, axes)) is not None:
        return seen
    if _joins_pixels(x, axes):
        x = build.lay_out(x, Image(x.shape, len(x.shape) - 1))
    found = _refined(x.image, x.shape)
    if found is None:
        x = build.lay_out(x, natural_image(x.shape))
        found = _refined(x.image, x.shape)
        assert found is not None, "a shape refines itself"
    image, owners = found
    return ReductionLayout(build.lay_out(x, image), tuple(owner in axes for owner in owners))


def emit_reduction(
    build: OperatorBuilder, seen: ReductionLayout, function: Literal["max", "sum"], factor: float = 1.0
) -> Tensor:
    """Emits the maximum, or the sum times `factor`, over the reduced dimensions, which become 1."""
    seen = _pooled(build, seen, function)
    if not seen.reduces_channels:
        return seen.tensor if factor == 1 else build.map("mul", seen.tensor, factor)
    if seen.channel_parts:
        if function == "sum" and build.has_crossbars(seen.tensor) and seen.image.pixels > 1:
            return build.multiply_by_matrix(
                seen.tensor, np.eye(seen.result_channels.max() + 1, dtype=np.float32)[seen.result_channels] * factor
            )
        return emit_reduction(build, _with_split_channels(build, seen), function, factor)
    if function == "sum" and build.has_crossbars(seen.tensor):
        return build.multiply_by_matrix(seen.tensor, np.full((seen.image.channels, 1), factor, np.float32))
    if function == "max":
        return _largest_channel(build, seen.tensor)
    result = _pooled(build, _with_other_channels(build, seen), function).tensor
    return result if factor == 1 else build.map("mul", result, factor)


def emit_broadcast_sum(build: OperatorBuilder, seen: ReductionLayout, factor: float) -> Tensor:
    """Emits the sum times `factor`, broadcast to every channel; other reduced dimensions become 1.

    Without crossbars for the sum, the channels become 1, too.
    """
    if not build.has_crossbars(seen.tensor):
        return emit_reduction(build, seen, "sum", factor)
    seen = _pooled(build, seen, "sum")
    if not seen.reduces_channels:
        return seen.tensor if factor == 1 else build.map("mul", seen.tensor, factor)
    channels = seen.image.channels
    if seen.channel_parts:
        return build.multiply_by_matrix(
            seen.tensor, (seen.result_channels[:, None] == seen.result_channels) * np.float32(factor)
        )
    # A broadcast number, not a full matrix: each norm of a large transformer has one.
    return build.multiply_by_matrix(seen.tensor, np.broadcast_to(np.float32(factor), (channels, channels)))


def broadcast_to_image(build: OperatorBuilder, x: Tensor, image: Image) -> Tensor:
    """Broadcasts x along the dimensions of `image` in which it has size 1.

    A single pixel is returned unchanged: operators broadcast it.
    """
    meets_all = (x.image.pixels, x.image.channels, x.image.channel_axis) == (1, image.channels, image.channel_axis)
    if x.image == image or meets_all:
        return x
    small = c_order(x.image.shape).reshape(x.image.shape[: len(image.shape)])
    return build.add(make_move([x.image], np.broadcast_to(small, image.shape), image), image, x)


def _pooled(build: OperatorBuilder, seen: ReductionLayout, function: Literal["max", "sum"]) -> ReductionLayout:
    image, at = seen.image, seen.image.channel_axis
    chosen = seen.reduced[:at] + seen.reduced[at + 1 :]
    dims = image.pixel_dims
    kernel = tuple(n if c else 1 for n, c in zip(dims, chosen, strict=True))
    if math.prod(kernel) == 1:
        return seen
    outs = tuple(1 if c else n for n, c in zip(dims, chosen, strict=True))
    ones = (1,) * len(dims)
    window = Window(dims, outs, kernel, ones, (0,) * len(dims), ones)
    small = Image((*outs[:at], image.channels, *outs[at:]), at)
    return replace(seen, tensor=build.add(Pool(function, window), small, seen.tensor))


def _largest_channel(build: OperatorBuilder, x: Tensor) -> Tensor:
    """Emits the maximum of each pixel's channels, halving their number until one is left.

    The halves of an odd number overlap in one channel. So a pixel stays where it is, and takes a few operations.
    """
    at = x.image.channel_axis
    while (channels := x.image.channels) > 1:
        half = -(-channels // 2)
        image = Image((*x.image.shape[:at], half, *x.image.shape[at + 1 :]), at)
        first, last = (c_order(x.image.shape).take(range(n, n + half), at) for n in (0, channels - half))
        x = build.map("max", *(build.add(make_move([x.image], part, image), image, x) for part in (first, last)))
    return x


def _with_other_channels(build: OperatorBuilder, seen: ReductionLayout) -> ReductionLayout:
    """Lays out the tensor with its largest kept dimension as channels."""
    shape, chosen = seen.image.shape, seen.reduced
    kept = [d for d in range(len(shape)) if not chosen[d]]
    if not kept:
        shape, chosen, kept = (*shape, 1), (*chosen, False), [len(shape)]
    axis = max(kept, key=lambda d: shape[d])
    return ReductionLayout(build.lay_out(seen.tensor, Image(shape, axis)), chosen)


def _with_split_channels(build: OperatorBuilder, seen: ReductionLayout) -> ReductionLayout:
    """Lays out the parts of the channels as dimensions; the largest kept part becomes the channels."""
    at, shape = seen.image.channel_axis, seen.image.shape
    sizes, chosen = zip(*seen.channel_parts, strict=True)
    axis = max((d for d, (_, c) in enumerate(seen.channel_parts) if not c), key=lambda d: sizes[d])
    image = Image((*shape[:at], *sizes, *shape[at + 1 :]), at + axis)
    return ReductionLayout(build.lay_out(seen.tensor, image), (*seen.reduced[:at], *chosen, *seen.reduced[at + 1 :]))


def _grouped(build: OperatorBuilder, x: Tensor, axes: Sequence[int]) -> ReductionLayout | None:
    """Returns a view of x in its layout if its channels are several dimensions, some of them reduced; else None."""
    found = _dims(x.image, x.shape)
    if found is None:
        return None
    dims, owners, at = found
    chosen = [owner in axes for owner in owners]
    end = next((e for e in range(at + 1, len(dims) + 1) if math.prod(dims[at:e]) == x.image.channels), at)
    if end == at or len({*chosen[at:end]}) == 1:
        return None
    image = Image((*dims[:at], x.image.channels, *dims[end:]), at)
    parts = tuple(zip(dims[at:end], chosen[at:end], strict=True))
    return ReductionLayout(build.lay_out(x, image), (*chosen[:at], True, *chosen[end:]), parts)


def _joins_pixels(x: Tensor, axes: Sequence[int]) -> bool:
    """True if only the last axis is reduced, and each of its several lines is all channels of some pixels."""
    image = x.image
    if not x.shape or [*axes] != [len(x.shape) - 1] or image.channel_axis != len(image.shape) - 1:
        return False
    *outer, last = x.shape
    return last > image.channels > 1 and last % image.channels == 0 and math.prod(outer) > 1


def _refined(image: Image, shape: Shape) -> tuple[Image, tuple[int, ...]] | None:
    """Returns an image of the same layout whose dimensions refine `shape`, and the dimension that each of them refines.

    None if there is no such image, or if the channels would be several of its dimensions.
    """
    found = _dims(image, shape)
    if found is None:
        return None
    dims, owners, at = found
    if image.channels == 1:
        # A separate dimension that belongs to no axis.
        dims.insert(at, 1)
        owners.insert(at, -1)
    elif dims[at] != image.channels:
        return None
    return Image(tuple(dims), at), tuple(owners)


def _dims(image: Image, shape: Shape) -> tuple[list[int], list[int], int] | None:
    """Returns a common refinement of the dimensions of image and shape; None if there is none.

    As (sizes, dimension of `shape` that each one refines, position of the first channel dimension).
    """
    starts = sorted(_starts(image.shape) | _starts(shape) | {math.prod(shape)})
    steps = list(itertools.pairwise(starts))
    if any(stop % start for start, stop in steps):
        return None
    dims = [stop // start for start, stop in steps]
    owners = [_owner(shape, start) for start, _ in steps]
    return dims, owners, starts.index(math.prod(image.shape[: image.channel_axis]))


def _starts(shape: Shape) -> set[int]:
    """Returns the product of the sizes before each dimension."""
    return {math.prod(shape[:d]) for d in range(len(shape))} | {1}


def _owner(shape: Shape, start: int) -> int:
    """Returns the last dimension larger than 1 whose start is at or before `start`."""
    return max(d for d, n in enumerate(shape) if n > 1 and math.prod(shape[:d]) <= start)
