"""Chooses how a transformer shares the cores: in groups, by chains and attentions, or all cores for everything."""

from collections.abc import Mapping

from raptor.mapping.knobs import Knobs
from raptor.mapping.spread_tokens import spread
from raptor.mapping.token_cores import Stages, TokenCores, apart, in_groups
from raptor.target.arch import Target

MOST_SPREAD = 4
"""Most groups whose cores serve all their layers that are tried. With more, the interval is better in other ways."""


def choose_token_cores(
    stages: Stages, arch: Target, cores: int, knobs: Knobs, layer_ns: Mapping[str, float]
) -> TokenCores | None:
    """Returns the choice with the least product of interval and latency; None if the cores do not suffice.

    The latency counts with the exponent `knobs.latency`. `layer_ns`: time of a sample in each of the other layers. A
    group around some of them (`Stages.breaks`) is occupied for so long, too.

    On several chips, cores do not serve everything together: all that they send each other would cross links, and a
    stage on one chip would keep the next sample waiting. (BERT-base with a stage on each of four chips of 48 cores,
    500 ns a flit: 78.4 samples/s, and 26.6 with it.)
    """
    cuts = stages.cuts()
    found = [in_groups(stages, arch, cores, cut, knobs, layer_ns) for cut in cuts]
    found.append(apart(stages, arch, cores, knobs, layer_ns))
    if arch.chips == 1:
        found += [spread(stages, arch, cores, cut, knobs, layer_ns) for cut in cuts if len(cut) <= MOST_SPREAD]
    fitting = [choice for choice in found if choice is not None]
    return min(fitting, key=lambda c: c.interval_ns * c.latency_ns**knobs.latency, default=None)
