"""The evaluation of a model's nodes in their order, the same for every number system: float64 and exact integers."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from validator.model.node import ModelNode

V = TypeVar("V")


@dataclass(frozen=True, slots=True, eq=False)
class NodeGraph:
    """The nodes of a graph in order, and for each tensor the index of the node that computes it."""

    nodes: Sequence[ModelNode]
    producers: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "producers", {name: k for k, node in enumerate(self.nodes) for name in node.writes})

    def producer(self, name: str) -> ModelNode | None:
        """Returns the node that computes a tensor; None for inputs and initializers."""
        return self.nodes[self.producers[name]] if name in self.producers else None

    def needed(self, results: Iterable[str], known: Collection[str] = ()) -> tuple[list[ModelNode], list[str]]:
        """Returns the nodes, in order, that compute `results` from `known` tensors, and the known tensors they read."""
        found, sources, waiting = set[int](), dict[str, None](), list(results)
        while waiting:
            name = waiting.pop()
            if name in known:
                sources[name] = None
            elif (k := self.producers.get(name)) is not None and k not in found:
                found.add(k)
                waiting += self.nodes[k].reads
        return [self.nodes[k] for k in sorted(found)], list(sources)


class Interpreter(ABC, Generic[V]):
    """One evaluation of nodes. Subclasses are number systems: they compute nodes, and keep the values of tensors.

    `constants`: values that do not depend on inputs. Evaluations fill them, and compute no constant twice.
    """

    __slots__ = ()
    constants: dict[str, V]

    @abstractmethod
    def compute(self, node: ModelNode, *, constant: bool) -> None:
        """Computes a node, and keeps its results. `constant`: it reads constants only, so they are constants, too."""

    @abstractmethod
    def forget(self, name: str) -> None:
        """Drops the value of a tensor that no other node reads."""

    def evaluate(self, nodes: Sequence[ModelNode], kept: Collection[str]) -> None:
        """Computes nodes in order. Forgets tensors after the last node that reads them, except those in `kept`."""
        last = {name: k for k, node in enumerate(nodes) for name in node.reads}
        for k, node in enumerate(nodes):
            if not self._are_constants(node.writes):
                self.compute(node, constant=self._are_constants(node.reads))
            for name in node.reads:
                if last[name] == k and name not in kept:
                    self.forget(name)

    def _are_constants(self, names: Iterable[str]) -> bool:
        return all(name in self.constants for name in names)
