"""Plans of layers are made once for cores of one kind."""

import models
from raptor.frontend import load
from raptor.graph.ir import Filter
from raptor.mapping.knobs import DEFAULT_KNOBS
from raptor.mapping.modes.plan_cache import PlanCache, plan_layers
from raptor.options import ChipOptions
from raptor.target.arch import load_chip
from raptor.transforms.tokens.lay_out_tokens import lay_out_tokens
from tests.recurrent_models import recurrent


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


def test_products_of_all_steps_of_a_batch_count() -> None:
    """A core multiplies its elements of the batch in each step: twice as many steps, twice the work of products."""
    chip = load_chip(ChipOptions(arch="bench", cores=24))
    works: list[float] = []
    for steps in (5, 9):
        graph = lay_out_tokens(load(recurrent("RNN", sizes=(steps, 12, 6, 16))).graph)
        keys = {n.operator.key for n in graph.nodes if isinstance(n.operator, Filter) and n.operator.key}
        (plans,) = (found for key, found in plan_layers(graph, chip, DEFAULT_KNOBS).items() if key in keys)
        works.append(plans[0].products_ns)
    assert works[1] == 2 * works[0]
