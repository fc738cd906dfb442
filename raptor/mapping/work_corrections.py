"""Corrects the planned work of layers, loaders and products by what is evaluated with their cores in place."""

from collections import Counter
from collections.abc import Mapping

from raptor.mapping.decision import Decision, LineFlow, LineUnfolding
from raptor.mapping.evaluation.evaluate import WorkBounds
from raptor.mapping.row_mapping import PlannedDecision

LARGEST_CORRECTION = 32.0
"""Largest correction of the work of a layer, up or down."""


def next_corrections(
    corrections: Mapping[str, float], planned: PlannedDecision, bounds: WorkBounds
) -> dict[str, float]:
    """Returns corrections by which planned work becomes evaluated work, for each layer, product and input.

    The planned work of a layer, a product or the loaders of an input becomes the work of their busiest core. The
    planned time of an input without loaders becomes the time for which the port of global memory is busy. This also
    corrects the guess of how many cores read an input, which plans with loaders depend on. `corrections`: by which the
    decision was planned. `bounds`: evaluated work of the decision.
    """
    planned_ns, port_ns = Counter[int](), 0.0
    cores = {key: _placed_cores(planned.decision, key) for key, ns in planned.planned_ns.items() if ns > 0}
    for key, own in cores.items():
        planned_ns.update(dict.fromkeys(own, planned.planned_ns[key]))
        port_ns += 0.0 if own else planned.planned_ns[key]
    found: dict[str, float] = {}
    for key, own in cores.items():
        shares = [bounds.busy_ns.get(core, 0.0) / planned_ns[core] for core in own] or [bounds.port_ns / port_ns]
        factor = corrections.get(key, 1.0) * max(shares)
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
