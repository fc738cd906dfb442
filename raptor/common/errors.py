"""The three kinds of errors that the public API raises.

`UserError`        the model, an option, the chip or a directory is at fault; says what to change. Exit status 2.
`UnsupportedError` the model uses operators RAPTOR does not lower; lists every one of them. Exit status 2.
`InternalError`    RAPTOR itself is at fault; keeps the cause. Exit status 70 (EX_SOFTWARE).
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raptor.common.option_spelling import is_spelled_as_flags


class RaptorError(Exception):
    """Base of all errors that RAPTOR raises on purpose. Copying and pickling (as process pools do) lose nothing."""

    exit_status = 2

    def __reduce__(self) -> tuple[Any, ...]:
        # NOTE: Python would call the class with the message alone, but subclasses have other arguments.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[RaptorError], args: tuple[Any, ...], attributes: dict[str, Any]) -> RaptorError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class UserError(RaptorError):
    """The user's model, option, chip or directory is at fault."""


class IncompleteError(UserError):
    """Sizes or values of model inputs are not specified. The message names them and the options that set them."""

    def __init__(self, found: str, options: Sequence[str]) -> None:
        """Takes the message `found`, and `options`: flags and values in turn, with placeholders such as SIZE."""
        self.found, self.options = found, tuple(options)
        super().__init__(found, self.options)

    def __str__(self) -> str:
        return f"{self.found}\ngive them with {shlex.join(self.options) if is_spelled_as_flags() else self.keywords}"

    @property
    def keywords(self) -> str:
        """The options as Python keyword arguments: `dims={'H': SIZE}`."""
        given: dict[str, list[str]] = {}
        for flag, text in zip(self.options[::2], self.options[1::2], strict=True):
            name, _, value = text.rpartition("=")
            given.setdefault(flag, []).append(f"{name!r}: {f'({value})' if ',' in value else value}")
        keywords = {"--shape": "shapes", "--dim": "dims", "--set": "constants"}
        return ", ".join(f"{keywords[flag]}={{{', '.join(entries)}}}" for flag, entries in given.items())


class CapacityError(UserError):
    """The chip is too small. The message states the needed and the available amount, and possible changes."""

    def __init__(
        self,
        resource: str,
        needed: int,
        available: int,
        *,
        where: str,
        levers: Sequence[str],
        without: str = "",
        crossbars: int | None = None,
    ) -> None:
        """Takes `levers`, complete suggestions such as `--cores 12`, and `without`, one that needs no larger chip.

        `where` names the part of the model or chip. `crossbars`: number that all weights need, if they do not fit.
        """
        self.resource, self.needed, self.available, self.crossbars = resource, needed, available, crossbars
        self.where, self.levers, self.without = where, tuple(levers), without
        ways = " or ".join((*levers, without) if without else levers)
        super().__init__(f"{where}: {resource}: need {needed}, have {available}; try {ways}")


class DeadLinkError(CapacityError):
    """Messages of a program cross dead links of the chip at all places of its cores that were tried."""


@dataclass(frozen=True, slots=True)
class UnsupportedNode:
    """One ONNX node that cannot be lowered, and the reason.

    `needs`: inputs of the node that are computed; with constants in their place, it may be possible to lower it.
    """

    node: str
    op_type: str
    reason: str
    computed_inputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.node} ({self.op_type}): {self.reason}"


MAX_SHOWN_NODES = 200
"""Largest number of nodes in the message of an `UnsupportedError`; its `nodes` has all of them."""


class UnsupportedError(UserError):
    """Some nodes of the model cannot be lowered; all of them are listed."""

    def __init__(self, nodes: Sequence[UnsupportedNode], advice: str = "") -> None:
        """Takes `advice`, a last sentence of the message."""
        self.nodes = tuple(nodes)
        count = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
        shown = [f"  {node}" for node in nodes[:MAX_SHOWN_NODES]]
        more = [f"  and {len(nodes) - MAX_SHOWN_NODES} more"] if len(nodes) > MAX_SHOWN_NODES else []
        lines = [f"{count} cannot be compiled:", *shown, *more, *([advice] if advice else [])]
        super().__init__("\n".join(lines))


class InternalError(RaptorError):
    """A bug in RAPTOR."""

    exit_status = 70


class VerifyError(InternalError):
    """An intermediate form breaks one of its invariants (docs/developers/architecture.md)."""
