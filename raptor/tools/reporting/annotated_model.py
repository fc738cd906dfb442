"""The ONNX model of an output with figures in the metadata of its nodes, which viewers of ONNX models show."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from onnx import ModelProto, NodeProto

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.output import files
from raptor.tools.reporting.program_facts import LayerFacts, ProgramFacts
from validator.model.ort_session import read_model

PREFIX = "raptor."
"""Beginning of each key in the metadata."""
_MOST_RANGES = 32
"""Most ranges of cores that a value lists."""


def annotate_model(out: Path, facts: ProgramFacts) -> ModelProto:
    """Returns the model of a program with cores, crossbars, time and energy of each node; see `node_figures`.

    A node that RAPTOR has joined with another one, or folded, has no figures of its own. The metadata of the model has
    those of a sample. Raises `UserError` if the program has no model, or does not say which node an instruction serves.
    """
    if facts.profile.part_kind != "node" or not (out / files.MODEL).is_file():
        raise UserError(f"{spell_option('annotate')}: {out} does not say which node of a model an instruction serves")
    model = read_model(out / files.MODEL)
    layers = {layer.name: layer for layer in facts.layers}
    for node in model.graph.node:
        layer = layers.get(_label(node))
        _annotate(node, () if layer is None else node_figures(layer))
    _annotate(model, _sample_figures(facts))
    return model


def _annotate(part: ModelProto | NodeProto, figures: Iterable[tuple[str, str]]) -> None:
    """Adds figures to the metadata of a node or model, in place of those that an earlier report has added."""
    others = [each for each in part.metadata_props if not each.key.startswith(PREFIX)]
    del part.metadata_props[:]
    part.metadata_props.extend(others)
    for key, value in figures:
        part.metadata_props.add(key=f"{PREFIX}{key}", value=value)


def _label(node: NodeProto) -> str:
    """Returns what the compiler calls a node: its name, or its operator and first output."""
    return node.name or f"{node.op_type} -> {node.output[0] if node.output else ''}"


def node_figures(layer: LayerFacts) -> Iterator[tuple[str, str]]:
    """Yields names and values of the figures of a node, as far as they are known; units are in the names.

    busy_us: work of all units of all cores. critical_us: share of the latency. energy_pJ: without static energy.
    """
    noted, counted = layer.noted, layer.counted
    if noted is not None:
        yield from (("cores", _ranges(noted.cores)), ("crossbars", f"{noted.xbars}"))
        if noted.unfolding is not None:
            yield "unfolding", noted.unfolding
    elif counted is not None:
        yield "cores", _ranges(counted.cores)
    if counted is None:
        return
    yield "instructions", f"{sum(counted.instructions.values())}"
    for name, value, scale in (
        ("busy_us", counted.busy_ns, 1000),
        ("critical_us", counted.critical_ns, 1000),
        ("energy_pJ", counted.energy_pj, 1),
    ):
        if value is not None:
            yield name, f"{value / scale:.6g}"


def _sample_figures(facts: ProgramFacts) -> Iterator[tuple[str, str]]:
    sample = facts.profile.estimate
    if sample is not None:
        yield "latency_us", f"{sample.latency_ns / 1000:.6g}"
        yield "energy_pJ", f"{sum(sample.energy_pj.values()):.6g}"


def _ranges(cores: tuple[int, ...]) -> str:
    """Returns numbers as ranges, `0-3, 7`; the number of cores comes first."""
    numbers, texts = sorted(cores), list[str]()
    first = 0
    for k, number in enumerate(numbers):
        if k + 1 == len(numbers) or numbers[k + 1] != number + 1:
            texts.append(f"{number}" if first == k else f"{numbers[first]}-{number}")
            first = k + 1
    more = ", ..." if len(texts) > _MOST_RANGES else ""
    return f"{len(numbers)}: {', '.join(texts[:_MOST_RANGES])}{more}"
