"""Finds a lower bound on the interval of every mapping by a linear program, with multipliers that prove it.

The program (`validator.bounds.certificate` has its dual) minimises the interval t. Products of each layer cover what
the layer demands, all work fits the cores in t, and crossbars hold the weights of their layer for all of t. Products
that may help enter it round by round. The solver's result is never used itself: its prices are rounded to fractions,
lowered until no product covers more than it costs, and the bound is computed from them exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from validator.bounds.certificate import compute_layer_value, prove_bound
from validator.bounds.model_work import ModelWork
from validator.bounds.product_layer import ChannelRange, ProductLayer, cover_axis

Floats = npt.NDArray[np.float64]

MS = 1e6
"""Times of the program are in ms: HiGHS drops coefficients below 1e-9, and a program in ns lost products."""
DENOMINATOR = 2**20
"""Denominator of the prices. A price is about 0.2 ns, so rounding costs less than 1e-5 of it."""
PLENTY = 1e4
"""Times the crossbars of a core, so that they do not bind."""
MOST_ROUNDS = 30
NEW_PRODUCTS = 30
"""Most products of a layer that enter the program in a round."""


@dataclass(slots=True, eq=False)
class _Products:
    """The products of a layer, one row each: `cost` in ns, `busy` (crossbars x ns), `covered` of the four demands.

    `used`: rows in the program. `prices`, `alpha`: of the last solution.
    """

    layer: ProductLayer
    form: int
    part: ChannelRange
    cost: Floats
    busy: Floats
    covered: Floats
    demand: Floats
    used: npt.NDArray[np.int64]
    prices: Floats
    alpha: float = 0.0

    @property
    def scale(self) -> float:
        return float(self.demand.max())

    def reduced(self) -> Floats:
        """Returns what each product costs beyond the price of what it covers, as a share of its cost."""
        cost = self.cost + self.alpha * self.busy
        return (cost - self.covered @ self.prices) / cost


def list_products(layer: ProductLayer, form: int, part: ChannelRange) -> _Products:
    """Returns the products that may be best: with one crossbar, and with all channels or all crossbars of a core."""
    chip = layer.chip
    base, wide, add = float(chip.base_ns), float(chip.crossbar_ns), float(layer.add_ns)
    rows: list[Floats] = []
    for block in layer.blocks(part):
        lines, pixels = cover_axis(layer.y, block.lines), cover_axis(layer.x, block.pixels)
        fy, fx = np.array(lines.pairs, float)[:, None], np.array(pixels.pairs, float)[None, :]
        o = (np.arange(1, fy.size + 1)[:, None] * np.arange(1, fx.size + 1)).astype(float)
        ones = np.ones_like(o)
        cover = np.stack([lines.ins * pixels.ins * ones, lines.ins * fx * ones, fy * pixels.ins * ones, fy * fx])
        for most in (chip.outputs, chip.outputs * chip.xbars):
            results = np.minimum(block.outputs * o, most)
            xbars = np.maximum(1, results / chip.outputs)
            costs = [base + wide * xbars + add * results, xbars * (base + wide)]
            rows.append(np.stack([*costs, *(cover * block.inputs * results / o)]).reshape(6, -1))
    found = np.concatenate(rows, axis=1)
    demand = np.array([float(amount) for amount in layer.demand(part)])
    best = [np.argsort(found[0] / found[2 + i])[:NEW_PRODUCTS] for i in range(4)]
    return _Products(
        layer, form, part, found[0], found[1], found[2:].T, demand, np.unique(np.concatenate(best)), np.zeros(4)
    )


class _Program:
    """Rows and columns of a linear program: minimise the first variable, subject to rows >= `low`."""

    def __init__(self) -> None:
        self.low: list[float] = []
        self.columns = 0
        self._entries: list[tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]] = []

    def add_rows(self, *low: float) -> int:
        """Adds rows with their lower limits, and returns the first."""
        self.low += low
        return len(self.low) - len(low)

    def add_columns(self, count: int = 1) -> int:
        """Adds variables of at least 0, and returns the first."""
        self.columns += count
        return self.columns - count

    def enter(self, row: npt.ArrayLike, column: npt.ArrayLike, value: npt.ArrayLike) -> None:
        """Enters coefficients."""
        self._entries.append((row, column, value))

    def solve(self, optimize: ModuleType, sparse: ModuleType) -> Floats:
        """Returns the prices of the rows."""
        entries = [np.broadcast_arrays(*entry) for entry in self._entries]
        rows, columns, values = (np.concatenate([e[i].reshape(-1) for e in entries]) for i in range(3))
        shape = (len(self.low), self.columns)
        matrix = sparse.coo_matrix((-values, (rows, columns)), shape=shape).tocsr()
        cost = np.zeros(self.columns)
        cost[0] = 1
        found = optimize.linprog(cost, A_ub=matrix, b_ub=-np.array(self.low), bounds=(0, None), method="highs")
        assert found.status == 0, f"the linear program of the bound: {found.message}"
        return -np.asarray(found.ineqlin.marginals, float)


def find_certificate(work: ModelWork, *, crossbars: bool = True) -> dict[str, Any]:
    """Returns a certificate of the largest bound that the linear program proves, as JSON values.

    `crossbars`: False to bound by work alone, as if each core had crossbars enough. Raises `UserError` if scipy is
    missing, and `CertificateRefused` if the weights do not fit the chip.
    """
    try:
        solver, sparse = import_module("scipy.optimize"), import_module("scipy.sparse")
    except ImportError as e:
        raise UserError(
            "a bound on the interval of every mapping needs scipy: pip install 'raptor-crossbar[bounds]'"
        ) from e
    products = [
        [list_products(layer, form, part) for form, parts in enumerate(layer.forms) for part in parts]
        for layer in work.layers
    ]
    crossbar_price = 0.0
    for _ in range(MOST_ROUNDS):
        crossbar_price = _solve(work, products, (solver, sparse), crossbars=crossbars)
        if not sum(_take_products(one) for layer in products for one in layer):
            break
    v = Fraction(max(0, int(crossbar_price * DENOMINATOR)), DENOMINATOR)
    given: dict[str, Any] = {
        "cores": work.chip.cores,
        "v": str(v),
        "layers": [_priced_layer(one, v) for one in products],
        "vector_ns": {name: str(ns) for name, ns in work.vector_ns.items()},
        "transfer_ns": str(work.transfer_ns),
        "port_ns": str(work.port_ns),
        "bound_ns": "0",
    }
    return given | {"bound_ns": str(prove_bound(work, given))}


def _solve(
    work: ModelWork, products: Sequence[Sequence[_Products]], scipy: tuple[ModuleType, ModuleType], *, crossbars: bool
) -> float:
    """Solves the program for the products in use, sets the prices of all layers, and returns that of crossbars."""
    chip, program = work.chip, _Program()
    t = program.add_columns()
    all_work = program.add_rows(float(work.transfer_ns + sum(work.vector_ns.values())) / MS)
    all_xbars = program.add_rows(0.0)
    program.enter(all_work, t, chip.cores)
    program.enter(all_xbars, t, chip.cores * chip.xbars * (1 if crossbars else PLENTY))
    rows = [_add_layer(program, layer, (all_work, all_xbars, t)) for layer in products]
    price = program.solve(*scipy)
    # Prices are by that of work, which is 0 where crossbars alone bind; a larger one proves little less.
    unit = max(float(price[all_work]), 1e-6 * float(price[all_xbars])) or 1.0
    for layer, (busy, covers) in zip(products, rows, strict=True):
        for one, first in zip(layer, covers, strict=True):
            one.alpha = max(0.0, float(price[busy] / unit))
            per_copy = price[first : first + 4] / unit / one.scale / len(one.layer.nodes) / one.part.number
            one.prices = np.maximum(0, per_copy) * MS
    return float(price[all_xbars] / unit)


def _add_layer(program: _Program, products: Sequence[_Products], shared: tuple[int, int, int]) -> tuple[int, list[int]]:
    """Adds a layer. Returns the row of its crossbars, and the first row of the demands of each range of channels."""
    (all_work, all_xbars, t), layer = shared, products[0].layer
    copies = len(layer.nodes)
    busy, held, once = program.add_rows(0.0), program.add_rows(0.0), program.add_rows(1.0)
    crossbars, forms = program.add_columns(), program.add_columns(len(layer.forms))
    program.enter([all_xbars, busy, held], crossbars, [-1, 1, 1])
    program.enter(held, t, -copies * layer.held_xbars)
    for form in range(len(layer.forms)):
        program.enter([all_work, once], forms + form, [copies * float(layer.add_ns) * layer.results / MS, 1])
    if layer.vector_ns is not None:
        program.enter([all_work, once], program.add_columns(), [-copies * float(layer.vector_ns) / MS, 1])
    covers = [_add_products(program, one, forms + one.form, (all_work, busy)) for one in products]
    return busy, covers


def _add_products(program: _Program, one: _Products, form: int, shared: tuple[int, int]) -> int:
    """Adds the products of a range of channels. Returns the first row of their demands."""
    (all_work, busy), count = shared, len(one.layer.nodes) * one.part.number
    covers = program.add_rows(0.0, 0.0, 0.0, 0.0)
    program.enter(np.arange(covers, covers + 4), form, -one.demand / one.scale)
    covered = one.covered[one.used]
    unit = one.scale / covered.max(axis=1)  # so many products cover the largest demand
    columns = program.add_columns(len(unit)) + np.arange(len(unit))
    program.enter(all_work, columns, -count * one.cost[one.used] * unit / MS)
    program.enter(busy, columns, -count * one.busy[one.used] * unit / MS)
    program.enter(np.arange(covers, covers + 4)[:, None], columns, (covered * unit[:, None]).T / one.scale)
    return covers


def _take_products(one: _Products) -> int:
    """Takes the products into the program that cover more than they cost. Returns their number."""
    reduced = one.reduced()
    better = np.flatnonzero(reduced < -1e-7)
    better = np.setdiff1d(better[np.argsort(reduced[better])][:NEW_PRODUCTS], one.used)
    one.used = np.union1d(one.used, better)
    return len(better)


def _priced_layer(products: Sequence[_Products], v: Fraction) -> dict[str, Any]:
    """Returns a layer of the certificate: its prices, lowered until they are proved."""
    alpha, layer = min(v, Fraction(max(0, int(products[0].alpha * DENOMINATOR)), DENOMINATOR)), products[0].layer
    prices: list[list[list[Fraction]]] = [[] for _ in layer.forms]
    for one in products:
        one.alpha = float(alpha)
        safe = min(1.0, 1.0 / float((1 - one.reduced()).max(initial=1.0))) * (1 - 1e-9)
        prices[one.form].append([Fraction(int(price * safe * DENOMINATOR), DENOMINATOR) for price in one.prices])
    return {
        "nodes": layer.nodes,
        "held_xbars": layer.held_xbars,
        "alpha": str(alpha),
        "prices": [[list(map(str, four)) for four in form] for form in prices],
        "value_ns": str(compute_layer_value(layer, alpha, prices)),
    }
