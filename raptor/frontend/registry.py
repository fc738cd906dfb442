"""Table of importers: one decorated function for each ONNX operator and version.

To add an operator, write a function in `raptor.frontend.operators` and decorate it; checks, messages and the list of
operators in the documentation follow.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raptor.frontend.importing import ImportContext
    from raptor.frontend.nodes import NodeView

ImportFunction = Callable[["NodeView", "ImportContext"], None]
STANDARD_DOMAINS = ("", "ai.onnx")


class Refusal(Exception):  # noqa: N818 (an answer, not a failure)
    """Raised by an importer: the reason why this node cannot be lowered. Collected into one `UnsupportedError`."""


class NeedsConstantError(Refusal):
    """Raised by an importer: this input must be a constant."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"'{name}' must be a constant")


@dataclass(frozen=True, slots=True)
class Importer:
    """A registered importer. `since`: first version of the operator it reads. `limits`: cases it refuses, for the docs.

    `all_outputs`: True if it computes every output of the node that is used, False if only the first.
    """

    op_type: str
    since: int
    limits: str
    function: ImportFunction
    all_outputs: bool = False

    @property
    def summary(self) -> str:
        """First line of the function's docstring, which is also the operator's text in docs/operators.md."""
        return (self.function.__doc__ or "").partition("\n")[0]


_IMPORTERS: dict[tuple[str, int], Importer] = {}


def importer(
    op_type: str, *, since: int, limits: str = "", all_outputs: bool = False
) -> Callable[[ImportFunction], ImportFunction]:
    """Registers the function for `op_type` from operator version `since` up to the next registered version."""

    def register(function: ImportFunction) -> ImportFunction:
        key = (op_type, since)
        if key in _IMPORTERS:
            raise ValueError(f"{op_type} version {since} has two importers")
        _IMPORTERS[key] = Importer(op_type, since, limits, function, all_outputs)
        return function

    return register


def importers() -> tuple[Importer, ...]:
    """Returns all importers by operator and version."""
    from raptor.frontend import operators

    operators.register_all()
    return tuple(_IMPORTERS[key] for key in sorted(_IMPORTERS))


def find_importer(op_type: str, version: int) -> Importer | None:
    """Returns the importer for an operator as the given version of the standard defines it; None without one."""
    return max((i for i in _of(op_type) if i.since <= version), key=lambda i: i.since, default=None)


def is_supported_op(domain: str, op_type: str) -> bool:
    """Tells whether some version of an operator has an importer."""
    return domain in STANDARD_DOMAINS and any(_of(op_type))


def op_reason(domain: str, op_type: str) -> str:
    """Says why `find_importer` found nothing."""
    if domain not in STANDARD_DOMAINS:
        return f"operators of the domain {domain} are not supported"
    oldest = min((i.since for i in _of(op_type)), default=None)
    return "not supported" if oldest is None else f"only supported from operator version {oldest} on"


def _of(op_type: str) -> Iterator[Importer]:
    return (i for i in importers() if i.op_type == op_type)
