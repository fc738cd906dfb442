"""Registry of importers: one decorated function for each ONNX operator and version.

To add an operator, write a function in `raptor.frontend.operators` and decorate it; checks, messages and the list of
operators in the documentation are derived from the registry.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from raptor.frontend.import_context import ImportContext
from raptor.frontend.operator_sets import CONTRIB_DOMAIN, DYNAMIC_QUANT_OPS, MOVE_OPS, QUANTISED_OPS, STANDARD_DOMAINS
from raptor.frontend.proto.nodes import NodeView

ImportFunction = Callable[[NodeView, ImportContext], None]
RuleFunction = Callable[[NodeView, ImportContext], bool]
_CHANNELS_LAST = "qonnx.custom_op.channels_last"


@dataclass(frozen=True, slots=True)
class OperatorImporter:
    """A registered importer.

    since: first operator version that it reads. limits: cases that it refuses, for the documentation. all_outputs: True
    if it computes every used output of the node, False if only the first. domain: empty for the ONNX standard. counts:
    True if it also computes with integers and truth values.
    """

    op_type: str
    since: int
    limits: str
    function: ImportFunction
    all_outputs: bool = False
    domain: str = ""
    counts: bool = False

    @property
    def accepts_integers(self) -> bool:
        """True if the operator accepts integers and truth values that are held as float32."""
        return self.counts or self.op_type in MOVE_OPS

    @property
    def accepts_codes(self) -> bool:
        """True if the operator accepts quantised integers."""
        return self.op_type in QUANTISED_OPS or self.op_type in MOVE_OPS or self.op_type == "Clip"

    @property
    def summary(self) -> str:
        """First line of the function's docstring, shown in docs/reference/operators.md."""
        return (self.function.__doc__ or "").partition("\n")[0]


_IMPORTERS: dict[tuple[str, str, int], OperatorImporter] = {}
_RULES: dict[str, RuleFunction] = {}
_FROM_FLOATS = "compile the float model that it was made from, or what raptor quantize makes of that one"
_REFUSED: Mapping[str, str] = MappingProxyType(
    {"DynamicQuantizeLinear": f"its scale is known only at run time; {_FROM_FLOATS}"}
)
"""Operators of the standard that are never supported, with the reason."""


def importer(
    op_type: str, *, since: int, limits: str = "", all_outputs: bool = False, domain: str = "", counts: bool = False
) -> Callable[[ImportFunction], ImportFunction]:
    """Registers the decorated function as importer of `op_type` from version `since` to the next registered one."""

    def register(function: ImportFunction) -> ImportFunction:
        key = (op_type, domain, since)
        if key in _IMPORTERS:
            raise ValueError(f"{op_type} version {since} has two importers")
        _IMPORTERS[key] = OperatorImporter(op_type, since, limits, function, all_outputs, domain, counts)
        return function

    return register


def integer_rule(*op_types: str) -> Callable[[RuleFunction], RuleFunction]:
    """Registers the decorated function as integer rule: it computes operators of the standard on quantised inputs.

    The function returns False, having added nothing, where it does not apply; then the importer computes the node in
    floats.
    """

    def register(function: RuleFunction) -> RuleFunction:
        _RULES.update(dict.fromkeys(op_types, function))
        return function

    return register


def find_rule(op_type: str) -> RuleFunction | None:
    """Returns the integer rule of an operator; None if it has none."""
    importers()
    return _RULES.get(op_type)


def importers() -> tuple[OperatorImporter, ...]:
    """Returns all importers, sorted by operator, domain and version."""
    from raptor.frontend import operators

    operators.register_all()
    return tuple(_IMPORTERS[key] for key in sorted(_IMPORTERS))


def find_importer(op_type: str, version: int, domain: str = "") -> OperatorImporter | None:
    """Returns the importer for an operator as the given version of the standard defines it; None if there is none."""
    found = (i for i in _of(op_type, domain) if i.domain or i.since <= version)
    return max(found, key=lambda i: i.since, default=None)


def is_supported_op(domain: str, op_type: str) -> bool:
    """Checks whether some version of an operator has an importer."""
    return any(_of(op_type, domain))


def is_refused(op_type: str) -> bool:
    """Checks whether a standard operator is known but never supported."""
    return op_type in _REFUSED


def explain_unsupported(domain: str, op_type: str, oldest: int | None = None) -> str:
    """Returns the reason why `find_importer` found nothing. `oldest`: first version that needs no importer, if any."""
    if domain == _CHANNELS_LAST:
        return "its channels are last, which is not supported; give the model as it was before they were moved"
    if domain not in (*STANDARD_DOMAINS, CONTRIB_DOMAIN):
        return f"operators of the domain {domain} are not supported"
    if op_type in _REFUSED:
        return _REFUSED[op_type]
    if domain == CONTRIB_DOMAIN and op_type in DYNAMIC_QUANT_OPS:
        return f"not supported; {_FROM_FLOATS}"
    oldest = min((i.since for i in _of(op_type, domain)), default=oldest)
    return "not supported" if oldest is None else f"only supported from operator version {oldest} on"


def _of(op_type: str, domain: str) -> Iterator[OperatorImporter]:
    wanted = "" if domain in STANDARD_DOMAINS else domain
    return (i for i in importers() if (i.op_type, i.domain) == (op_type, wanted))
