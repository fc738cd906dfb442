"""The three kinds of errors that the public API raises; it raises no others.

`UserError`        the model, an option, the chip or a directory is at fault; says what to change. Exit status 2.
`UnsupportedError` the model uses operators RAPTOR does not lower; lists every one of them. Exit status 2.
`InternalError`    RAPTOR itself is at fault; keeps the cause. Exit status 70 (EX_SOFTWARE).
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raptor.common.spelling import in_flags


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
    """The model leaves sizes or values of its inputs open. The message names them and the options that fix them."""

    def __init__(self, found: str, options: Sequence[str]) -> None:
        """Takes `options`: command-line arguments, with SIZE, VALUE and letters as placeholders."""
        self.found, self.options = found, tuple(options)
        super().__init__(found, self.options)

    def __str__(self) -> str:
        return f"{self.found}\ngive them with {shlex.join(self.options) if in_flags() else self.keywords}"

    @property
    def keywords(self) -> str:
        """The options as arguments of Python: `dims={'H': SIZE}`."""
        given: dict[str, list[str]] = {}
        for flag, text in zip(self.options[::2], self.options[1::2], strict=True):
            name, _, value = text.rpartition("=")
            given.setdefault(flag, []).append(f"{name!r}: {f'({value})' if ',' in value else value}")
        keywords = {"--shape": "shapes", "--dim": "dims", "--set": "constants"}
        return ", ".join(f"{keywords[flag]}={{{', '.join(entries)}}}" for flag, entries in given.items())


class CapacityError(UserError):
    """The chip is too small. The message says how much is needed, how much there is, and what would help."""

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
        """Takes `levers`: complete suggestions, such as `--cores 12`; and one that does `without` more of it.

        `crossbars`: those of all weights, if these are what does not fit.
        """
        self.resource, self.needed, self.available, self.crossbars = resource, needed, available, crossbars
        self.where, self.levers, self.without = where, tuple(levers), without
        ways = " or ".join((*levers, without) if without else levers)
        super().__init__(f"{where}: {resource}: need {needed}, have {available}; try {ways}")


@dataclass(frozen=True, slots=True)
class UnsupportedNode:
    """One ONNX node that cannot be lowered, and the reason.

    `needs`: computed inputs of the node; if they were constants, it could perhaps be lowered.
    """

    node: str
    op_type: str
    reason: str
    needs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.node} ({self.op_type}): {self.reason}"


MOST_SHOWN = 200
"""Most nodes in the text of an `UnsupportedError`, whose `nodes` has all."""


class UnsupportedError(UserError):
    """Some nodes of the model cannot be lowered; all of them are listed."""

    def __init__(self, nodes: Sequence[UnsupportedNode], advice: str = "") -> None:
        """Takes `advice`: what would help, as a sentence at the end."""
        self.nodes = tuple(nodes)
        count = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
        shown = [f"  {node}" for node in nodes[:MOST_SHOWN]]
        more = [f"  and {len(nodes) - MOST_SHOWN} more"] if len(nodes) > MOST_SHOWN else []
        lines = [f"{count} cannot be compiled:", *shown, *more, *([advice] if advice else [])]
        super().__init__("\n".join(lines))


class InternalError(RaptorError):
    """A bug in RAPTOR."""

    exit_status = 70


class VerifyError(InternalError):
    """An intermediate form breaks one of its invariants (docs/developers/design.md)."""
