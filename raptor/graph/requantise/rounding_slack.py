"""Slack of the rounding constant: the interval of constants for which given multipliers stay exact for all operands.

With one term, the definition is a step function, so its thresholds decide. With two terms of few values, all pairs of
operand values are compared.
"""

from dataclasses import dataclass

import numpy as np

from raptor.graph.requantise.definition import ParameterSets
from raptor.graph.requantise.vector_program import Ints

MOST_SAMPLES = 2**22
"""Largest number of operand values that are examined, summed over all parameter sets."""
MOST_PAIRS = 2**16
"""Largest number of pairs of operand values that are examined for one parameter set."""


@dataclass(frozen=True, slots=True, eq=False)
class SlackSamples:
    """Operand values that together decide whether a constant is right for all operands.

    The scaled sum must be at least `reached` * 2^shift at the operands `above`, and less than `missed` * 2^shift at the
    operands `below`. Arrays: [moving sets, samples]; operands are one array per term, offsets added; results exclude
    the zero point. moving: [S] bool, the parameter sets that have more than one result.
    """

    moving: Ints
    above: list[Ints]
    reached: Ints
    below: list[Ints]
    missed: Ints

    def select(self, chosen: Ints) -> "SlackSamples":
        """Returns the samples of the parameter sets where `chosen` [S] is True."""
        kept = chosen[self.moving]
        above, below = [x[kept] for x in self.above], [x[kept] for x in self.below]
        return SlackSamples(self.moving[chosen], above, self.reached[kept], below, self.missed[kept])

    def thin_out(self, count: int) -> "SlackSamples | None":
        """Returns about `count` samples of each parameter set; None if there are fewer than twice as many."""
        step = self.reached.shape[1] // count
        if step < 2:
            return None
        above, below = [x[:, ::step] for x in self.above], [x[:, ::step] for x in self.below]
        return SlackSamples(self.moving, above, self.reached[:, ::step], below, self.missed[:, ::step])

    def compute_slack(self, factors: list[Ints], shift: Ints) -> tuple[Ints, Ints]:
        """Returns the least and largest exact constant of each parameter set, [S] of Python integers.

        Both are 0 for sets with a single result. No constant is exact where least > largest. factors (per term) and
        shift: [S] of Python integers.
        """
        least, most = (np.zeros(len(self.moving), object) for _ in range(2))
        if self.moving.any():
            factors, shift = [f[self.moving][:, None] for f in factors], shift[self.moving][:, None]
            least[self.moving] = _missing(self.reached, self.above, factors, shift).max(axis=1)
            most[self.moving] = _missing(self.missed, self.below, factors, shift).min(axis=1)
            most[self.moving] -= 1
        return least, most


def _missing(results: Ints, operands: list[Ints], factors: list[Ints], shift: Ints) -> Ints:
    sizes = [int(abs(x).max()) * int(f.max()) for x, f in zip(operands, factors, strict=True)]
    small = sum(sizes) < 2**60 and int(abs(results).max()) << int(shift.max()) < 2**60
    kind = np.int64 if small else object
    missing = results.astype(kind) << shift.astype(kind)
    for x, f in zip(operands, factors, strict=True):
        missing = missing - x.astype(kind) * f.astype(kind)
    return missing


def collect_samples(given: ParameterSets) -> SlackSamples | None:
    """Returns the samples that decide a requantisation; None if they are too many to examine."""
    values = [high - low + 1 for low, high in given.operands]
    if len(values) == 1:
        return _thresholds(given) if given.size * (given.high - given.low) <= MOST_SAMPLES else None
    few = len(values) == 2 and values[0] * values[1] <= MOST_PAIRS
    return _pairs(given) if few and given.size * values[0] * values[1] <= MOST_SAMPLES else None


def _thresholds(given: ParameterSets) -> SlackSamples:
    moving, results, at = compute_staircase(given)
    part, (low, high) = given.select(moving), given.operands[0]
    # The smallest and the largest operand must keep their results, unless the clamp ensures it.
    free_low, free_high = results[:, :1] - 1 > given.low, results[:, -1:] < given.high
    above = np.hstack([np.where(free_low, low, at[:, :1]), at]) + part.offsets[0]
    below = np.hstack([at - 1, np.where(free_high, high, at[:, -1:] - 1)]) + part.offsets[0]
    reached = np.hstack([results[:, :1] - free_low, results]) - given.zero_point
    missed = np.hstack([results, results[:, -1:] + free_high]) - given.zero_point
    return SlackSamples(moving, [above], reached, [below], missed)


def compute_staircase(given: ParameterSets, most: int | None = None) -> tuple[Ints, Ints, Ints]:
    """Returns the definition of one term as a step function: (moving, results, thresholds).

    moving: [S] bool, sets with more than one result. results, thresholds: [moving sets, steps], each result but the
    smallest, and the smallest operand that has it. At most `most` steps, evenly spaced; sets with fewer steps repeat
    the last one.
    """
    ends = given.result_ends()
    moving = ends[:, 0] < ends[:, 1]
    low, high = ends[moving, :1], ends[moving, 1:]
    count = max(1, int((ends[:, 1] - ends[:, 0]).max()))
    chosen = np.arange(count) if most is None or count <= most else np.arange(most) * (count - 1) // (most - 1)
    results = np.minimum(low + 1 + chosen, high)
    return moving, results, given.select(moving).thresholds(results).astype(np.int64)


def compute_end_thresholds(given: ParameterSets) -> Ints:
    """Returns the lowest and highest threshold, [S, 2], of sets that all have more than one result; one term only."""
    return given.thresholds(given.result_ends() + np.array([1, 0])).astype(np.int64)


def find_possible_ties(given: ParameterSets) -> Ints:
    """Returns [S, 1] bool: whether the exact sum may be k + 1/2 at a threshold, so that the tie rule matters.

    Conservative: True may be returned without need.
    """
    rounds = given.shift > 0
    if len(given.operands) > 1:
        return rounds
    ends = given.result_ends()
    moving = (ends[:, :1] < ends[:, 1:]) & rounds
    part = given.select(moving[:, 0])
    if part.size:
        near = compute_end_thresholds(part).astype(object) + part.offsets[0].astype(object)
        # The factor is odd, so ties are at the odd multiples of 2^(shift - 1).
        unit = part.shift.astype(object) - 1
        first = -(-(near[:, :1] - 1) >> unit) | 1
        moving[moving] = ((first << unit) <= near[:, 1:])[:, 0]
    return moving


def enumerate_pairs(given: ParameterSets) -> list[Ints]:
    """Returns all combinations of the values of two operands, as two arrays [1, combinations]."""
    axes = [np.arange(low, high + 1) for low, high in given.operands]
    return [axis.reshape(1, -1) for axis in np.meshgrid(*axes, indexing="ij")]


def _pairs(given: ParameterSets) -> SlackSamples | None:
    operands = enumerate_pairs(given)
    results = given.results(operands)
    if (results.min(axis=1) == results.max(axis=1)).any():
        return None
    sums = [x + offset for x, offset in zip(operands, given.offsets, strict=True)]
    # Results at the clamp impose no condition; the pair at the other end of the range, which does, replaces them.
    rising, falling = results > given.low, results < given.high
    above = [np.where(rising, x, x[:, -1:]) for x in sums]
    below = [np.where(falling, x, x[:, :1]) for x in sums]
    reached = np.where(rising, results, results[:, -1:]) - given.zero_point
    missed = np.where(falling, results, results[:, :1]) + 1 - given.zero_point
    return SlackSamples(np.ones(given.size, bool), above, reached, below, missed)
