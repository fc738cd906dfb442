"""Drawings for docs/explanation/concepts.md, made from real compilations."""

from collections.abc import Iterator, Mapping
from typing import Any

from docgen.recorded_passes import RecordedCompilation, compile_lenet5, compile_thesis
from docgen.svg import PALETTE, SvgDrawing


def draw_all() -> dict[str, str]:
    """Returns SVG by name."""
    return {
        "tiles": str(draw_tiles(compile_thesis())),
        "cores": str(draw_cores(compile_thesis())),
        "messages": str(draw_messages(compile_thesis())),
        "timeline": str(draw_timeline(compile_thesis(), "Time of the thesis's example, core by core", by="operation")),
        "rows": str(
            draw_timeline(compile_lenet5(), "LeNet-5 mapped with rows: layers run at the same time", by="node")
        ),
    }


def draw_tiles(compiled: RecordedCompilation) -> SvgDrawing:
    """Draws the channels of each tensor as tiles."""
    graph = compiled.passes["partition"].graph
    drawing = SvgDrawing(560, 150, "Tensors x and y cut into tiles of three channels")
    for k, (name, tensor) in enumerate(graph.tensors.items()):
        y = 40 + 55 * k
        drawing.add_text(15, y + 20, f"{name}  {'x'.join(map(str, tensor.shape))}", style="b")
        for i, part in enumerate(tensor.parts):
            first, last = part.region.channels
            drawing.add_rectangle(110 + 50 * first + 3 * i, y, 50 * (last - first), 30, PALETTE[i])
            drawing.add_text(110 + 25 * (first + last) + 3 * i, y + 20, f"{part.tile.name}", anchor="middle", style="w")
    drawing.add_text(110, 25, "channels", style="s")
    drawing.add_text(110, 140, "a tile is stored pixel by pixel, the channels of a pixel side by side", style="s")
    return drawing


def draw_cores(compiled: RecordedCompilation) -> SvgDrawing:
    """Draws the crossbars of each core, coloured by the channels that their matrix reads and writes."""
    partition = compiled.passes["partition"]
    computes = partition.graph.computes
    groups = list(dict.fromkeys((m.rows, m.cols) for c in computes for m in c.matrices))
    drawing = SvgDrawing(700, 60 + 26 * len(computes), "Which core holds which matrix")
    drawing.add_text(70, 25, "crossbars, each with the kernel position of its matrix", style="s")
    for row, (core, compute) in enumerate(zip(partition.cores, computes, strict=True)):
        drawing.add_text(15, 52 + 26 * row, f"core {core}")
        for i, matrix in enumerate(compute.matrices):
            colour = PALETTE[groups.index((matrix.rows, matrix.cols))]
            drawing.add_rectangle(70 + 46 * i, 36 + 26 * row, 42, 22, colour)
            drawing.add_text(91 + 46 * i, 51 + 26 * row, str(matrix.tap), anchor="middle", style="w")
    drawing.add_text(340, 25, "input channels to output channels", style="s")
    for i, (rows, cols) in enumerate(groups):
        drawing.add_rectangle(340, 36 + 26 * i, 42, 22, PALETTE[i])
        drawing.add_text(392, 51 + 26 * i, f"{_span(rows)} to {_span(cols)}")
    return drawing


def _span(channels: tuple[int, int]) -> str:
    first, last = channels[0], channels[1] - 1
    return str(first) if first == last else f"{first}-{last}"


def draw_messages(compiled: RecordedCompilation) -> SvgDrawing:
    """Draws the messages between cores on the mesh, with their sizes."""
    program = compiled.passes["allocate"]
    side, gap = 4, 120
    drawing = SvgDrawing(side * gap + 30, 3 * gap + 40, "Messages between cores, in elements")
    middle = {i: (75 + gap * (i % side), 65 + gap * (i // side)) for i in range(3 * side)}
    for i, (x, y) in middle.items():
        used = i in program.cores
        drawing.add_rectangle(x - 32, y - 22, 64, 44, PALETTE[0] if used else "#eee")
        drawing.add_text(x, y + 4, f"core {i}", anchor="middle", style="w" if used else "s")
    for core, other, elements in _sends(program):
        _message(drawing, middle[core], middle[other], elements)
    return drawing


def _sends(program: Any) -> Iterator[tuple[int, int, int]]:
    for i, core in program.cores.items():
        for step in core.steps:
            if type(step.operation).__name__ == "Send":
                yield i, step.operation.core, step.operation.source.elements


def _message(drawing: SvgDrawing, start: tuple[int, int], end: tuple[int, int], elements: int) -> None:
    (x, y), (to_x, to_y) = start, end
    length = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5
    reach = 36 if abs(to_x - x) >= abs(to_y - y) else 26
    dx, dy = (to_x - x) / length * reach, (to_y - y) / length * reach
    middle = drawing.add_arrow(x + dx, y + dy, to_x - dx, to_y - dy, bend=0.0 if length < 130 else 0.06)
    drawing.add_text(middle[0], middle[1] + 3.5, str(elements), anchor="middle", style="on")


def draw_timeline(compiled: RecordedCompilation, title: str, *, by: str) -> SvgDrawing:
    """Draws times of each core, coloured by ONNX node or by operation; sends and receives, mostly waiting, are grey."""
    spans = [e for e in compiled.events if e.get("ph") == "X"]
    ids = sorted({e["pid"] for e in spans})
    colours = _colours(spans, by)
    height = max(5, min(20, 420 // len(ids)))
    drawing = SvgDrawing(760, 75 + (height + 1) * len(ids), title)
    _legend(drawing, colours)
    scale = 640 / (compiled.latency_ns / 1000)
    for row, core in enumerate(ids):
        y = 45 + (height + 1) * row
        if height > 10 or row % 5 == 0:
            drawing.add_text(15, y + height - 1, f"core {core}", style="s")
        for kind, start, end in _joined([e for e in spans if e["pid"] == core], by, pause=0.5 / scale):
            drawing.add_rectangle(
                80 + start * scale, y, max((end - start) * scale, 0.3), height, colours[kind], line="none"
            )
    drawing.add_text(80, drawing.height - 10, "0", style="s")
    drawing.add_text(720, drawing.height - 10, f"{compiled.latency_ns / 1000:.4g} us", anchor="end", style="s")
    return drawing


ColouredSpan = tuple[str, float, float]


def _joined(events: list[Mapping[str, Any]], by: str, *, pause: float) -> list[ColouredSpan]:
    """Returns kind, start and end in us; neighbours of one kind with a pause shorter than `pause` are joined."""
    spans: list[ColouredSpan] = []
    for event in sorted(events, key=lambda e: e["ts"]):
        kind, start, end = _kind(event, by), event["ts"], event["ts"] + event["dur"]
        if spans and spans[-1][0] == kind and start - spans[-1][2] < pause:
            spans[-1] = (kind, spans[-1][1], end)
        else:
            spans.append((kind, start, end))
    return spans


def _kind(event: Mapping[str, Any], by: str) -> str:
    node, _, operation = event["name"].partition(": ")
    operation = operation.partition(" (")[0]
    if operation in ("send", "receive"):
        return operation
    return node if by == "node" else operation


def _colours(spans: list[Mapping[str, Any]], by: str) -> dict[str, str]:
    kinds = dict.fromkeys(_kind(e, by) for e in sorted(spans, key=lambda e: e["ts"]))
    work = [kind for kind in kinds if kind not in ("send", "receive")]
    return dict(zip(work, PALETTE, strict=False)) | {"receive": "#ddd", "send": "#bbb"}


def _legend(drawing: SvgDrawing, colours: Mapping[str, str]) -> None:
    x = 80
    for kind, colour in colours.items():
        drawing.add_rectangle(x, 15, 12, 12, colour)
        drawing.add_text(x + 16, 25, kind, style="s")
        x += 24 + round(5 * len(kind))
