"""The three kinds of failure, and nothing else, that leave the public API.

`UserError`        the model, an option, the chip or a directory is at fault; says what to change. Exit status 2.
`UnsupportedError` the model uses operators RAPTOR does not lower; lists every one of them. Exit status 2.
`InternalError`    RAPTOR itself is at fault; keeps the cause. Exit status 70 (EX_SOFTWARE).
"""

from collections.abc import Sequence
from dataclasses import dataclass


class RaptorError(Exception):
    """Base of everything RAPTOR raises on purpose."""

    exit_status = 2


class UserError(RaptorError):
    """The user's model, option, chip or directory is at fault."""


class CapacityError(UserError):
    """The chip is too small: how much is needed, how much there is, and what would help."""

    def __init__(self, resource: str, needed: int, available: int, *, where: str, levers: Sequence[str]) -> None:
        """`levers` are complete suggestions, such as `--cores 12`."""
        self.resource, self.needed, self.available = resource, needed, available
        self.where, self.levers = where, tuple(levers)
        super().__init__(f"{where}: {resource}: need {needed}, have {available}; try {' or '.join(levers)}")


@dataclass(frozen=True, slots=True)
class UnsupportedNode:
    """One ONNX node that cannot be lowered, and why.

    `needs`: computed inputs that might as well be constants, and with which it might be lowered.
    """

    node: str
    op_type: str
    reason: str
    needs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.node} ({self.op_type}): {self.reason}"


class UnsupportedError(UserError):
    """Some nodes of the model cannot be lowered; all of them are listed."""

    def __init__(self, nodes: Sequence[UnsupportedNode]) -> None:
        self.nodes = tuple(nodes)
        count = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
        super().__init__("\n".join([f"{count} cannot be compiled:", *(f"  {node}" for node in nodes)]))


class InternalError(RaptorError):
    """A bug in RAPTOR."""

    exit_status = 70


class VerifyError(InternalError):
    """An intermediate form breaks one of its invariants (docs/design.md)."""
