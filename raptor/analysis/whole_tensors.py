"""Lists the tensors that a program by line puts together or cuts, and the time that this takes."""

from dataclasses import dataclass

from raptor import pipeline
from raptor.driver import Driver
from raptor.graph.ir import Graph
from raptor.mapping.decision import ByLine, Decision
from raptor.spatial import Partition
from raptor.spatial.costs import Costs
from raptor.target.arch import Target


@dataclass(frozen=True, slots=True)
class WholeTensor:
    """A streamed tensor that is put together, or a whole one that is cut into lines.

    tensor, node: its name, and the ONNX node that makes it. work_ns: estimated time of the moves, without messages.
    """

    tensor: str
    node: str
    work_ns: float


def whole_tensors(graph: Graph, decision: Decision, arch: Target) -> tuple[WholeTensor, ...]:
    """Returns the tensors that the mapping of a prepared graph puts together or cuts, most work first."""
    if not isinstance(decision.flow, ByLine):
        return ()
    cut = pipeline.run(graph, decision, arch, driver=Driver(verified=False), upto="partition")[Partition].graph
    costs = Costs(arch, cut.filters)
    work_ns: dict[str, float] = {}
    for compute in cut.computes:
        # The lowering by line marks its own moves so (`raptor.spatial.lower_lines`); one pixel is no whole image.
        if compute.op_type == "Move" and cut.tensors[compute.layer].image.rows > 1:
            work_ns[compute.layer] = work_ns.get(compute.layer, 0.0) + costs.work_ns(compute)
    most_first = sorted(work_ns.items(), key=lambda item: -item[1])
    return tuple(WholeTensor(name, cut.tensors[name].node, ns) for name, ns in most_first)
