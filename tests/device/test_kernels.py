"""Kernels of OCC: values, and the closed forms of docs/how-to/occ-kernels.md, at small sizes."""

from dataclasses import replace

import numpy as np
import pytest

import raptor.device
from benchmarks.programs.occ_kernels import KERNELS, PAGE, KernelFigures, OccKernel, compute_figures, render_page
from raptor.device.schedulers import SCHEDULERS

XBAR = (4, 3)
ENOUGH = 400
"""Crossbars for all tiles of a kernel, so that no scheduler has to write one again."""


def measured(kernel: OccKernel, schedule: str) -> tuple[KernelFigures, int]:
    """Computes a kernel. Returns its figures, with the writes of this scheduler for both kinds."""
    with raptor.device.open("numpy", xbar=XBAR, crossbars=ENOUGH) as device:
        with device.graph(schedule) as graph:
            node = kernel.build(graph, kernel.small)
        got = node.result(30)
        account = device.account
    want = np.asarray(kernel.want(kernel.small), np.float64)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    cells = sum(op.matrix.shape[0] * op.matrix.shape[1] for op in graph.products)
    return KernelFigures(account.writes, account.writes, account.products, graph.share, 0.0), cells


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_values_and_closed_forms(kernel: OccKernel):
    want = compute_figures(kernel, kernel.small, XBAR)
    assert want.fewest_writes <= want.writes
    for schedule in SCHEDULERS:
        found, cells = measured(kernel, schedule)
        writes = want.fewest_writes if schedule == "min_writes" else want.writes
        assert found == KernelFigures(writes, writes, want.products, pytest.approx(want.share), 0.0)
        tiled = sum(times * -(-m // XBAR[0]) * k * n for (m, k, n), times in kernel.gemms(kernel.small))
        assert cells == tiled


def test_a_wrong_closed_form_is_seen():
    """The planted defect: a product more than there is."""
    kernel = next(kernel for kernel in KERNELS if kernel.name == "lstm")
    wrong = replace(kernel, gemms=lambda n: [*kernel.gemms(n), ((1, n, n), 1)])
    assert compute_figures(wrong, 5, XBAR) != compute_figures(kernel, 5, XBAR)
    with pytest.raises(AssertionError):
        test_values_and_closed_forms(wrong)


def test_published_figures():
    """OCC's figures at its sizes: interchange divides the writes by the tiles of rows; shares, and cells in use."""
    found = {kernel.name: compute_figures(kernel, kernel.size, (64, 64)) for kernel in KERNELS}
    assert (found["mm"].writes, found["mm"].fewest_writes) == (64, 16)
    assert all(found[name].cells == 1 for name in ("mm", "tmm", "2mm", "3mm", "mv"))
    assert round(found["conv2d"].cells, 2) == 0.02
    assert found["mv"].writes == found["mv"].fewest_writes
    layers = next(kernel for kernel in KERNELS if kernel.name == "mlp3")
    macs, pointwise = 3 * 256**3, layers.operations(256)
    assert macs / (macs + pointwise / 2) > 0.995 > macs / (macs + pointwise)


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == render_page(), "run make bench-occ"
