"""Drawings of values that stay and of samples that overlap, for docs/how-to/memory.md, made from real compilations."""

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

import models
import raptor
from docgen.svg import PALETTE, SvgDrawing
from raptor.compiler.analysis.explain import explain
from validator.load.output_directory import load_output

LOADS, WORK, AWAY = PALETTE[1], PALETTE[0], "#bbb"
STEPS, PASSES = 4, 6
HIDDEN, FEATURES = 64, 64


def draw_all() -> dict[str, str]:
    """Returns SVG by name."""
    quantised = onnx.load_from_string(raptor.quantize(models.build("lenet5", seed=0)).onnx_bytes)
    drawn = {"constants": draw_constants(quantised), "states": draw_states(), "overlap": draw_overlap(quantised)}
    return {name: str(drawing) for name, drawing in drawn.items()}


def draw_constants(model: ModelProto) -> SvgDrawing:
    """Draws the interval between samples, and the time of the port of global memory in it, for both loads."""
    rows = list[tuple[str, float, float, float]]()
    for name, resident in (("reloaded", False), ("resident", True)):
        program = raptor.compile(model, cores=100, resident_constants=resident)
        with tempfile.TemporaryDirectory() as scratch:
            found = explain(program.save(Path(scratch) / "out"))
            once = program.simulate().auxiliary.get("init")
        rows.append((name, found.bounds.port, found.interval_ns, once.latency_ns if once else 0.0))
    drawing = SvgDrawing(760, 112, "Interval between samples of a quantised LeNet-5, with the time of the port in it")
    drawing.add_legend(
        90, (("the port is busy", LOADS), ("rest of the interval", WORK), ("once, after power-up", AWAY))
    )
    scale = 470 / max(interval_ns for _, _, interval_ns, _ in rows)
    for y, (name, port_ns, interval_ns, once_ns) in zip((38, 72), rows, strict=True):
        drawing.add_text(15, y + 16, name)
        drawing.add_rectangle(90, y, port_ns * scale, 24, LOADS, line="none")
        drawing.add_rectangle(90 + port_ns * scale, y, (interval_ns - port_ns) * scale, 24, WORK, line="none")
        drawing.add_text(96 + interval_ns * scale, y + 16, f"{interval_ns / 1e3:.3g} us", style="s")
        if once_ns:
            drawing.add_rectangle(740 - once_ns * scale, y, once_ns * scale, 24, AWAY, line="none")
            drawing.add_text(734 - once_ns * scale, y + 16, f"{once_ns / 1e3:.3g} us", anchor="end", style="s")
    return drawing


def draw_states() -> SvgDrawing:
    """Draws when steps of a recurrent model begin and end: with the state from the host, and on the chip."""
    model, cores = _recurrent_step(), 16
    away_ns = raptor.compile(model, cores=cores).simulate().latency_ns or 0.0
    kept = raptor.compile(model, states="auto", resident_constants=True, cores=cores).simulate(mode="throughput")
    drawing = SvgDrawing(760, 62 + 20 * STEPS, f"{STEPS} steps of a recurrent model")
    drawing.add_legend(90, (("state through the host", AWAY), ("state on the chip", WORK)))
    scale = 620 / (STEPS * away_ns)
    for step in range(STEPS):
        y = 36 + 20 * step
        drawing.add_text(15, y + 12, f"step {step}")
        drawing.add_rectangle(90 + step * away_ns * scale, y, away_ns * scale, 7, AWAY, line="none")
        begin_ns = step * (kept.interval_ns or 0.0)
        drawing.add_rectangle(90 + begin_ns * scale, y + 8, (kept.latency_ns or 0.0) * scale, 7, WORK, line="none")
    drawing.add_text(90, drawing.height - 8, "0", style="s")
    drawing.add_text(710, drawing.height - 8, f"{STEPS * away_ns / 1e3:.3g} us", anchor="end", style="s")
    return drawing


def draw_overlap(model: ModelProto) -> SvgDrawing:
    """Draws the sample that each stage of a program works on in each pass, in time."""
    apart_ns = raptor.compile(model, cores=30).simulate(mode="throughput").interval_ns or 0.0
    program = raptor.compile(model, overlap=4, cores=30)
    interval_ns = program.simulate(mode="throughput").interval_ns or 0.0
    with tempfile.TemporaryDirectory() as scratch:
        most = max(load_output(program.save(Path(scratch) / "out")).delays.values())
    drawing = SvgDrawing(760, 88 + 30 * (most + 1), "Samples A to F of a quantised LeNet-5, apart and in stages")
    scale = 640 / (PASSES * max(apart_ns, interval_ns))
    rows = [("apart", 0, apart_ns, 18)]
    rows += [(f"stage {stage}", stage, interval_ns, 58 + 30 * stage) for stage in range(most + 1)]
    for name, stage, ns, y in rows:
        drawing.add_text(15, y + 16, name)
        for number in range(stage, PASSES):
            x = 90 + number * ns * scale
            drawing.add_rectangle(x, y, ns * scale, 24, PALETTE[number - stage])
            drawing.add_text(x + ns * scale / 2, y + 16, "ABCDEF"[number - stage], anchor="middle", style="w")
    drawing.add_text(90, drawing.height - 8, "0", style="s")
    ends = f"{PASSES} samples begin in {PASSES * interval_ns / 1e3:.4g} us, apart in {PASSES * apart_ns / 1e3:.4g} us"
    drawing.add_text(730, drawing.height - 8, ends, anchor="end", style="s")
    return drawing


def _recurrent_step() -> ModelProto:
    rng = np.random.default_rng(0)
    sizes = {"wi": (1, 3 * HIDDEN, FEATURES), "wh": (1, 3 * HIDDEN, HIDDEN), "w": (HIDDEN, FEATURES)}
    weights = [
        numpy_helper.from_array(rng.normal(0, 0.2, size).astype(np.float32), name) for name, size in sizes.items()
    ]
    nodes = [
        helper.make_node("GRU", ["x", "wi", "wh", "", "", "h0"], ["all", "hn"], name="gru", hidden_size=HIDDEN),
        helper.make_node("Reshape", ["all", "row"], ["flat"], name="flatten"),
        helper.make_node("MatMul", ["flat", "w"], ["y"], name="dense"),
    ]
    shapes = {"x": [1, 1, FEATURES], "h0": [1, 1, HIDDEN], "y": [1, FEATURES], "hn": [1, 1, HIDDEN]}
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in shapes.items()}
    row = numpy_helper.from_array(np.array([1, HIDDEN]), "row")
    inputs, outputs = [values["x"], values["h0"]], [values["y"], values["hn"]]
    graph = helper.make_graph(nodes, "step", inputs, outputs, [*weights, row])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
