"""A decoder as steps: which states grow by a row a step, and which inputs follow from the number of the step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from raptor.graph.residency import StatePair

DerivedKind = Literal["ones", "position", "length"]
"""Values of an input at position P: `ones`, P + 1 of them; `position`, the number P; `length`, the number P + 1."""


@dataclass(frozen=True, slots=True)
class GrowingState:
    """A state to which each step appends a row along `axis`: the model's `output` is its `input` and one row more.

    The program holds the axes of the model in the order `permutation`, where a row is a column or a line. `rows`: size
    of a state that does not grow in the model, where the step at position P writes row P modulo `rows`; None otherwise.
    """

    input: str
    output: str
    axis: int
    permutation: tuple[int, ...]
    rows: int | None = None

    @property
    def stored_axis(self) -> int:
        """The axis of the program's tensor along which the state grows."""
        return self.permutation.index(self.axis)


@dataclass(frozen=True, slots=True)
class StackedState:
    """A state of the model that the program holds as several: `parts`, along the first axis of `input` and `output`."""

    input: str
    output: str
    parts: tuple[StatePair, ...]


@dataclass(frozen=True, slots=True)
class DerivedInput:
    """An input that the position determines. `shape`: at the last position. `dtype`: numpy's name of its type."""

    name: str
    kind: DerivedKind
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class DecoderSteps:
    """The steps of a decoder, each a run of a program of fixed size.

    The program holds the last `capacity` rows of each state, or as many as the state has in the model, the newest at
    the end. It reads the position, 0 to capacity - 1, from its input `position` ([1], int64), in place of the `derived`
    inputs. It masks the rows at the beginning that no step has appended. A state of the model that is one of `stacks`
    is several states of the program.
    """

    capacity: int
    position: str
    states: tuple[GrowingState, ...]
    derived: tuple[DerivedInput, ...]
    stacks: tuple[StackedState, ...] = ()
    cache_nodes: tuple[str, ...] = ()
    """Nodes of the step that compute with caches, or with what has a value for each of their rows."""

    def split_pairs(self, pairs: Mapping[str, str]) -> Mapping[str, str]:
        """Returns states, output by input, as the program has them. `pairs`: as the model does, or `AUTOMATIC`."""
        return split_pairs(self.stacks, pairs)


def split_pairs(stacks: Sequence[StackedState], pairs: Mapping[str, str]) -> Mapping[str, str]:
    """Returns pairs of states with the parts of stacked ones in their places."""
    parts = {stack.input: stack for stack in stacks if pairs.get(stack.input) == stack.output}
    if not parts:
        return pairs
    found = {name: output for name, output in pairs.items() if name not in parts}
    return found | {part.input: part.output for stack in parts.values() for part in stack.parts}
