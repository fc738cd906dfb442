"""Tuned constants of the strategy `rows` that several modules or a search use, and the measurement behind each.

A tuned number that only one module uses is in that module. Times and sizes of the hardware come from the target
(`raptor.target.timing`). "Measured" means: compiled for the preset `bench` and run in the built-in simulator
(docs/lab/performance.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from raptor.common.options.arguments import argument_error, parse_dict, parse_finite
from raptor.target.arch import MESH_FLIT_NS, Target, estimate_flit_ns

MESSAGE_OVERHEAD_NS = 120
"""Fixed time of a message in ns, without its elements: overhead, and the wait of one end for the other.

Measured with 144 cores: with 120 in place of 60, ResNet-18 takes 1.913 ms instead of 1.935, with 1151 samples/s instead
of 1103; MobileNet-v2 stays at 5.847 ms. Most of it is waiting: with both ends ready, the request, its answer and two
instructions take 30 ns on `bench`.
"""

MOST_INPUT_READERS = 32
"""Largest assumed number of cores that read each line of a model input; a guess, see `estimate_input_readers`.

With 64 and 111, SqueezeNet and ResNet-18 on 1000 cores had up to 13 % more latency x interval, though the first layer
of each has 111 and 112.
"""

INPUT_READER_SHARE = 1 / 4
"""Limit on the readers of an input line as a share of all cores: on small chips, the first layer has few cores.

With `MOST_INPUT_READERS` alone, loaders took many of them. Latency and interval by this part, on `bench`, in us:
LeNet-5 on 20 cores 66 and 46, now 48 and 24; on 32 cores 58 and 41, now 46 and 31. ResNet-18 (32 pixels, a quarter of
the width) on 20 cores 142 and 42, now 122 and 33. With 1 / 8, some figures on 32 to 100 cores are better, and some are
worse. """

MEAN_RECEIVERS = 1.2
"""Average number of cores to which a result is sent: one, but two for results at an edge of a core's columns.

A guess for windows of 3x3 and about ten columns per core; never measured alone.
"""


@dataclass(frozen=True, slots=True)
class TuningKnobs:
    """Tuned constants that a search may change.

    `step_ns`: longest time of a step, which is how long a sender may wait for a busy receiver. `patience_ns`: as in
    `LineFlow`, on the built-in mesh; it grows with the time of a flit. `share`: part of the cores that is used; with
    fewer cores, fewer input columns are multiplied twice. `products`: factor on the estimated time of MVMs, because the
    estimate of all other work is less exact; it changes the numbers of cores and the blocks of layers. `latency`:
    weight of the latency against the interval, as an exponent; 0 for the interval alone. It acts on models whose layers
    may share cores in turns (transformers, models with means over whole images), and on the cores of fully connected
    layers; above 1, streamed layers get their cores by it, too. `neighbours`: assumed load of a pair of neighbouring
    layers on shared cores, relative to its work; 0: no pairs share cores. `lanes`: largest number of lanes of a layer
    (`LineGrid`) in the first decision of a search. `aligned_lines`: above 0, all layers with at least so many output
    lines have `lanes` lanes, others none. `line_latency`: weight of the latency, estimated line by line, for which
    cores move between streamed layers after they are divided by their work; a `latency` above 1 takes its place.
    `stages`: largest number of stages with which a search compares decisions; 1: without stages. `moves`: time in ns
    above which a move of computed tensors, with all that runs behind it, has cores of its own (`find_move_work`); 0:
    none has. `chains`: how layers of tokens between two attentions share cores: 1: as estimates say; 2: in groups; 3:
    apart; 4: spread (`choose_token_cores`); 0: not at all, so layers and products are divided as in all other models.
    `dense`: 1: fully connected layers may share cores with the layers before them (`share_with_dense`); 0: none do.

    Measured (docs/lab/performance.md), latency and interval as geometric means of six models on 64 and 200 cores,
    relative to the defaults with a step of 10 us: step 5 us, the default now: 0.966 and 0.981; patience 500 ns: 1.008
    and 0.993; patience 3 us: 1.007 and 1.025; share 0.9: 1.109 and 1.186; products 2: 0.989 and 0.983. The other
    defaults come from the first version, found by hand on ResNet-18 with 144 cores; the search tries others.
    Neighbours, of twelve image networks with 200 cores, relative to none that share: with 1, 0.924 and 0.979, and no
    product of both gets worse; with 1.1, 0.979 and 0.990, and for two models the product is 5 and 9 % larger.
    """

    step_ns: float = 5_000
    patience_ns: float = 1_500
    share: float = 1.0
    products: float = 1.0
    latency: float = 1.0
    neighbours: float = 1.0
    lanes: float = 1.0
    aligned_lines: float = 0.0
    line_latency: float = 0.0
    stages: float = 1.0
    moves: float = 0.0
    chains: float = 1.0
    dense: float = 0.0


DEFAULT_KNOBS = TuningKnobs()

MAY_BE_0 = "latency", "neighbours", "aligned_lines", "line_latency", "moves", "chains", "dense"
"""Knobs that turn something off if they are 0."""


def chip_patience_ns(arch: Target, knobs: TuningKnobs = DEFAULT_KNOBS) -> float:
    """Returns the patience (`LineFlow.patience_ns`) on a chip in ns, scaled by the time of a flit."""
    return knobs.patience_ns * estimate_flit_ns(arch) / MESH_FLIT_NS


def parse_knobs(given: object) -> TuningKnobs:
    """Returns the default knobs with the given values. Raises `UserError` for unknown names and wrong numbers."""
    if given is None:
        return DEFAULT_KNOBS
    names = [field.name for field in fields(TuningKnobs)]
    expected = f"numbers by name, of: {', '.join(names)}"
    entries = parse_dict("knobs", given, expected)
    for name in entries:
        if name not in names:
            raise argument_error("knobs", name, expected)
    return replace(DEFAULT_KNOBS, **{name: _number(name, value) for name, value in entries.items()})


def _number(name: str, value: object) -> float:
    """Checks a knob: `share` is 0.01 to 1; some may be 0, others may not."""
    least = {"share": 0.01, **dict.fromkeys(MAY_BE_0, 0.0)}.get(name, 1e-3)
    found = parse_finite("knobs", value, least)
    if name == "share" and found > 1:
        raise argument_error("knobs", value, "a share of the cores, of 0.01 to 1")
    return found


def changed_knobs(knobs: TuningKnobs) -> Mapping[str, float]:
    """Returns the knobs that differ from the defaults: name -> value."""
    return {
        f.name: getattr(knobs, f.name)
        for f in fields(TuningKnobs)
        if getattr(knobs, f.name) != getattr(DEFAULT_KNOBS, f.name)
    }
