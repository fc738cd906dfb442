"""Nodes that the user puts on the host by name."""

from collections.abc import Sequence

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.frontend.support_query import QueriedModel
from raptor.options import HostOptions


def find_requested_nodes(host: HostOptions, asked: QueriedModel) -> dict[int, str]:
    """Returns the nodes that the user names, by their index, with the options that name them.

    Raises `UserError` for a name without a node after constants and shapes are folded.
    """
    nodes = asked.proto.graph.node
    by_op = {i: spell_option("host_ops", n.op_type) for i, n in enumerate(nodes) if n.op_type in host.host_ops}
    by_name = {i: spell_option("host_nodes", a.name) for i, a in enumerate(asked.answers) if a.name in host.host_nodes}
    _check("host_ops", host.host_ops, {n.op_type for n in nodes})
    _check("host_nodes", host.host_nodes, {a.name for a in asked.answers})
    return {i: ", ".join(found[i] for found in (by_op, by_name) if i in found) for i in by_op.keys() | by_name.keys()}


def _check(keyword: str, given: Sequence[str], known: set[str]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        shown = sorted(known)
        more = f", ... ({len(shown)} in all)" if len(shown) > _SHOWN else ""
        there = f"{', '.join(shown[:_SHOWN])}{more}" if shown else "none"
        raise UserError(
            f"{spell_option(keyword, unknown[0])}: no such node is left after constants and shapes are computed; there "
            f"are: "
            f"{there}"
        )


_SHOWN = 12
