"""A decoder as steps: which states grow by a row a step, and which inputs follow from the number of the step."""

from dataclasses import dataclass
from typing import Literal

DerivedKind = Literal["ones", "position", "length"]
"""Values of an input at position P: `ones`, P + 1 of them; `position`, the number P; `length`, the number P + 1."""


@dataclass(frozen=True, slots=True)
class GrowingState:
    """A state to which each step appends a row along `axis`: the model's `output` is its `input` and one row more.

    The program holds the axes of the model in the order `permutation`, where a row is a column or a line.
    """

    input: str
    output: str
    axis: int
    permutation: tuple[int, ...]

    @property
    def stored_axis(self) -> int:
        """The axis of the program's tensor along which the state grows."""
        return self.permutation.index(self.axis)


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

    The program holds the last `capacity` rows of each state, the newest at the end, and reads the position, 0 to
    capacity - 1, from its input `position` ([1], int64), in place of the `derived` inputs. It masks the rows at the
    beginning that no step has appended.
    """

    capacity: int
    position: str
    states: tuple[GrowingState, ...]
    derived: tuple[DerivedInput, ...]
