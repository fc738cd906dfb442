"""Runs a program in segments, one after another."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raptor.common.errors import UserError
from raptor.output.files import SegmentFile
from validator.execution.run import run_program
from validator.hosted.border_values import convert_input, convert_to_type
from validator.load.segmented_program import SegmentedProgram
from validator.model import ort_session

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SegmentedResult:
    """Result of a run. `outputs` in the types of the model; `values`: border tensors; `instructions`: of the chip."""

    outputs: Values
    border_values: Values
    instructions: int


def run_segmented(hosted: SegmentedProgram, inputs: Mapping[str, Any], **options: Any) -> SegmentedResult:
    """Runs all segments in order. Options and errors: see `validator.execution.run.run`."""
    values, instructions = select_border_values(hosted, check_inputs(hosted, inputs)), 0
    for segment in hosted.segments.segments:
        if segment.kind == "host":
            values |= run_segment_session(hosted.sessions[segment.path], segment, values)
        else:
            program = hosted.programs[segment.path]
            result = run_program(program, {name: values[name] for name in segment.reads}, **options)
            instructions += result.instructions
            values |= select_border_values(hosted, result.outputs)
    outputs = {o.name: convert_to_type(values[o.name], o.type, f"output {o.name!r}") for o in hosted.segments.outputs}
    return SegmentedResult(outputs, values, instructions)


def check_inputs(hosted: SegmentedProgram, inputs: Mapping[str, Any]) -> Values:
    """Returns the inputs in the types of the model. Raises `UserError` for unknown, missing or invalid inputs."""
    wanted = {tensor.name: tensor for tensor in hosted.segments.inputs}
    if unknown := sorted(set(inputs) - set(wanted)):
        raise UserError(f"{unknown[0]!r} is no input of the model; its inputs: {', '.join(sorted(wanted))}")
    if missing := [name for name in wanted if name not in inputs]:
        raise UserError(f"input {missing[0]!r} is missing")
    return {name: convert_input(inputs[name], tensor) for name, tensor in wanted.items()}


def select_border_values(hosted: SegmentedProgram, values: Mapping[str, Any]) -> Values:
    """Returns the tensors at borders of segments, converted to the types that they have there."""
    types = {c.name: c.type for c in hosted.segments.crossings}
    return {
        name: convert_to_type(value, types[name], f"tensor {name!r}") for name, value in values.items() if name in types
    }


def run_segment_session(opened: Any, segment: SegmentFile, values: Mapping[str, Any]) -> Values:
    """Runs the ONNX model of a segment. Raises `UserError` if that fails."""
    feed = {name: values[name] for name in segment.reads}
    return ort_session.run(opened, segment.makes, feed, f"{segment.path}: onnxruntime: ")
