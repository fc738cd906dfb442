"""Predicts where the nodes of a model are computed, without compiling it: on the chip, on the host, or nowhere."""

from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from raptor.common.errors import IncompleteError, UnsupportedError, UnsupportedNode
from raptor.frontend import support_query
from raptor.frontend.canonical import standardise
from raptor.frontend.segments.cut_model import (
    READS_HOST,
    ModelCutter,
    Refuse,
    SegmentedModel,
    cut_model,
    read_interface_types,
)
from raptor.frontend.segments.host_requests import find_requested_nodes
from raptor.options import HostOptions, ModelInputs


@dataclass(frozen=True, slots=True)
class PlacedNodes:
    """Nodes computed in one place, and their multiply-accumulates, except for `uncounted` nodes.

    reasons: one entry for each node that is not on the chip.
    """

    nodes: int
    macs: int
    reasons: tuple[UnsupportedNode, ...] = ()
    uncounted: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class PlacementSplit:
    """All nodes left after constants and shapes are folded. `cut`: the segments, if nothing is refused."""

    chip: PlacedNodes
    host: PlacedNodes
    refused: PlacedNodes
    cut: SegmentedModel | None = None


def predict_split(
    source: str | Path | ModelProto, inputs: ModelInputs, host: HostOptions, refuse: Refuse
) -> PlacementSplit:
    """Counts the nodes of a model by place of computation. Raises `UserError` as `frontend.survey` does."""
    if host.host or host.has_named_nodes:
        try:
            return _of_cut(cut_model(source, inputs, host, refuse))
        except UnsupportedError:
            if host.host:
                raise
    model = standardise.read_standard_model(source)
    own = read_interface_types(model.proto)
    try:
        cutter = ModelCutter.for_model(support_query.query_support(model, inputs), own, host, refuse)
    except IncompleteError:
        raise
    except UnsupportedError as error:  # an operator that not even onnxruntime knows
        return PlacementSplit(PlacedNodes(0, 0), PlacedNodes(0, 0), PlacedNodes(len(error.nodes), 0, error.nodes))
    return _of_answers(cutter)


def _of_cut(found: SegmentedModel) -> PlacementSplit:
    chip, host = found.on_chip, [s for s in found.segments if s.kind == "host"]
    return PlacementSplit(
        PlacedNodes(sum(len(s.nodes) for s in chip), sum(s.macs for s in chip)),
        PlacedNodes(len(found.host), sum(s.macs for s in host), found.host, sum(s.uncounted for s in host)),
        PlacedNodes(0, 0),
        found,
    )


def _of_answers(cutter: ModelCutter) -> PlacementSplit:
    """Counts the nodes by the results of their import, if some nodes are refused."""
    named = find_requested_nodes(cutter.host, cutter.asked)
    reasons = {i: cutter.find_refusal(i) for i in cutter.flow.placed_nodes if i not in named}
    host = [i for i in cutter.flow.placed_nodes if i in named]
    refused = [i for i, reason in reasons.items() if reason is not None]
    chip = [i for i, reason in reasons.items() if reason is None]
    return PlacementSplit(
        _part(cutter, chip, {}), _part(cutter, host, named), _part(cutter, refused, {i: reasons[i] for i in refused})
    )


def _part(cutter: ModelCutter, nodes: list[int], reasons: dict[int, str] | dict[int, str | None]) -> PlacedNodes:
    why = (
        UnsupportedNode(cutter.node_name(i), cutter.flow.nodes[i].op_type, reasons[i] or READS_HOST) for i in reasons
    )
    macs = [cutter.macs[i] for i in nodes]
    return PlacedNodes(len(nodes), sum(filter(None, macs)), tuple(why), macs.count(None))
