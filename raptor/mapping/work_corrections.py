"""Corrects the planned work of layers, loaders and products by what is evaluated with their cores in place."""

from collections import Counter
from collections.abc import Mapping

from raptor.mapping.decision import Decision, LineFlow, LineUnfolding
from raptor.mapping.row_mapping import PlannedDecision

LARGEST_CORRECTION = 32.0
"""Largest correction of the work of a layer, up or down."""


def next_corrections(
    corrections: Mapping[str, float], planned: PlannedDecision, busy_ns: Mapping[int, float]
) -> dict[str, float]:
    """Returns corrections that make the planned work of each layer, loader and product that of its busiest core.

    `corrections`: by which the decision was planned. `busy_ns`: evaluated work of each core.
    """
    planned_ns = Counter[int]()
    cores = {key: _placed_cores(planned.decision, key) for key, ns in planned.planned_ns.items() if ns > 0}
    for key, own in cores.items():
        planned_ns.update(dict.fromkeys(own, planned.planned_ns[key]))
    found: dict[str, float] = {}
    for key, own in cores.items():
        if own:
            factor = corrections.get(key, 1.0) * max(busy_ns.get(core, 0.0) / planned_ns[core] for core in own)
            found[key] = min(LARGEST_CORRECTION, max(1 / LARGEST_CORRECTION, factor))
    return found


def _placed_cores(decision: Decision, key: str) -> frozenset[int]:
    """Returns the cores of a layer by line or a product, or the loaders of a tensor."""
    layer = decision.layers.get(key)
    if isinstance(layer, LineUnfolding):
        return frozenset(layer.cores)
    assert isinstance(decision.flow, LineFlow)
    if key in decision.flow.products:
        return frozenset(decision.flow.products[key].cores)
    return frozenset(core for _, core in decision.flow.loaders.get(key, ()))
