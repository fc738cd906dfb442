"""Recurrent layers (LSTM, GRU, RNN), unrolled over time.

One `Filter` computes the input part of all steps. The recurrent part has one `Filter` per step; these share their
crossbars. Gates are element-wise. A hidden state that is zero at the start costs nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal, NeedsConstantError
from raptor.frontend.operators.elementwise import activations
from raptor.frontend.operators.elementwise.activations import Activation
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.graph.constant_arrays import copy_contiguous
from raptor.graph.ir import (
    Constant,
    ConstantTensor,
    Filter,
    Floats,
    Indices,
    Tensor,
)
from raptor.graph.rearrangement import c_order, make_move
from raptor.graph.window import Window
from raptor.target.tensor_layout import Image

LIMITS = "constant weights and full sequences"


@importer("LSTM", since=7, limits=LIMITS, all_outputs=True)
def import_lstm(node: NodeView, ctx: ImportContext) -> None:
    """Long short-term memory, with all directions, peepholes, input_forget, clip, initial states, any activations."""
    _lower(node, ctx, _Lstm, ("Sigmoid", "Tanh", "Tanh"))


@importer("GRU", since=7, limits=LIMITS, all_outputs=True)
def import_gru(node: NodeView, ctx: ImportContext) -> None:
    """Gated recurrent unit, with all directions, linear_before_reset, clip, initial state, any activations."""
    _lower(node, ctx, _Gru, ("Sigmoid", "Tanh"))


@importer("RNN", since=7, limits=LIMITS, all_outputs=True)
def import_rnn(node: NodeView, ctx: ImportContext) -> None:
    """Simple recurrent layer, with all directions, clip, initial state, any activations."""
    _lower(node, ctx, _Rnn, ("Tanh",))


@dataclass(frozen=True, slots=True)
class _RecurrentState:
    """State between steps; None stands for zero."""

    hidden: Tensor | None
    cell: Tensor | None = None


@dataclass(slots=True)
class _RecurrentLayer:
    """One direction of a recurrent layer. Tensors of one step are [batch, hidden]."""

    node: NodeView
    ctx: ImportContext
    direction: int
    is_reverse: bool
    batch: int
    hidden: int
    functions: tuple[Activation, ...]
    weights: Floats
    """[1, inputs, gates * hidden]"""
    recurrent: Floats
    biases: Floats
    """[2, gates * hidden]: biases of the input part, then of the recurrent part."""
    peepholes: Floats
    """[3 * hidden]; zero if absent."""
    filters: dict[str, Filter] = field(default_factory=dict[str, Filter])

    @property
    def gates(self) -> int:
        return self.recurrent.shape[2] // self.hidden

    def step(self, parts: Tensor, state: _RecurrentState) -> _RecurrentState:
        """Emits one step; returns the state after it. `parts`: the input part of the sums, [batch, gates * hidden]."""
        raise NotImplementedError

    def input_biases(self) -> Floats:
        """Returns the bias added to the input part of all steps."""
        return self.biases.sum(axis=0)

    def formula(self, gates: int = 1) -> FormulaBuilder:
        shape = (self.batch, gates * self.hidden)
        return FormulaBuilder(self.node, self.ctx, shape, Image(shape, 1))

    @property
    def stem(self) -> str:
        return next(o for o in self.node.outputs if o)

    def moved(self, source: Tensor, wanted: Indices, what: str) -> Tensor:
        """Rearranges elements of a tensor to [rows, channels]."""
        image = Image((wanted.shape[0], wanted.shape[1]), 1)
        operator = make_move([source.image], wanted, image)
        return self.ctx.emit_inner(self.node, (source.name,), image.shape, image, operator, f"{self.stem}.{what}")

    def input_part(self, sequence: Tensor, steps: int) -> Tensor:
        """Emits the input part [steps * batch, gates * hidden] of `sequence` [steps * batch, inputs]."""
        shape = (steps * self.batch, self.gates * self.hidden)
        filter_ = Filter(self.weights, Window.pointwise(shape[:1]))
        image = Image(shape, 1)
        products = self.ctx.emit_inner(self.node, (sequence.name,), shape, image, filter_, f"{self.stem}.inputs")
        bias = self.input_biases()
        if not bias.any():
            return products
        result = FormulaBuilder(self.node, self.ctx, shape, image).add(products, Constant(bias.reshape(1, 1, -1)))
        assert isinstance(result, Tensor)
        return result

    def product(self, hidden: Tensor, first: int, last: int) -> Tensor:
        """Emits the recurrent part of gates `first` to `last`; all steps share its crossbars."""
        cols = slice(first * self.hidden, last * self.hidden)
        shape = (self.batch, (last - first) * self.hidden)
        key = f"{self.stem}.recurrent.{self.direction}.{first}"
        if key not in self.filters:
            self.filters[key] = Filter(
                copy_contiguous(self.recurrent[:, :, cols]), Window.pointwise(shape[:1]), key=key
            )
        filter_ = self.filters[key]
        return self.ctx.emit_inner(self.node, (hidden.name,), shape, Image(shape, 1), filter_, f"{self.stem}.products")

    def gate(self, sums: Tensor, number: int, count: int = 1) -> Tensor:
        """Takes `count` gates, from `number` on, out of sums [batch, gates * hidden]."""
        if sums.shape[1] == count * self.hidden:
            return sums
        wanted = c_order(sums.shape)[:, number * self.hidden : (number + count) * self.hidden]
        return self.moved(sums, wanted, "gate")

    def activated(self, number: int, x: Value) -> Value:
        f = self.formula()
        clip = self.node.number("clip", 0)
        return self.functions[number](f, f.max(f.min(x, clip), -clip) if clip else x)


class _Rnn(_RecurrentLayer):
    """h' = f(x W + h R + b)."""

    def step(self, parts: Tensor, state: _RecurrentState) -> _RecurrentState:
        f = self.formula()
        sums = parts if state.hidden is None else f.add(parts, self.product(state.hidden, 0, 1))
        return _RecurrentState(_tensor(self.activated(0, sums)))


class _Gru(_RecurrentLayer):
    """h' = (1 - z) g + z h, with the update gate z, the reset gate r and the candidate state g."""

    @property
    def linear_before_reset(self) -> bool:
        return bool(self.node.integer("linear_before_reset", 0))

    def input_biases(self) -> Floats:
        split = 2 * self.hidden
        gates, inputs, recurrent = self.biases.sum(axis=0)[:split], self.biases[0, split:], self.biases[1, split:]
        return np.concatenate([gates, inputs if self.linear_before_reset else inputs + recurrent])

    def step(self, parts: Tensor, state: _RecurrentState) -> _RecurrentState:
        f, hidden = self.formula(), state.hidden
        sums = self.gate(parts, 0, 2)
        if hidden is not None:
            sums = _tensor(self.formula(2).add(sums, self.product(hidden, 0, 2)))
        update = self.activated(0, self.gate(sums, 0))
        recurrent = self.new_part(sums, hidden)
        new = self.gate(parts, 2)
        new = self.activated(1, new if recurrent is None else f.add(new, recurrent))
        kept = f.neg(new) if hidden is None else f.sub(hidden, new)
        return _RecurrentState(_tensor(f.add(new, f.mul(update, kept))))

    def new_part(self, sums: Tensor, hidden: Tensor | None) -> Value | None:
        """Emits the recurrent part of g: of r * h, or r times the part of h (linear_before_reset); None if zero."""
        f = self.formula()
        bias = Constant(self.biases[1, 2 * self.hidden :].reshape(1, 1, -1))
        if not self.linear_before_reset:
            if hidden is None:
                return None
            return self.product(_tensor(f.mul(self.activated(0, self.gate(sums, 1)), hidden)), 2, 3)
        biased = bool(bias.pixels.any())
        if hidden is None and not biased:
            return None
        product: Value = bias if hidden is None else self.product(hidden, 2, 3)
        if hidden is not None and biased:
            product = f.add(product, bias)
        return f.mul(self.activated(0, self.gate(sums, 1)), product)


class _Lstm(_RecurrentLayer):
    """c' = f c + i g and h' = o act(c'), with the gates i, o, f and the candidate cell g."""

    def step(self, parts: Tensor, state: _RecurrentState) -> _RecurrentState:
        f, cell = self.formula(), state.cell
        sums = parts
        if state.hidden is not None:
            sums = _tensor(self.formula(4).add(parts, self.product(state.hidden, 0, 4)))
        entering = self.activated(0, self.peeped(self.gate(sums, 0), 0, cell))
        new = f.mul(entering, self.activated(1, self.gate(sums, 3)))
        if cell is not None:
            new = f.add(f.mul(self.forget(sums, entering, cell), cell), new)
        output = self.activated(0, self.peeped(self.gate(sums, 1), 1, _tensor(new)))
        return _RecurrentState(_tensor(f.mul(output, self.functions[2](f, new))), _tensor(new))

    def forget(self, sums: Tensor, entering: Value, cell: Tensor) -> Value:
        if self.node.integer("input_forget", 0):
            return self.formula().sub(1, entering)
        return self.activated(0, self.peeped(self.gate(sums, 2), 2, cell))

    def peeped(self, sums: Tensor, number: int, cell: Tensor | None) -> Value:
        """Adds a peephole connection (order i, o, f) to the sums: the cell state times a weight per hidden unit."""
        weights = self.peepholes[number * self.hidden : (number + 1) * self.hidden]
        if cell is None or not weights.any():
            return sums
        f = self.formula()
        return f.add(sums, f.mul(cell, Constant(weights.reshape(1, 1, -1))))


def _tensor(value: Value) -> Tensor:
    if isinstance(value, Constant):
        raise ImportRefusal("its gates are constant")
    return value


def _lower(node: NodeView, ctx: ImportContext, kind: type[_RecurrentLayer], functions: Sequence[str]) -> None:
    given = ctx.constant(node.inputs[0])
    steps, batch, inputs = ctx.tensor(node.inputs[0]).shape if given is None else given.shape
    assert not node.integer("layout", 0), "see raptor.frontend.canonical.time_first_rnn"
    _require_full(node, ctx, steps)
    sequence = _read_sequence(node, ctx, Image((steps * batch, inputs), 1))
    layers = _layers(node, ctx, kind, batch, functions)
    states = [_unrolled(node, ctx, layer, sequence, steps) for layer in layers]
    _emit_outputs(node, ctx, layers, states)


def _require_full(node: NodeView, ctx: ImportContext, steps: int) -> None:
    name = node.input(4)
    if name is None:
        return
    lengths = ctx.constant(name)
    if lengths is None:
        raise NeedsConstantError(name)
    if (lengths != steps).any():
        raise ImportRefusal(f"its sequences {lengths.tolist()} are shorter than {steps} steps")


def _layers(
    node: NodeView, ctx: ImportContext, kind: type[_RecurrentLayer], batch: int, functions: Sequence[str]
) -> list[_RecurrentLayer]:
    w, r = ctx.read_float32(node.inputs[1]), ctx.read_float32(node.inputs[2])
    directions, rows, hidden = r.shape
    b = _optional(node, ctx, 3, (directions, 2 * rows))
    p = _optional(node, ctx, 7, (directions, 3 * hidden))
    chosen = _functions(node, list(functions) * directions)
    layers: list[_RecurrentLayer] = []
    for d in range(directions):
        own = tuple(chosen[d * len(functions) : (d + 1) * len(functions)])
        is_reverse = d == 1 or node.string("direction", "forward") == "reverse"
        weights, recurrent = copy_contiguous(w[d].T[None]), copy_contiguous(r[d].T[None])
        biases = copy_contiguous(b[d]).reshape(2, -1)
        layers.append(
            kind(node, ctx, d, is_reverse, batch, hidden, own, weights, recurrent, biases, copy_contiguous(p[d]))
        )
    return layers


def _optional(node: NodeView, ctx: ImportContext, position: int, shape: tuple[int, ...]) -> Floats:
    name = node.input(position)
    return np.zeros(shape, np.float32) if name is None else ctx.read_float32(name)


def _functions(node: NodeView, defaults: Sequence[str]) -> list[Activation]:
    """Returns the activation functions; each consumes its parameters from the start of the lists alpha and beta."""
    given = node.attributes.get("activations")
    names = [n.decode() if isinstance(n, bytes) else str(n) for n in given] if given else list(defaults)
    alphas = iter(node.attributes.get("activation_alpha", ()))
    betas = iter(node.attributes.get("activation_beta", ()))
    return [_function(name, alphas, betas) for name in names]


def _function(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    key = name.lower()
    if key in _PLAIN:
        return _PLAIN[key]
    if key in _OF_ALPHA:
        make, alpha = _OF_ALPHA[key]
        return make(float(next(alphas, alpha)))
    if key in _OF_ALPHA_AND_BETA:
        make_of_two, alpha, beta = _OF_ALPHA_AND_BETA[key]
        return make_of_two(float(next(alphas, alpha)), float(next(betas, beta)))
    raise ImportRefusal(f"the activation {name} is not supported")


def _affine(alpha: float, beta: float) -> Activation:
    return lambda f, x: f.add(f.mul(x, alpha), beta)


def _scaled_tanh(alpha: float, beta: float) -> Activation:
    return lambda f, x: f.mul(activations.tanh(f, f.mul(x, beta)), alpha)


_PLAIN: Mapping[str, Activation] = {
    "relu": activations.relu,
    "tanh": activations.tanh,
    "sigmoid": activations.sigmoid,
    "softsign": activations.softsign,
    "softplus": activations.softplus,
}
_OF_ALPHA: Mapping[str, tuple[Callable[[float], Activation], float]] = {
    "leakyrelu": (activations.leaky_relu, 0.01),
    "elu": (activations.elu, 1),
    "thresholdedrelu": (activations.thresholded_relu, 1),
}
_OF_ALPHA_AND_BETA: Mapping[str, tuple[Callable[[float, float], Activation], float, float]] = {
    "hardsigmoid": (activations.hard_sigmoid, 0.2, 0.5),
    "affine": (_affine, 1, 0),
    "scaledtanh": (_scaled_tanh, 1, 1),
}


def _unrolled(
    node: NodeView, ctx: ImportContext, layer: _RecurrentLayer, sequence: Tensor, steps: int
) -> list[_RecurrentState]:
    parts = layer.input_part(sequence, steps)
    rows = c_order(parts.shape).reshape(steps, layer.batch, -1)
    state = _RecurrentState(_initial(node, ctx, layer, 5), _initial(node, ctx, layer, 6))
    states: list[_RecurrentState] = []
    for step in reversed(range(steps)) if layer.is_reverse else range(steps):
        state = layer.step(layer.moved(parts, rows[step], "step") if steps > 1 else parts, state)
        states.append(state)
    return states[::-1] if layer.is_reverse else states


def _read_sequence(node: NodeView, ctx: ImportContext, image: Image) -> Tensor:
    """Returns the sequence that a recurrent layer reads, computed or constant: a pixel for each step and sample."""
    name = node.inputs[0]
    if not ctx.is_constant(name):
        x = ctx.tensor(name)
        return x if x.image.has_layout_of(image) else ctx.lay_out(node, x, image)
    return _emit_constant(node, ctx, ctx.read_float32(name), image, f"{node.output}.sequence")


def _initial(node: NodeView, ctx: ImportContext, layer: _RecurrentLayer, position: int) -> Tensor | None:
    name = node.input(position)
    if name is None:
        return None
    if ctx.constant(name) is None:
        state = ctx.tensor(name)
        return layer.moved(state, c_order(state.shape)[layer.direction], "initial")
    values = ctx.read_float32(name)[layer.direction]
    if not values.any():
        return None
    image = Image(values.shape, 1)
    return _emit_constant(node, ctx, values, image, f"{layer.stem}.initial")


def _emit_constant(node: NodeView, ctx: ImportContext, values: Floats, image: Image, stem: str) -> Tensor:
    """Emits a constant tensor in the layout `image`; its name begins with `stem`."""
    return ctx.emit_inner(node, (), image.shape, image, ConstantTensor(copy_contiguous(image.to_pixels(values))), stem)


def _emit_outputs(
    node: NodeView, ctx: ImportContext, layers: Sequence[_RecurrentLayer], states: Sequence[Sequence[_RecurrentState]]
) -> None:
    """Adds the outputs that are used: Y [steps, directions, batch, hidden], Y_h and Y_c [directions, batch, hidden]."""
    lasts = [s[0 if layer.is_reverse else -1] for layer, s in zip(layers, states, strict=True)]
    stacks = (
        [s.hidden for step in zip(*states, strict=True) for s in step],
        [s.hidden for s in lasts],
        [s.cell for s in lasts],
    )
    for output, stack in zip(node.outputs, stacks, strict=False):
        if output and output in ctx.read_names:
            tensors = [t for t in stack if t is not None]
            shape = ctx.shape(output)
            image = Image(shape, len(shape) - 1)
            operator = make_move([t.image for t in tensors], c_order(shape), image)
            ctx.emit(node, tuple(t.name for t in tensors), image, operator, output)
