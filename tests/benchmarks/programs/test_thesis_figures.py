"""The smallest point of each figure of `benchmarks/programs/thesis_figures.py`, against counts by hand."""

from itertools import pairwise, product

import pytest

import raptor
from benchmarks.programs import thesis_figures

# The thesis's layer: 3x3 matrices for input tile, output tile and kernel position, in this order, five to a core.
MATRICES = [(i // 5, ins, outs, tap) for i, (ins, outs, tap) in enumerate(product(range(2), range(3), range(9)))]
# For each of the 2x2 output pixels: which input pixel each kernel position reads, if it lies inside.
READS = [
    {3 * ky + kx: 2 * (y + ky - 1) + x + kx - 1 for ky in range(3) for kx in range(3) if {y + ky, x + kx} <= {1, 2}}
    for y in range(2)
    for x in range(2)
]


def test_four_kernel_positions_meet_each_pixel_of_a_2x2_image():
    assert READS == [
        {4: 0, 5: 1, 7: 2, 8: 3},
        {3: 0, 4: 1, 6: 2, 7: 3},
        {1: 0, 2: 1, 4: 2, 5: 3},
        {0: 0, 1: 1, 3: 2, 4: 3},
    ]


def test_instructions_pixel_by_pixel():
    """Figures 5.2 and 5.3: a load for each input pixel of a tile on each core that reads it, and so on."""
    loads = {(core, ins, reads[tap]) for reads in READS for core, ins, _, tap in MATRICES if tap in reads}
    cascades = [[m[0] for m in MATRICES if m[2] == outs and m[3] in reads] for reads in READS for outs in range(3)]
    messages = sum(a != b for cores in cascades for a, b in pairwise(cores))
    products = sum(map(len, cascades))
    assert (len(loads), len(cascades), messages, products) == (43, 12, 31, 96)
    mix = thesis_figures.measure_mix(2, "pixelwise")
    assert mix.shown == [len(loads), len(cascades), messages, messages, products, products - len(cascades)]
    assert mix.other == 11, "a setbw on each core"


def test_instructions_channel_by_channel():
    """Whole tiles are loaded, stored and sent; sums over pixels inside a core, then one addition for each message."""
    stages = sorted({m[:3] for m in MATRICES})
    reached = [[any((*stage, tap) in MATRICES for tap in reads) for reads in READS] for stage in stages]
    sums = sum(map(sum, reached))
    gaps = sum(not pixel and before for pixels in reached for before, pixel in pairwise([True, *pixels]))
    messages = len(stages) - 3
    loads = {(core, ins) for core, ins, _ in stages}
    assert (len(loads), messages, sums, gaps) == (12, 12, 43, 9)
    mix = thesis_figures.measure_mix(2, "raptor")
    assert mix.shown == [len(loads), 3, messages, messages, 96, 96 - sums + messages]
    assert mix.other == 11 + gaps, "setbw, and zeros for runs of pixels that no product of a stage reaches"


@pytest.mark.parametrize("mapping", ["pixelwise", "raptor"])
def test_a_matrix_of_one_pixel_leaves_nothing_to_group(mapping: str):
    """Figure 5.5: two by two tiles, so four products and two additions, on one core."""
    report = thesis_figures.compile_layer(thesis_figures.build_product(6), mapping).report
    counts = {name: count for name, count in report.instructions.items() if name != "sldi"}
    assert counts == {"setbw": 1, "ld": 2, "mvmul": 4, "vvadd": 2, "st": 2}


def test_compile_time():
    point = thesis_figures.measure_seconds(2, thesis_figures.build_convolution(2), 1)
    assert all(0 < seconds < 60 for seconds in point.by_mapping.values())
    assert point.ratio == pytest.approx(point.by_mapping["pixelwise"] / point.by_mapping["raptor"])


def test_what_setbw_is_worth():
    """Figure A.3: a product of one crossbar takes 1687 cycles and 24490.24 pJ; without `setbw` 12, and nothing."""
    program = raptor.compile(thesis_figures.build_product(128), cores=1)
    assert program.report.instructions["mvmul"] == 1
    honest = thesis_figures.measure_inference(program, 1, "raptor", widths=True)
    thesis_figures.remove_widths(program)
    bare = thesis_figures.measure_inference(program, 1, "raptor", widths=False)
    assert 1e9 / honest.samples_per_s - 1e9 / bare.samples_per_s == pytest.approx(1687 - 12)
    saved_pj = (honest.energy_uwh - bare.energy_uwh) * thesis_figures.PJ_PER_UWH
    assert saved_pj == pytest.approx(24490.24, rel=0.3)
    assert saved_pj > 24490.24, "and the static power of 1675 ns"
