"""Values that stay on the chip between two samples.

Each core of the simulator loops over its own stream, and its local memory stays as it is. So a value that is written
once may be read for every later sample.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StatePair:
    """A state: the next sample reads the value of the model's `output` as its `input`."""

    input: str
    output: str

    def __str__(self) -> str:
        return f"{self.input}={self.output}"


@dataclass(frozen=True, slots=True)
class Residency:
    """The values of a model that stay in local memory from one sample to the next.

    constants: constants, tables and biases are loaded once after power-up, as far as they fit, and not for each sample.
    states: inputs whose value the program itself makes, for the next sample.
    """

    constants: bool = False
    states: tuple[StatePair, ...] = ()
    state_inputs: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The inputs that are states."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "state_inputs", tuple(pair.input for pair in self.states))

    @property
    def state_outputs(self) -> tuple[str, ...]:
        """The outputs that become states, and leave the chip no more."""
        return tuple(pair.output for pair in self.states)


NOTHING_RESIDENT = Residency()
