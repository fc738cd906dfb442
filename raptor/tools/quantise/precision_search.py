"""Mixed precision by search: lowers bits of layers until the program meets a budget of latency or energy.

Each step lowers the weights or the input of one layer to 4 bits: the operand with which the simulator saves the most
per noise that it adds to the outputs. At the end, steps that are no longer needed are undone, the noisiest first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, get_args

from raptor import frontend
from raptor.codegen.machine_backend import CostModel, MachineBackend, find_backend
from raptor.common.errors import CapacityError, UnsupportedError, UserError
from raptor.common.option_spelling import spell_option
from raptor.common.options import arguments
from raptor.common.process.gc_policy import pause_gc
from raptor.compiler import pipeline
from raptor.compiler.pass_driver import Driver, parse_driver
from raptor.mapping.scheduling.order_selection import BALANCED_OBJECTIVE
from raptor.mapping.strategies import ROWS
from raptor.options import CompileOptions, PolicyKeywords, read_options
from raptor.target.arch import Target, load_chip
from raptor.tools.quantise.mixed_precision import find_adjustable_operands
from raptor.tools.quantise.noise import OutputNoise
from raptor.tools.quantise.options import NO_POLICY, parse_choice
from raptor.tools.quantise.policy import UNITS, Goal, Operand, Policy, PolicySearch, PolicyStep
from raptor.tools.quantise.static_quantisation import CalibratedModel, CalibrationRequest, calibrate_model

if TYPE_CHECKING:
    from onnx import ModelProto

GOAL_OPTION: arguments.OneOf[Goal] = arguments.OneOf("budget", get_args(Goal))
LOWERED_BITS = 4
"""Bits to which an operand is lowered from 8; onnxruntime's quantiser has no other lower width."""
LEAST_NOISE = 1e-9
"""Lower bound on the noise of a step, as a share of the signal, so that the gain per noise is finite."""


class PrecisionStep(NamedTuple):
    """A step of the search: one operand of a layer gets `BITS` bits."""

    layer: str
    operand: Operand


PrecisionSteps = tuple[PrecisionStep, ...]


def search_policy(
    model: "str | Path | ModelProto",
    *,
    budget: Mapping[str, float],
    data: str | Path | None = None,
    scheme: str = "s8s8",
    per_channel: bool = False,
    seed: int = 0,
    samples: int | None = None,
    states: Mapping[str, str] | str | None = None,
    driver: Driver | None = None,
    **options: Unpack[PolicyKeywords],
) -> PolicySearch:
    """Searches for weights and inputs of layers that can have 4 bits, so that a program meets a budget with low noise.

    `budget` is {"latency": 0.7} or {"energy": 0.7}: a share of the cost with 8 bits everywhere on the chip, which
    `xbar`, `cores`, `xbars_per_core`, `cell_bits`, `arch` and `fields` describe as in `compile`. The other options are
    those of `quantize`, which makes the model of a policy. `driver` gets a message before each trial.

    Raises `UserError` with the least cost that was reached if it exceeds the budget.
    """
    (goal, share), told = _budget(budget), parse_driver(driver).started
    given = read_options(CompileOptions, options, PolicyKeywords)
    choice = parse_choice(scheme, 8, 8, per_channel, NO_POLICY)
    request = CalibrationRequest(data, seed, samples, given.inputs, states)
    source = calibrate_model(model, choice, request, any_bits=True)
    return _PolicySearch(source, load_chip(given.chip), find_backend(given.numbers.backend), goal, told).run(share)


def _budget(value: object) -> tuple[Goal, float]:
    named = arguments.parse_dict("budget", value, "a share by its goal, such as {'latency': 0.7}")
    if len(named) != 1:
        raise UserError(f"{spell_option('budget')}: expected one goal, got {len(named)}")
    (name, share), *_ = named.items()
    found = arguments.parse_finite("budget", share, 0)
    if not 0 < found < 1:
        raise UserError(f"{spell_option('budget', {name: share})}: expected a share between 0 and 1, such as 0.7")
    return GOAL_OPTION.parse(name), found


def make_policy(moves: Sequence[PrecisionStep]) -> Policy:
    """Returns the policy in which these operands have `BITS` bits."""
    return Policy(
        weights={m.layer: LOWERED_BITS for m in moves if m.operand == "weights"},
        inputs={m.layer: LOWERED_BITS for m in moves if m.operand == "inputs"},
    )


@dataclass(slots=True)
class _PolicySearch:
    """State of the greedy search. `told`: takes progress messages. `costs`: simulated costs, keyed by set of steps."""

    source: CalibratedModel
    chip: Target
    backend: MachineBackend[Any]
    goal: Goal
    told: Callable[[str], None]
    costs: dict[frozenset[PrecisionStep], float] = field(default_factory=dict[frozenset[PrecisionStep], float])

    def run(self, share: float) -> PolicySearch:
        base = self.cost(())
        noise = self._noise()
        gains = {m: base - self.cost((m,)) for m in noise}
        taken, limit = (), share * base
        while self.cost(taken) > limit:
            best = self._best_step(taken, gains, noise)
            if best is None:
                raise UserError(self._budget_error(share, base))
            taken = (*taken, best)
        taken = self._drop_needless(taken, limit, noise)
        steps = tuple(
            PolicyStep(
                layer=m.layer, operand=m.operand, bits=LOWERED_BITS, cost=self.cost(taken[: i + 1]), noise=noise[m]
            )
            for i, m in enumerate(taken)
        )
        return PolicySearch(
            goal=self.goal,
            budget=share,
            base=base,
            reached=self.cost(taken),
            policy=make_policy(taken),
            steps=steps,
            compiled=len(self.costs),
        )

    def _budget_error(self, share: float, base: float) -> str:
        moves, least = min(self.costs.items(), key=lambda entry: entry[1])
        return (
            f"{spell_option('budget', {self.goal: share})}: the least that was reached is {least / base:.3f}, "
            f"with {LOWERED_BITS} "
            f"bits in {len(moves)} of {len(self._moves())} weights and inputs of layers: {least:.6g} of {base:.6g} "
            f"{UNITS[self.goal]}; take a larger share, or a chip on which products take more of the time"
        )

    def _moves(self) -> PrecisionSteps:
        found = find_adjustable_operands(self.source.base)
        return tuple(PrecisionStep(name, operand) for name, operands in found.items() for operand in operands)

    def _noise(self) -> dict[PrecisionStep, float]:
        """Returns the noise at the outputs that each step alone adds, as a share of the signal."""
        outputs = OutputNoise(self.source.prepared.proto, self.source.samples)
        without = outputs.measure_share(self.source.quantise(Policy()))
        found: dict[PrecisionStep, float] = {}
        for move in self._moves():
            self.told(f"noise of {move.layer}")
            with_it = outputs.measure_share(self.source.quantise(make_policy((move,))))
            found[move] = max(with_it - without, LEAST_NOISE)
        return found

    def _best_step(
        self, taken: PrecisionSteps, gains: dict[PrecisionStep, float], noise: Mapping[PrecisionStep, float]
    ) -> PrecisionStep | None:
        """Returns the step that is not in `taken` and saves the most per noise, and updates `gains`.

        Savings change little from step to step, so steps are simulated again in the order of their old gains, until one
        of these is the best. If none saves anything, all are simulated, and the one that costs least is returned, since
        it may make other steps useful. Returns None if no step is left or none fits the chip.
        """
        left, tried = [m for m in noise if m not in taken], set[PrecisionStep]()

        def worth(move: PrecisionStep) -> tuple[float, float]:
            gain = gains[move]
            return (gain / noise[move], gain) if gain > 0 else (0.0, gain)

        while untried := [m for m in left if m not in tried]:
            best = max(left, key=worth)
            if best in tried and gains[best] > 0:
                return best
            move = max(untried, key=worth)
            gains[move] = self.cost(taken) - self.cost((*taken, move))
            tried.add(move)
        best = max(left, key=worth, default=None)
        return None if best is None or gains[best] == -inf else best

    def _drop_needless(
        self, taken: PrecisionSteps, limit: float, noise: Mapping[PrecisionStep, float]
    ) -> PrecisionSteps:
        """Undoes steps that the budget does not need, the noisiest first, and returns the others."""
        for move in sorted(taken, key=lambda m: -noise[m]):
            without = tuple(m for m in taken if m != move)
            if self.cost(without) <= limit:
                taken = without
        return taken

    def cost(self, moves: PrecisionSteps) -> float:
        """Returns the simulated cost of the program of a policy; infinite if the chip cannot run it."""
        key = frozenset(moves)
        if key not in self.costs:
            self.told(f"program {len(self.costs) + 1}: {LOWERED_BITS} bits in {len(key)} places")
            try:
                self.costs[key] = self._simulated(self.source.quantise(make_policy(moves)))
            except (CapacityError, UnsupportedError):
                if not moves:
                    raise
                self.costs[key] = inf
        return self.costs[key]

    def _simulated(self, model: "ModelProto") -> float:
        """Compiles a model with the defaults of `compile` but without verification, and returns its simulated cost."""
        driver = Driver(verified=False)
        with pause_gc():
            graph = pipeline.prepare_graph(frontend.load(model).graph, self.chip, driver=driver)
            mapped = pipeline.rewrite_and_map(graph, self.chip, ROWS)
            completed = pipeline.complete(mapped, self.chip, aim=BALANCED_OBJECTIVE, driver=driver)
            lowered = pipeline.run_lowering(completed.mapped, self.chip, driver=driver, known=completed.known)
            code = pipeline.generate_code(lowered, self.backend, driver=driver)
            assert isinstance(self.backend, CostModel), "pimsim-nn has a simulator"
            return self.backend.cost(self.goal, lowered.program, code, self.chip).figure(self.goal)
