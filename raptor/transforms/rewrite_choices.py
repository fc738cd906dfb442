"""The choice of graph rewrites: which layers get no matrices of their own, and whether tensors stream."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from raptor.common.files.schema_types import StrictDataclass


@dataclass(frozen=True, slots=True)
class OnVectorUnit(StrictDataclass):
    """A depthwise layer without crossbars: the core that holds its input computes it with vector products."""

    kind: Literal["vector"] = "vector"


@dataclass(frozen=True, slots=True)
class JoinedLayer(StrictDataclass):
    """A layer that the products of another `layer` compute, too: both multiply the same pixels, or by the same weights.

    `layer`: the key of the other one, whose record is for both: their output channels side by side, their sum, or
    the tokens of both.
    """

    layer: str
    kind: Literal["joined"] = "joined"


WithoutMatrices = OnVectorUnit | JoinedLayer


@dataclass(frozen=True, slots=True)
class RewriteChoice:
    """The choice of rewrites. A mapping file holds it too: `raptor.mapping.decision.Decision.rewrites`.

    `streaming`: all tensors get layouts that can stream line by line. `turned`: so do high images by their columns.
    `layers`: every layer of the graph before the rewrites, by key and in the order of the graph; None for a layer with
    matrices of its own.
    """

    streaming: bool
    layers: Mapping[str, WithoutMatrices | None]
    turned: bool = False

    @property
    def on_vector_unit(self) -> set[str]:
        """The keys of the layers that the vector unit computes."""
        return {key for key, record in self.layers.items() if isinstance(record, OnVectorUnit)}

    @property
    def joined(self) -> dict[str, JoinedLayer]:
        """The layers that the products of other layers compute, by key."""
        return {key: record for key, record in self.layers.items() if isinstance(record, JoinedLayer)}

    def with_records(self, records: Mapping[str, WithoutMatrices]) -> "RewriteChoice":
        """Returns the choice with `records` of further layers without matrices of their own."""
        return replace(self, layers={**self.layers, **records})

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        turned = ", high images turned" if self.turned else ""
        yield f"rewrites {{{'streamed by line' if self.streaming else 'not streamed'}{turned}}}"
        for key, record in self.layers.items():
            yield f"  %{key}: {'crossbars' if record is None else describe_record(record)}"


def describe_record(record: WithoutMatrices) -> str:
    """Returns the text of a layer without matrices of its own."""
    return "on the vector unit" if isinstance(record, OnVectorUnit) else f"joined with %{record.layer}"
