"""Plans of layers are made once for cores of one kind."""

import models
from raptor.frontend import load
from raptor.mapping.knobs import DEFAULT_KNOBS
from raptor.mapping.modes.plan_cache import PlanCache, plan_layers
from raptor.options import ChipOptions
from raptor.target.arch import load_chip


def test_fewer_cores_have_the_same_plans_but_for_fine_cuts() -> None:
    """Plans for few cores are taken from those for many, whichever were asked for first."""
    few, many = (load_chip(ChipOptions(arch="bench", cores=cores)) for cores in (24, 90))
    graph = load(models.build("resnet18", image_size=64)).graph
    both, alone, after = PlanCache(), PlanCache(), PlanCache()
    plan_layers(graph, many, DEFAULT_KNOBS, cache=both)
    plan_layers(graph, few, DEFAULT_KNOBS, cache=after)
    found = plan_layers(graph, few, DEFAULT_KNOBS, cache=both)
    assert found == plan_layers(graph, few, DEFAULT_KNOBS, cache=alone)
    assert plan_layers(graph, many, DEFAULT_KNOBS, cache=after) == plan_layers(graph, many, DEFAULT_KNOBS, cache=both)
    assert max(len(plan.grid.cols) for plans in found.values() for plan in plans) <= few.usable_cores
