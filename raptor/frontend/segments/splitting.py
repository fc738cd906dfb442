"""Predicts where the nodes of a model are computed, without compiling it: on the chip, on the host, or nowhere."""

from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from raptor.common.errors import IncompleteError, UnsupportedError, UnsupportedNode
from raptor.frontend import asking, standard
from raptor.frontend.segments.cutting import BEHIND, Cut, Cutter, Refuse, cut, types_of_interface
from raptor.frontend.segments.host_requests import requested_nodes
from raptor.options import HostOptions, ModelInputs


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes computed in one place, and their multiply-accumulates, except for `uncounted` nodes.

    reasons: one entry for each node that is not on the chip.
    """

    nodes: int
    macs: int
    reasons: tuple[UnsupportedNode, ...] = ()
    uncounted: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """All nodes left after constants and shapes are folded. `cut`: the segments, if nothing is refused."""

    chip: Part
    host: Part
    refused: Part
    cut: Cut | None = None


def split(source: str | Path | ModelProto, inputs: ModelInputs, host: HostOptions, refuse: Refuse) -> Split:
    """Counts the nodes of a model by place of computation. Raises `UserError` as `frontend.survey` does."""
    if host.host or host.by_name:
        try:
            return _of_cut(cut(source, inputs, host, refuse))
        except UnsupportedError:
            if host.host:
                raise
    model = standard.read(source)
    own = types_of_interface(model.proto)
    try:
        cutter = Cutter.of(asking.ask(model, inputs), own, host, refuse)
    except IncompleteError:
        raise
    except UnsupportedError as error:  # an operator that not even onnxruntime knows
        return Split(Part(0, 0), Part(0, 0), Part(len(error.nodes), 0, error.nodes))
    return _of_answers(cutter)


def _of_cut(found: Cut) -> Split:
    chip, host = found.on_chip, [s for s in found.segments if s.kind == "host"]
    return Split(
        Part(sum(len(s.nodes) for s in chip), sum(s.macs for s in chip)),
        Part(len(found.host), sum(s.macs for s in host), found.host, sum(s.uncounted for s in host)),
        Part(0, 0),
        found,
    )


def _of_answers(cutter: Cutter) -> Split:
    """Counts the nodes by the results of their import, if some nodes are refused."""
    named = requested_nodes(cutter.host, cutter.asked)
    reasons = {i: cutter.refusal(i) for i in cutter.flow.placed if i not in named}
    host = [i for i in cutter.flow.placed if i in named]
    refused = [i for i, reason in reasons.items() if reason is not None]
    chip = [i for i, reason in reasons.items() if reason is None]
    return Split(
        _part(cutter, chip, {}), _part(cutter, host, named), _part(cutter, refused, {i: reasons[i] for i in refused})
    )


def _part(cutter: Cutter, nodes: list[int], reasons: dict[int, str] | dict[int, str | None]) -> Part:
    why = (UnsupportedNode(cutter.name(i), cutter.flow.nodes[i].op_type, reasons[i] or BEHIND) for i in reasons)
    macs = [cutter.macs[i] for i in nodes]
    return Part(len(nodes), sum(filter(None, macs)), tuple(why), macs.count(None))
