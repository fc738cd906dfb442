"""`decoder.json`: how a program of one step stands for a model whose states grow."""

from typing import Literal

from raptor.common.files.schema_types import JsonArray, StrictSchema
from raptor.output.files import FORMAT_VERSION, Count, Dimension


class GrowingStateFile(StrictSchema):
    """A state to which each step appends a row along `axis`: `output` is `input` and one row more.

    The program's tensor has the axes of the model's in the order `permutation`. `rows`: size of a state that does not
    grow in `original.onnx`, where the step at position P writes row P modulo `rows`.
    """

    input: str
    output: str
    axis: Count
    permutation: JsonArray[Count]
    rows: Count | None = None


class StatePartFile(StrictSchema):
    """A state of the program: the slice, at one index of the first axis, of a state that the model stacks."""

    input: str
    output: str


class StackedStateFile(StrictSchema):
    """A state of the model that the program holds as several: `parts`, in order, along its first axis."""

    input: str
    output: str
    parts: JsonArray[StatePartFile]


class DerivedInputFile(StrictSchema):
    """An input of `original.onnx` that the position P determines.

    `kind`: `ones`, P + 1 of them; `position`, the number P; `length`, the number P + 1. `shape`: at the last position;
    of `ones`, the last dimension is P + 1. `dtype`: numpy's name of the type.
    """

    name: str
    kind: Literal["ones", "position", "length"]
    shape: JsonArray[Dimension]
    dtype: str


class DecoderFile(StrictSchema):
    """`decoder.json`: the program is one step of `original.onnx`, whose `states` get a row a step.

    The program holds the last rows of each state, `capacity` or its `rows`, the newest at the end. It reads its
    position, 0 to capacity - 1, from the input `position`, and takes no `derived` inputs. `states` are those of the
    program; those that are parts of one state of the model are in `stacks`, too.

    `cache_nodes`: nodes of `model.onnx` that compute with caches, or with a value for each of their rows.
    """

    version: Literal[1] = FORMAT_VERSION
    capacity: Count
    position: str
    states: JsonArray[GrowingStateFile]
    derived: JsonArray[DerivedInputFile] = ()
    stacks: JsonArray[StackedStateFile] = ()
    cache_nodes: JsonArray[str] = ()
