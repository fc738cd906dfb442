"""Whole models with a chip to compile them for, and the comparison."""

import math
import os
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import ModelProto

import raptor
from raptor.common.errors import CapacityError, UnsupportedError
from tests.all_graphs import (
    convolution,
    elementwise,
    movement,
    normalisation,
    pool,
    positions,
    product,
    recurrent,
    resize,
    truth,
)
from tests.all_graphs.builder import FAMILIES, MAX_ELEMENTS, OPSETS, STEPS, TOLERANCE, Builder, MisfitError
from tests.pipeline import arch_file
from tests.tiny_models import Array
from validator.checks import Severity
from validator.simulate.builtin import simulate
from validator.validate import validate

_MODULES = (convolution, product, recurrent, pool, elementwise, normalisation, movement, positions, resize, truth)
"""Importing them fills `STEPS`."""

_OPTION = {"cores": "cores", "crossbars a core": "xbars_per_core"}
"""Resource that the chip has too little of -> the option that gives it more."""


@dataclass(frozen=True)
class Case:
    """A model with inputs, and the chip and strategy to compile it for.

    Options are those of `raptor.compile`, and `rob_size` of the architecture file: then the program is timed as well.
    """

    model: ModelProto
    inputs: dict[str, Array]
    options: dict[str, Any]

    def check(self) -> None:
        """Compiles, saves, executes, compares every tensor. What fails tells how to try it again."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                self._check(Path(folder))
        except Exception as error:  # every failure, of whatever class, says how to try it again, and goes on
            error.add_note(self.script(Path(tempfile.gettempdir()) / f"raptor-failing-graph-{os.getpid()}"))
            raise

    def _check(self, folder: Path) -> None:
        try:
            program = self._compile(folder)
        except UnsupportedError as error:
            # Ranges are wider than the numbers that were drawn.
            if all("they must stay within" in node.reason for node in error.nodes):
                return
            raise
        found = [f for f in program.check() if f.severity is Severity.ERROR]
        assert not found, found
        out = program.save(folder / "out", stream_format="pim", weight_format="npz")
        report = validate(out, inputs=self.inputs, layers=True, tolerance=TOLERANCE)
        compared = [*(layer.comparison for layer in report.layers), *report.outputs]
        assert report.verdict == "pass", f"{report.first_deviation}: {[c for c in compared if not c.passed]}"
        assert all(np.isfinite(c.max_absolute) for c in compared)
        if "rob_size" in self.options:
            simulate(out, out / "arch.json")  # raises where the program does not end

    def _compile(self, folder: Path) -> "raptor.Program":
        """Compiles for the given chip, with more cores or crossbars if necessary."""
        options = {"cores": 1} | self.options_in(folder)
        while True:
            try:
                return raptor.compile(self.model, **options)
            except CapacityError as e:
                option = _OPTION[e.resource]
                if e.needed <= options[option]:
                    raise
                options[option] = e.needed

    def options_in(self, folder: Path) -> dict[str, Any]:
        """Returns the options of `raptor.compile`; writes the architecture file that they need."""
        options = dict(self.options)
        if "rob_size" in options:
            options["arch"] = str(arch_file(folder, rob_size=options.pop("rob_size")))
        return options

    def script(self, folder: Path) -> str:
        """Writes the model and its inputs; returns the commands that compile and validate it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(self.model.SerializeToString())
        given: list[str] = []
        for name, array in self.inputs.items():
            np.save(folder / f"{name}.npy", array)
            given += ["--input", f"{name}={folder / name}.npy"]
        chosen = {"cores": 10_000} | self.options_in(folder)
        chosen["xbar"] = "x".join(map(str, np.broadcast_to(chosen["xbar"], 2)))
        knobs = [("knob", f"{name}={value}") for name, value in chosen.pop("knobs", {}).items()]
        options = [
            text for key, value in (*chosen.items(), *knobs) for text in (f"--{key.replace('_', '-')}", str(value))
        ]
        model, out = str(folder / "model.onnx"), str(folder / "out")
        return "\n".join(
            shlex.join(command)
            for command in (
                ["raptor", "compile", model, *options, "--output", out, "--force"],
                ["raptor", "validate", out, *given, "--layers", "--tolerance", str(TOLERANCE)],
                ["raptor", "simulate", out],
            )
        )


def build(rng: Random, focus: str, most: int = 40) -> Builder:
    """Draws one to three inputs and up to `most` nodes, half of them of the family `focus`, or of any (`all`)."""
    b = Builder(rng)
    b.opset = b.pick(OPSETS)
    for _ in range(b.number(1, 3)):
        rank = b.pick([4, 3, 2, 4, 5, 1])
        largest = {1: 24, 2: 12, 3: 7, 4: 4, 5: 3}[rank]
        shape = tuple(b.number(1, largest) for _ in range(rank))
        while math.prod(shape) > MAX_ELEMENTS // 2:
            shape = tuple((n + 1) // 2 for n in shape)
        b.input((min(shape[0], 3), *shape[1:]) if rank > 1 else shape)
    wanted = b.number(1, most)
    for _ in range(3 * wanted):
        if len(b.nodes) >= wanted:
            break
        family = focus if focus in STEPS and b.chance() else b.pick(FAMILIES)
        try:
            b.pick(STEPS[family])(b)
        except MisfitError:
            continue
    if not b.nodes:
        b.emit("Neg", ["x0"])
    return b


def make_case(rng: Random, focus: str) -> Case:
    """Draws a case. Equal `rng` gives equal cases; those of hypothesis depend on the modules that are loaded."""
    b = build(rng, focus)
    return Case(b.model(), b.inputs, draw_chip(b))


def draw_chip(b: Builder) -> dict[str, Any]:
    """Options for `Case`: mostly small crossbars and as many cores as it takes, on which most is cut and sent."""
    bits, cell_bits = b.pick([(8, 8), (8, 8), (8, 4), (16, 16), (16, 8)])
    rows, cols = (b.number(17, 256) if b.chance(6) else b.number(3, 16) for _ in range(2))
    chip: dict[str, Any] = {
        "xbar": (rows, max(cols, bits // cell_bits)),
        "xbars_per_core": 1 if b.chance(6) else b.number(2, 12),
        "bits": bits,
        "cell_bits": cell_bits,
    }
    if b.chance(3):
        chip |= {"mapping": "rows", "xbars_per_core": b.number(1, 40)}
    if b.chance(3):
        chip["cores"] = b.number(1, 400)
    if b.chance(4):
        chip["rob_size"] = b.number(1, 8)
    return chip


@st.composite
def cases(draw: st.DrawFn, focus: str) -> Case:
    return make_case(draw(st.randoms(use_true_random=False)), focus)
