"""Writes the result of a validation as JUnit's XML, which CI services show as a list of test cases."""

import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from validator.judge.comparison import TensorComparison
from validator.judge.validation_report import SegmentVerdict, ValidationReport, describe_integers

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot contain, not even as a reference."""


def to_junit(report: ValidationReport, name: str) -> bytes:
    """Returns a suite with a test case for each output and each layer; `name`: for a model that did not load.

    A case fails if its tensor differs. An integer program has one more case: its agreement with onnxruntime. A program
    in segments has the cases of each segment before its own. If the program did not run to its end, the only case is
    `run`, with the reason.
    """
    suite = Element("testsuite", name=_text(report.model or name))
    if report.message is not None:
        _problem(_case(suite, "run"), "error", report.verdict, report.message)
    for segment in report.segments:
        _cases(suite, report, segment, f"{segment.path} ")
        for tensor in segment.cut:
            _tensor(suite, f"{segment.path} cut", tensor, report)
    _cases(suite, report, report)
    return _document(suite, sum(report.seconds.values()))


def _cases(suite: Element, report: ValidationReport, found: ValidationReport | SegmentVerdict, of: str = "") -> None:
    for layer in found.layers:
        _tensor(suite, f"{of}layer {layer.node}", layer.comparison, report)
    for output in found.outputs:
        _tensor(suite, f"{of}output", output, report)
    if found.integers is not None:
        case = _case(suite, f"{of}onnxruntime")
        if found.integers.departing != found.integers.explained:
            _problem(case, "failure", report.verdict, describe_integers(found.integers))


def _tensor(suite: Element, kind: str, found: TensorComparison, report: ValidationReport) -> None:
    case = _case(suite, kind, found.name)
    if not found.passed:
        at = ",".join(map(str, found.worst))
        message = f"[{at}] got {found.got:.6g}, want {found.want:.6g}; relative {found.max_relative:.3g}"
        shape = "x".join(map(str, found.shape)) or "scalar"
        more = f"shape {shape}, absolute {found.max_absolute:.3g}, tolerance {report.tolerance:g}"
        _problem(case, "failure", report.verdict, message, *filter(None, (more, report.reason)))


def _case(suite: Element, kind: str, tensor: str = "") -> Element:
    names = {"classname": _text(f"{suite.get('name')}.{kind}"), "name": _text(tensor or kind)}
    return SubElement(suite, "testcase", names)


def _problem(case: Element, tag: str, kind: str, message: str, *more: str) -> None:
    problem = SubElement(case, tag, type=_text(kind), message=_text(message))
    problem.text = _text("\n".join((message, *more)))


def _document(suite: Element, seconds: float) -> bytes:
    """Counts the cases of the suite, and returns it as a file."""
    counts = {tag: str(len(suite.findall(f"testcase/{tag}"))) for tag in ("failure", "error")}
    total = {"tests": str(len(suite)), "failures": counts["failure"], "errors": counts["error"]}
    suite.attrib |= total | {"time": f"{seconds:.6f}"}
    suites = Element("testsuites", total)
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True) + b"\n"


def _text(value: str) -> str:
    r"""Replaces characters that XML cannot contain by escapes, such as `\x00`."""
    return _NOT_XML.sub(lambda found: repr(found[0])[1:-1], value)
