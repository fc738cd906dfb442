"""Sentences of `raptor explain` about values that could stay on the chip between two samples."""

from collections.abc import Iterator

import numpy as np

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.common.options.option_texts import AUTOMATIC
from raptor.frontend.state_pairs import find_states
from raptor.graph.ir import Graph
from raptor.mapping.decision import Flow, LineFlow
from raptor.spatial.placed_graph import Partition
from raptor.target.arch import Target
from raptor.target.timing import global_port_ns
from validator.simulate.simulation_report import time_text

WORTH_TELLING = 0.05
"""Least share of the interval for which constants occupy the port of global memory that is worth a sentence."""
WORTH_OVERLAPPING = 0.1
"""Least share of the interval for which the fullest core waits that is worth a sentence."""
OVERLAP = 4
"""Number of samples at once that is recommended; more stages rarely gain."""


def advise_memory(
    graph: Graph, partition: Partition, arch: Target, times_ns: tuple[float, float, float, float]
) -> Iterator[str]:
    """Yields a sentence for each kind of values that could stay on the chip.

    times_ns: latency, interval, time of the port of global memory, and least interval without waiting.
    """
    latency_ns, interval_ns, port_ns, least_ns = times_ns
    loads_ns = 0.0 if graph.residency.constants else constant_loads_ns(partition, arch)
    if loads_ns > WORTH_TELLING * interval_ns:
        yield (
            f"Constants are loaded for each sample, for {time_text(loads_ns)} of the {time_text(port_ns)} in which the "
            f"port of global memory is busy: {spell_option('resident_constants', True)} loads them once."
        )
    if states := _unkept_states(graph):
        yield (
            f"{states} can stay on the chip: {spell_option('states')} auto. A step then waits for the step before only "
            f"where it needs it: this mapping would allow a step each {time_text(least_ns)}. Through the host it waits "
            f"for the whole latency, {time_text(latency_ns)}, which is {latency_ns / least_ns:.1f} times as long."
        )


def advise_overlap(graph: Graph, flow: Flow, interval_ns: float, least_ns: float) -> Iterator[str]:
    """Yields advice to overlap samples if cores wait within each sample. `least_ns`: interval in ns without waiting."""
    refused = graph.residency.states or graph.arithmetic == "mixed"
    if not isinstance(flow, LineFlow) or not flow.streamed or flow.stages is not None or refused:
        return
    gain = 1 - least_ns / interval_ns
    if gain > WORTH_OVERLAPPING:
        yield (
            f"Cores wait inside each sample: {spell_option('overlap', OVERLAP)} tries programs in which they work on "
            f"the next one meanwhile. The interval may become shorter by {gain:.0%} at most."
        )


def constant_loads_ns(partition: Partition, arch: Target) -> float:
    """Returns the time in ns for which loads of constants occupy the port of global memory for each sample."""
    flow = partition.graph.dataflow
    if not len(flow.use_constant):
        return 0.0
    core = np.array(partition.cores, np.int64)[flow.op_compute[flow.use_op]]
    content = {constant.values.tobytes(): number for number, constant in enumerate(flow.constants)}
    number = np.array([content[constant.values.tobytes()] for constant in flow.constants])[flow.use_constant]
    pairs: list[list[int]] = np.unique(np.stack([core, number], axis=1), axis=0).tolist()
    constants = (flow.constants[k] for _, k in pairs)
    return sum(global_port_ns(arch.with_element(one.element), one.elements) for one in constants)


def _unkept_states(graph: Graph) -> str:
    """Names the states of a graph that are recognised, and leave the chip; empty without any."""
    if graph.residency.states:
        return ""
    try:
        return ", ".join(map(str, find_states(graph, AUTOMATIC)))
    except UserError:
        return ""
