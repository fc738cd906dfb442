"""Chooses how a transformer uses the cores: in groups, apart for each chain and attention, or all for everything."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache

from raptor.mapping.allocation.core_division import CoreDivision
from raptor.mapping.knobs import TuningKnobs
from raptor.mapping.transformer.spread_tokens import spread_groups
from raptor.mapping.transformer.token_cores import TokenCores, TokenStages, group_stages, separate_stages
from raptor.target.arch import Target

GROUPED, APART, SPREAD = 2, 3, 4
"""Values of `TuningKnobs.chains` for one way alone."""

MOST_SPREAD_GROUPS = 4
"""Largest number of groups for which `spread` is tried; with more groups, the other choices have better intervals."""

MOST_FAILURES = 2
"""Number of divisions in a row, each no better than the best one, after which the search for a division ends."""


def choose_division(
    stages: TokenStages, division: CoreDivision, arch: Target, knobs: TuningKnobs
) -> tuple[CoreDivision, TokenCores] | None:
    """Divides the cores between a transformer and all layers and inputs beside it; None if the chip is too small.

    division: of the layers and inputs, with the fewest cores. Their slowest unit gets more cores step by step, and the
    number of steps with the least interval * latency^`knobs.latency` is searched. The time of the slowest unit counts
    in both. Returns the division, and the cores of the transformer.
    """
    divisions = [*_grow_slowest(division, arch.usable_cores)]
    if not divisions:
        return None

    @cache
    def token_cores_beside(number: int) -> TokenCores | None:
        options = divisions[number].chosen_options
        layer_ns = {key: option.core_ns for option in options for key in option.plans}
        return choose_token_cores(stages, arch, arch.usable_cores - divisions[number].cores, knobs, layer_ns)

    def division_cost(number: int) -> float:
        slowest_ns, found = divisions[number].slowest_ns, token_cores_beside(number)
        if found is None:
            return math.inf
        return max(found.interval_ns, slowest_ns) * (found.latency_ns + slowest_ns) ** knobs.latency

    def is_slower(number: int) -> bool:
        found = token_cores_beside(number)
        return found is None or divisions[number].slowest_ns < found.interval_ns

    best = find_least(len(divisions), division_cost, is_slower)
    found = token_cores_beside(best)
    return None if found is None else (divisions[best], found)


def _grow_slowest(division: CoreDivision, cores: int) -> Iterator[CoreDivision]:
    """Yields `division`, then divisions in which the slowest unit gets more cores each time, below `cores` in all."""
    found: CoreDivision | None = division
    while found is not None and found.cores < cores:
        yield found
        found = found.with_faster_unit()


def find_least(count: int, cost: Callable[[int], float], is_past: Callable[[int], bool]) -> int:
    """Returns a number from 0 to `count - 1` with a small cost: of 0, 1, 2, 4, 8, ..., then between the best ones.

    It has the least cost if costs first fall, then rise. `is_past`: whether no larger number is tried if this one and
    some before it were not better (`MOST_FAILURES`).
    """
    best, failures, number = 0, 0, 1
    while number < count and not (failures >= MOST_FAILURES and is_past(number // 2)):
        best, failures = (number, 0) if cost(number) < cost(best) else (best, failures + 1)
        number *= 2
    stride = best // 2
    while stride:
        best = min((each for each in (best, best - stride, best + stride) if each < count), key=cost)
        stride //= 2
    return best


def choose_token_cores(
    stages: TokenStages, arch: Target, cores: int, knobs: TuningKnobs, layer_ns: Mapping[str, float]
) -> TokenCores | None:
    """Returns the choice with the least interval * latency^`knobs.latency`; None if the cores do not suffice.

    All three ways are compared, unless `knobs.chains` names one.

    `layer_ns`: time of a sample in each of the other layers, which also occupies a group around them
    (`TokenStages.breaks`).

    On several chips, `spread` is not tried: all its traffic would cross links, and a stage on one chip would keep the
    next sample waiting. (BERT-base with a stage on each of four chips of 48 cores,
    500 ns a flit: 78.4 samples/s, and 26.6 with it.)
    """
    cuts, found = stages.cuts(), list[TokenCores | None]()
    if knobs.chains not in (APART, SPREAD):
        found += [group_stages(stages, arch, cores, cut, knobs, layer_ns) for cut in cuts]
    if knobs.chains not in (GROUPED, SPREAD):
        found.append(separate_stages(stages, arch, cores, knobs, layer_ns))
    if knobs.chains not in (GROUPED, APART) and arch.chips == 1:
        found += [
            spread_groups(stages, arch, cores, cut, knobs, layer_ns) for cut in cuts if len(cut) <= MOST_SPREAD_GROUPS
        ]
    fitting = [choice for choice in found if choice is not None]
    return min(fitting, key=lambda c: c.interval_ns * c.latency_ns**knobs.latency, default=None)
