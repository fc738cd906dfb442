"""The proved lower bound on the interval of every mapping of a model, in words and figures, for `raptor explain`."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import orjson

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.compiler.analysis.bound_program import find_certificate
from raptor.graph.ir import Filter, Graph
from raptor.graph.layers import layer_target
from raptor.output import files
from raptor.target.arch import Target
from validator.bounds.certificate import VERSION, UnreadableFile, read_json, read_model
from validator.bounds.chip_times import CertificateRefused, ChipTimes
from validator.bounds.model_work import ModelWork
from validator.simulate.simulation_report import time_text

JOINT = " + "
"""Between the names of ONNX nodes that the compiler joined into one."""


@dataclass(frozen=True, slots=True)
class ProvedBound:
    """Lower bound on the interval of every mapping of a model on a chip, if it has the forms of RAPTOR. Times in ns.

    `why`: a sentence with the reason. `layers_ns`, `vector_ns`: least work of all cores together for a sample, for
    products with their additions and for other functions of the vector unit. `port_ns`: least time of the port of
    global memory. `left_out_ns` of `program_ns`: work of this program for ONNX nodes that the bound leaves out.
    `unknown`: the reason if there is no bound, else empty.
    """

    bound_ns: float = 0.0
    why: str = ""
    layers_ns: float = 0.0
    vector_ns: float = 0.0
    port_ns: float = 0.0
    left_out_ns: float = 0.0
    program_ns: float = 0.0
    unknown: str = ""


def prove_interval(
    folder: Path, graph: Graph, target: Target, work_ns: Mapping[str, float]
) -> tuple[ProvedBound, dict[str, Any]]:
    """Returns the bound for the model of an output directory, and the certificate that proves it.

    `graph`, `target`: as compiled. `work_ns`: work of the program in ns, by ONNX node. Raises `UserError` if there is
    no such bound, or if scipy is missing.
    """
    if graph.residency.states:
        raise UserError("no bound on the interval of every mapping: it takes states for inputs and outputs of a sample")
    widths = _find_widths(graph, target)
    shapes = {name: list(graph.tensors[name].shape) for name in graph.inputs}
    try:
        arch = read_json(file_access.check_regular_file(folder, files.ARCH))
        model = read_model(file_access.check_regular_file(folder, files.MODEL))
        work = ModelWork(model, ChipTimes(arch, *widths.values()), shapes)
        certificate: dict[str, Any] = {"version": VERSION, **widths, "inputs": shapes, **find_certificate(work)}
    except UnreadableFile as e:
        raise UserError(str(e)) from e
    except CertificateRefused as e:
        raise UserError(f"no bound on the interval of every mapping: {e}") from e
    bounded = {node for layer in work.layers for nodes in layer.nodes for node in nodes} | work.vector_ns.keys() | {""}
    # The prices of crossbars are no work, so the work is that of a bound without them.
    worked = find_certificate(work, crossbars=False) if Fraction(certificate["v"]) else certificate
    layers = sum(Fraction(layer["value_ns"]) * len(layer["nodes"]) for layer in worked["layers"])
    bound, vector = Fraction(certificate["bound_ns"]), sum(work.vector_ns.values())
    found = ProvedBound(
        bound_ns=float(bound),
        why=_explain_bound(work, bound, float(layers), float(vector)),
        layers_ns=float(layers),
        vector_ns=float(vector),
        port_ns=float(work.port_ns),
        left_out_ns=sum(ns for node, ns in work_ns.items() if bounded.isdisjoint(node.split(JOINT))),
        program_ns=sum(work_ns.values()),
    )
    return found, certificate


def write_certificate(path: Path, certificate: Mapping[str, Any]) -> None:
    """Writes a certificate as JSON; `-` is standard output."""
    file_access.print_or_write("--certificate", path, orjson.dumps(certificate, option=orjson.OPT_INDENT_2) + b"\n")


def _find_widths(graph: Graph, target: Target) -> dict[str, int]:
    """Returns the narrowest widths, in bits, of the weights, inputs and sums of the layers."""
    layers = [layer_target(graph, node, target).widths for node in graph.nodes if isinstance(node.operator, Filter)]
    widths = layers or [target.widths]
    return {
        "weight_bits": min(w.weights for w in widths),
        "input_bits": min(w.activations for w in widths),
        "sum_bits": min(w.accumulators for w in widths),
    }


def _explain_bound(work: ModelWork, bound: Fraction, layers_ns: float, vector_ns: float) -> str:
    """Returns a sentence that says why no mapping is faster."""
    start = f"No mapping of these forms can have an interval below {_time(float(bound))}"
    if bound == work.port_ns:
        return f"{start}, as inputs and outputs keep the port of global memory busy for so long."
    parts = f"products with their additions take {_time(layers_ns)}, other vector work {_time(vector_ns)}"
    even = (layers_ns + vector_ns + float(work.transfer_ns)) / work.chip.cores
    full = ", and layers need their crossbars all the time" if float(bound) > even * 1.001 else ""
    return f"{start}, as for a sample {parts} at least on {work.chip.cores:,} cores{full}."


def _time(ns: float) -> str:
    return time_text(float(f"{ns:.3g}"))
