"""Values that stay on the chip between two samples.

Each core of the simulator loops over its own stream, and its local memory stays as it is. So a value that is written
once may be read for every later sample.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Residency:
    """The values of a model that stay in local memory from one sample to the next.

    constants: constants, tables and biases are loaded once after power-up, as far as they fit, and not for each sample.
    """

    constants: bool = False

    @property
    def is_empty(self) -> bool:
        """True if a program forgets everything between two samples."""
        return self == NOTHING_RESIDENT


NOTHING_RESIDENT = Residency()
