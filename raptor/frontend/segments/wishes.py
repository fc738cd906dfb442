"""The user's requests to run nodes on the host."""

from collections.abc import Sequence
from dataclasses import dataclass

from raptor.common.errors import UserError
from raptor.common.spelling import option
from raptor.frontend.asking import Asked


@dataclass(frozen=True, slots=True)
class Wishes:
    """Host requests. needed: all nodes that the chip cannot compute.

    ops, nodes: further ones, by operator or node name.
    """

    needed: bool = False
    ops: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def by_name(self) -> bool:
        """True if nodes or operators are named."""
        return bool(self.ops or self.nodes)

    def reasons(self, asked: Asked) -> dict[int, str]:
        """Returns the options that name each node, keyed by the node's index.

        Raises `UserError` for a name that no node has after constants and shapes are folded.
        """
        nodes = asked.proto.graph.node
        by_op = {i: option("host_ops", n.op_type) for i, n in enumerate(nodes) if n.op_type in self.ops}
        by_name = {i: option("host_nodes", a.name) for i, a in enumerate(asked.answers) if a.name in self.nodes}
        _check("host_ops", self.ops, {n.op_type for n in nodes})
        _check("host_nodes", self.nodes, {a.name for a in asked.answers})
        return {
            i: ", ".join(found[i] for found in (by_op, by_name) if i in found) for i in by_op.keys() | by_name.keys()
        }


def _check(keyword: str, given: Sequence[str], known: set[str]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        shown = sorted(known)
        more = f", ... ({len(shown)} in all)" if len(shown) > _SHOWN else ""
        there = f"{', '.join(shown[:_SHOWN])}{more}" if shown else "none"
        raise UserError(
            f"{option(keyword, unknown[0])}: no such node is left after constants and shapes are computed; there are: "
            f"{there}"
        )


_SHOWN = 12
