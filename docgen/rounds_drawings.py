"""Drawings of rounds and chips for docs/how-to/rounds.md, made from real compilations."""

import tempfile
from pathlib import Path

import models
import raptor
from docgen.recorded_passes import PassRecorder
from docgen.svg import PALETTE, SvgDrawing
from raptor.mapping.multichip.chip_numbering import find_line_work, renumber_decision
from raptor.mapping.multichip.chip_traffic import sum_core_traffic
from raptor.output.writer import ProgramArtifacts
from validator.simulate.weight_reloading import ReloadingFigures

WRITES, RUNS, BESIDE = PALETTE[1], PALETTE[0], "#bbb"
BATCHES = (1, 4, 16, 64, 256, 1024)


def draw_all() -> dict[str, str]:
    """Returns SVG by name."""
    found = _lenet5_in_rounds()
    return {"rounds": str(draw_rounds(found)), "batches": str(draw_batches(found)), "chips": str(draw_chips())}


def _lenet5_in_rounds() -> ReloadingFigures:
    """Compiles and simulates the example of the page in rounds. Returns its figures."""
    program = raptor.compile(
        models.build("lenet5"), cores=1, xbars_per_core=32, rounds=True, batch=16, device="pcm-occ"
    )
    with tempfile.TemporaryDirectory() as scratch:
        found = raptor.simulate(program.save(Path(scratch) / "out")).reloading
    assert found is not None, "the model is larger than the chip"
    return found


def draw_rounds(found: ReloadingFigures) -> SvgDrawing:
    """Draws a time line of a batch: for each round the crossbar writes, then the run of all samples."""
    drawing = SvgDrawing(760, 62 + 34 * len(found.rounds), f"A batch of {found.batch} samples of LeNet-5 in rounds")
    drawing.add_legend(90, (("writes crossbars", WRITES), (f"runs {found.batch} samples", RUNS)))
    scale, at = 640 / found.batch_ns, 90.0
    for row, one in enumerate(found.rounds):
        y = 38 + 34 * row
        drawing.add_text(15, y + 16, f"round {row}")
        for ns, colour in ((one.write_ns, WRITES), (one.run_ns(found.batch), RUNS)):
            drawing.add_rectangle(at, y, ns * scale, 24, colour)
            if ns * scale > 60:
                drawing.add_text(at + ns * scale / 2, y + 16, f"{ns / 1e6:.3g} ms", anchor="middle", style="w")
            at += ns * scale
    drawing.add_text(90, drawing.height - 8, "0", style="s")
    drawing.add_text(730, drawing.height - 8, f"{found.batch_ns / 1e6:.3g} ms", anchor="end", style="s")
    return drawing


def draw_batches(found: ReloadingFigures) -> SvgDrawing:
    """Draws the time of a sample for several batch sizes: its share of the crossbar writes, and the run."""
    drawing = SvgDrawing(760, 48 + 28 * len(BATCHES), "Time of a sample of LeNet-5 in rounds, for several batches")
    drawing.add_legend(90, (("writing", WRITES), ("work", RUNS)))
    writing_ns = sum(one.write_ns for one in found.rounds)
    times = [(writing_ns / n, sum(one.run_ns(n) for one in found.rounds) / n) for n in BATCHES]
    scale = 560 / max(map(sum, times))
    for row, (batch, (write_ns, run_ns)) in enumerate(zip(BATCHES, times, strict=True)):
        y = 36 + 28 * row
        drawing.add_text(15, y + 15, f"batch {batch:,}")
        drawing.add_rectangle(90, y, write_ns * scale, 20, WRITES, line="none")
        drawing.add_rectangle(90 + write_ns * scale, y, run_ns * scale, 20, RUNS, line="none")
        drawing.add_text(96 + (write_ns + run_ns) * scale, y + 15, f"{(write_ns + run_ns) / 1e3:,.0f} us", style="s")
    return drawing


def draw_chips() -> SvgDrawing:
    """Draws the traffic across each cut between two core numbers, for two numberings: by layers, and by use."""
    before, after = _cut_flits()
    drawing = SvgDrawing(760, 258, "What cores below a number and the others exchange, for a transformer on 48 cores")
    drawing.add_legend(60, (("layers numbered first, then attentions", BESIDE), ("in the order of use", RUNS)))
    scale, base = 170 / max(before), 216
    for begin, flits in enumerate(zip(before, after, strict=True), 1):
        x = 60 + 14 * (begin - 1)
        for at, one, colour in zip((x, x + 6), flits, (BESIDE, RUNS), strict=True):
            drawing.add_rectangle(at, base - one * scale, 6, one * scale, colour, line="none")
        if begin % 8 == 0:
            drawing.add_text(x + 6, base + 14, str(begin), anchor="middle", style="s")
    drawing.add_text(15, base - 166, f"{max(before):,.0f}", style="s")
    drawing.add_text(15, base, "0", style="s")
    crossing = f"two chips of 24 cores: {after[23]:,.0f} flits of a sample cross, not {before[23]:,.0f}"
    drawing.add_text(396, base + 32, crossing, anchor="middle")
    return drawing


def _cut_flits() -> tuple[list[float], list[float]]:
    """Returns the flits per sample across the cut below core k, for k from 1 to 47, for two numberings of the cores.

    First with the cores of layers numbered before those of attentions, then with the numbering of the compiler.
    """
    recorder = PassRecorder()
    model = models.build("bert_tiny", seed=0, depth=6, dim=128, heads=4, tokens=32)
    artifacts = raptor.compile(
        model, driver=recorder, xbar=64, xbars_per_core=48, cores=24, chips=2, link="200:1"
    ).artifacts
    assert isinstance(artifacts, ProgramArtifacts), "a program of its own"
    decision, graph = recorder.results["map"].decision, recorder.results["compose_gathers"]
    layers, flow, arch = decision.layers, decision.flow, artifacts.arch
    attending = {core for grid in flow.products.values() for core in grid.cores}
    order = [*(core for core in range(48) if core not in attending), *sorted(attending)]
    found: list[list[float]] = []
    for number in (order.index, int):
        of_cores = sum_core_traffic(find_line_work(graph, renumber_decision((layers, flow), number), arch), arch)
        both = of_cores + of_cores.T
        found.append([float(both[:begin, begin:].sum()) for begin in range(1, 48)])
    return found[0], found[1]
