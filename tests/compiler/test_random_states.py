"""Random graphs with random states: programs that stay on the chip, against onnxruntime with its own states."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto

import raptor
from tests.stateful_models import Reference, model
from tests.tiny_models import Array, node, random
from validator.execution.stepped_run import SteppedRun
from validator.load.output_directory import load_output
from validator.validate import validate

QUICK = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck), derandomize=True)
LONG = settings(QUICK, max_examples=1000)


@dataclass
class Step:
    """The step of a model in the making: vectors of some sizes, states among them."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    sizes: dict[str, int] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def pick(self) -> str:
        return self.draw(st.sampled_from(sorted(self.sizes)))

    def constant(self, values: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = values
        return name

    def add(self, op_type: str, inputs: str, size: int, **attributes: Any) -> str:
        output = f"t{len(self.nodes)}"
        self.nodes.append(node(op_type, inputs, output, name=f"n{len(self.nodes)}", **attributes))
        self.sizes[output] = size
        return output

    def dense(self, given: str, size: int) -> str:
        weights = random(self.sizes[given], size, seed=len(self.nodes)) / self.sizes[given] ** 0.5
        made = self.add("MatMul", f"{given} {self.constant(weights)}", size)
        return self.add("Add", f"{made} {self.constant(random(size, seed=size) / 3)}", size)

    def grow(self) -> None:
        """Adds one operation on values that are there."""
        a, b = self.pick(), self.pick()
        kind = self.number(0, 5)
        if kind == 0:
            self.dense(a, self.number(1, 40))
        elif kind == 1:
            self.add("Concat", f"{a} {b}", self.sizes[a] + self.sizes[b], axis=1)
        elif kind == 2 and self.sizes[a] > 1:
            self.cut(a, self.number(1, self.sizes[a] - 1))
        elif kind == 3 and self.sizes[a] == self.sizes[b]:
            self.add(self.draw(st.sampled_from(["Add", "Mul", "Max"])), f"{a} {b}", self.sizes[a])
        else:
            self.add(self.draw(st.sampled_from(["Tanh", "Sigmoid", "Relu"])), a, self.sizes[a])

    def cut(self, given: str, size: int) -> str:
        first = self.number(0, self.sizes[given] - size)
        places = [self.constant(np.array([k])) for k in (first, first + size, 1)]
        return self.add("Slice", f"{given} {' '.join(places)}", size)

    def sized(self, size: int) -> str:
        """A value of a size: one that is there, a part of one, a padded one, or a layer of one."""
        fitting = [name for name, have in self.sizes.items() if have == size]
        if fitting and self.number(0, 3):
            return self.draw(st.sampled_from(sorted(fitting)))
        given = self.pick()
        if self.sizes[given] > size:
            return self.cut(given, size)
        return self.add("Tanh", self.dense(given, size), size)


@st.composite
def stateful(draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[ModelProto, dict[str, str]]:
    """A model of vectors, and its states."""
    step = Step(draw)
    states = {f"s{k}": step.number(1, 24) for k in range(step.number(1, 4))}
    inputs = {"x": step.number(1, 24), **states}
    step.sizes |= inputs
    for _ in range(step.number(1, 9)):
        step.grow()
    y = step.dense(step.add("Concat", " ".join(inputs), sum(inputs.values()), axis=1), 3)  # reads every state
    outputs = {"y": 3}
    step.nodes.append(node("Identity", y, "y", name="result"))
    for name, size in states.items():
        outputs[f"{name}_next"] = size
        bounded = step.add("Tanh", step.sized(size), size) if step.number(0, 1) else step.sized(size)
        step.nodes.append(node("Identity", bounded, f"{name}_next", name=f"to_{name}"))
    shapes = [{name: (1, size) for name, size in sizes.items()} for sizes in (inputs, outputs)]
    return model(step.nodes, *shapes, step.constants), {name: f"{name}_next" for name in states}


def steps_agree(case: tuple[ModelProto, dict[str, str]], options: dict[str, Any], folder: Any) -> None:
    proto, pairs = case
    program = load_output(raptor.compile(proto, states=pairs, **options).save(folder, stream_format="pim", force=True))
    reference, chip = Reference(proto, pairs), SteppedRun(program)
    first = dict(reference.states)
    for number, (inputs, wanted) in enumerate(reference.steps(4)):
        found = chip.step({**inputs, **(first if number == 0 else {})})
        for name, array in wanted.items():
            scale = max(1.0, float(np.abs(array).max()))
            np.testing.assert_allclose(found[name] / scale, array / scale, atol=1e-4, err_msg=f"step {number}: {name}")


def quantised_steps_agree(
    case: tuple[ModelProto, dict[str, str]], scheme: Any, options: dict[str, Any], folder: Any
) -> None:
    """Quantises a model with its states, and steps through it beside the definition of its integers."""
    proto, pairs = case
    quantised = onnx.load_from_string(raptor.quantize(proto, states=pairs, scheme=scheme, samples=6).onnx_bytes)
    program = raptor.compile(quantised, states=pairs, **options)
    report = validate(program.save(folder, stream_format="pim", weight_format="npz", force=True), samples=5)
    assert report.passed, f"{report.verdict} at {report.first_deviation}"


OPTIONS = st.fixed_dictionaries(
    {
        "mapping": st.sampled_from(["rows", "rows", "raptor", "pixelwise"]),
        "resident_constants": st.booleans(),
        "cores": st.integers(6, 24),
        "xbar": st.sampled_from([8, 16, 32]),
        "xbars_per_core": st.sampled_from([64, 256]),
    }
)


@QUICK
@given(case=stateful(), options=OPTIONS)
def test_random_states(case: tuple[ModelProto, dict[str, str]], options: dict[str, Any], tmp_path_factory: Any):
    steps_agree(case, options, tmp_path_factory.getbasetemp() / "random")


@QUICK
@given(case=stateful(), scheme=st.sampled_from(["s8s8", "u8s8", "pow2"]), options=OPTIONS)
def test_random_states_of_integers(case: Any, scheme: str, options: dict[str, Any], tmp_path_factory: Any):
    quantised_steps_agree(case, scheme, options, tmp_path_factory.getbasetemp() / "random")


@pytest.mark.slow
@LONG
@given(case=stateful(), options=OPTIONS)
def test_many_random_states(case: tuple[ModelProto, dict[str, str]], options: dict[str, Any], tmp_path_factory: Any):
    steps_agree(case, options, tmp_path_factory.getbasetemp() / "random")
