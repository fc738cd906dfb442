"""Chooses how a transformer uses the cores: in groups, apart for each chain and attention, or all for everything."""

from collections.abc import Mapping

from raptor.mapping.knobs import TuningKnobs
from raptor.mapping.transformer.spread_tokens import spread_groups
from raptor.mapping.transformer.token_cores import TokenCores, TokenStages, group_stages, separate_stages
from raptor.target.arch import Target

GROUPED, APART, SPREAD = 2, 3, 4
"""Values of `TuningKnobs.chains` for one way alone."""

MOST_SPREAD_GROUPS = 4
"""Largest number of groups for which `spread` is tried; with more groups, the other choices have better intervals."""


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
