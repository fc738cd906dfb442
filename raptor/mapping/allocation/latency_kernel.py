"""The compiled loop of `latency_rebalancing`; import it only where it runs (see `raptor.common.jit.decorators`)."""
# pyright: reportArgumentType=false, reportReturnType=false
# An element of an array is a number here.

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raptor.common.jit.decorators import bare_kernel

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class LineTable(NamedTuple):
    """The tensors of a graph as lines, in the order in which they are made, as columns.

    The lines of tensor i are numbered from `first[i]` to `first[i + 1] - 1` among all. They are made of the lines of
    the tensors `operand[first_operand[i]]` to `operand[first_operand[i + 1] - 1]`: line y needs the first
    `y * stride[i] + reach[i] + 1` of them, and at most `given[i]`. layer: number of the layer that makes them, or -1.
    """

    first: Ints
    given: Ints
    stride: Ints
    reach: Ints
    layer: Ints
    first_operand: Ints
    operand: Ints


@bare_kernel
def simulate_lines(ready_ns: Floats, lines: LineTable, core_ns: Floats, height: Ints, message_ns: float) -> float:
    """Sets `ready_ns`, the time at which each line is ready. Returns the latency: the time of the last line.

    core_ns, height: [layers], load of a core for a sample, divided evenly among the input lines, and number of input
    lines that are multiplied together.
    """
    end_ns = 0.0
    for i in range(len(lines.given)):
        layer, given = lines.layer[i], lines.given[i]
        line_ns, together, passed_ns = 0.0, 1, 0.0
        if layer >= 0:
            line_ns, together, passed_ns = core_ns[layer] / given, height[layer], message_ns
        done, done_ns = 0, 0.0
        for y in range(lines.first[i + 1] - lines.first[i]):
            needed = y * lines.stride[i] + lines.reach[i] + 1
            needed = min(given, (max(1, needed) + together - 1) // together * together)
            while done < needed:
                for k in range(lines.first_operand[i], lines.first_operand[i + 1]):
                    operand = lines.operand[k]
                    at = min(lines.first[operand] + done, lines.first[operand + 1] - 1)
                    done_ns = max(done_ns, ready_ns[at])
                done_ns += line_ns
                done += 1
            ready_ns[lines.first[i] + y] = done_ns + passed_ns
        end_ns = max(end_ns, done_ns + passed_ns)
    return end_ns
