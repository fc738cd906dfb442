"""The numbers of the mapping `rows` that were tuned, not derived: all of them, and where each comes from.

Times and sizes of the hardware are no such numbers: they come from the target (`raptor.target.timing`). Measured means:
compiled, and simulated by the built-in simulator, on the preset `bench` (docs/performance.md).
"""

from dataclasses import dataclass

MESSAGE_NS = 120
"""What a message takes beside its elements, and the waiting for its other end.

Measured with 144 cores: with 120 for 60, ResNet-18 takes 1.913 ms and not 1.935, with 1151 and not 1103 samples/s;
MobileNet-v2 stays at 5.847 ms. Most of it is waiting: with both ends ready, the request, its answer and two
instructions take 30 ns on `bench`.
"""

INPUT_READERS = 32
"""Cores that read a line of a model input. An estimate, as nobody has places yet; never measured by itself."""

SENDINGS = 1.2
"""How often a result is sent: once to the core that needs it, and those at an edge of a core's columns to two cores.

An estimate for windows of 3x3 on some ten columns a core; never measured by itself.
"""


@dataclass(frozen=True, slots=True)
class Knobs:
    """What a search may turn.

    `step_ns`: how long a core multiplies at most before it can meet another: what a sender waits for a busy receiver.
    `patience_ns`: as in `Mapping`, on the built-in mesh; longer where flits take longer. `share`: of the cores, to be
    used; fewer multiply fewer columns twice. `products`: how many times its time a product is taken to last beside all
    else, which the estimates see worse: another weight gives layers other numbers of cores and other blocks.

    Measured (docs/performance.md, "Search"), latency and interval as geometric means of six models on 64 and 200 cores,
    relative to the defaults: steps of 5 us 0.966 and 0.981; patience 500 ns 1.008 and 0.993, 3 us 1.007 and 1.025; nine
    tenths of the cores 1.109 and 1.186; products twice 0.989 and 0.983. The defaults are those of the first version,
    found by hand on ResNet-18 with 144 cores; the search tries the others.
    """

    step_ns: float = 10_000
    patience_ns: float = 1_500
    share: float = 1.0
    products: float = 1.0


DEFAULT = Knobs()
