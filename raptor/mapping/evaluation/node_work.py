"""The work of one node of a decision: what each core computes and moves for it, in a number of equal steps."""

from collections import defaultdict
from dataclasses import dataclass, field

from raptor.mapping.modes.line_streaming import Range
from raptor.target.arch import Target, estimate_flit_ns
from raptor.target.timing import (
    ISSUE_NS,
    copy_ns,
    global_port_ns,
    load_ns,
    store_ns,
    store_port_ns,
    typical_message_times,
)


@dataclass(slots=True)
class MessageSum:
    """Messages between two cores, added up: number, bytes, times in ns as in `raptor.target.timing.MessageTimes`."""

    count: float = 0.0
    size: float = 0.0
    sender_ns: float = 0.0
    wire_ns: float = 0.0
    receiver_ns: float = 0.0


@dataclass(slots=True)
class MemorySum:
    """Loads and stores of a core, added up: bytes of both, ns at the port of global memory, rest of their time."""

    loaded: float = 0.0
    stored: float = 0.0
    port_ns: float = 0.0
    rest_ns: float = 0.0


@dataclass(slots=True)
class NodeWork:
    """The work for one node and sample, or for the loads of one model input, in `steps` equal steps.

    number: among all work, in the order in which it can be done.

    A step is a line of the result if the node works by line. `needs`: the work of each operand, and which of its steps
    each step needs (`StepNeed`). compute_ns: time of vector units and crossbars by core. messages: keyed by (sender,
    receiver). memory: loads and stores by core. spans: the steps of a core, or of the messages to a core from a sender,
    where these are not all steps: such as a lane of the lines. at_once: True if a core does its part of a step as one
    compute, during which it exchanges no messages, however long that takes.
    """

    name: str
    number: int = 0
    steps: int = 1
    needs: "list[StepNeed]" = field(default_factory=list["StepNeed"])
    compute_ns: defaultdict[int, float] = field(default_factory=lambda: defaultdict[int, float](float))
    messages: dict[tuple[int, int], MessageSum] = field(default_factory=dict[tuple[int, int], MessageSum])
    memory: dict[int, MemorySum] = field(default_factory=dict[int, MemorySum])
    spans: dict[int | tuple[int, int], Range] = field(default_factory=dict[int | tuple[int, int], Range])
    at_once: bool = False

    def widen_span(self, place: int | tuple[int, int], steps: Range) -> None:
        """Adds steps to the span of a core, or of (sender, receiver)."""
        low, high = self.spans.get(place, steps)
        self.spans[place] = min(low, steps[0]), max(high, steps[1])

    def load(self, arch: Target, core: int, elements: int, times: float = 1.0) -> None:
        """Adds loads of a core. `arch`: with the element type."""
        found = self._add_memory(core, global_port_ns(arch, elements), load_ns(arch, elements), times)
        found.loaded += times * elements * arch.element_bytes

    def store(self, arch: Target, core: int, elements: int, times: float = 1.0) -> None:
        """Adds stores of a core. `arch`: with the element type."""
        found = self._add_memory(core, store_port_ns(arch, elements), store_ns(arch, elements), times)
        found.stored += times * elements * arch.element_bytes

    def _add_memory(self, core: int, port_ns: float, whole_ns: float, times: float) -> MemorySum:
        found = self.memory.setdefault(core, MemorySum())
        found.port_ns += times * port_ns
        found.rest_ns += times * (whole_ns + ISSUE_NS - port_ns)
        return found

    def copy(self, arch: Target, core: int, elements: int, times: float = 1.0) -> None:
        """Adds copies inside the memory of a core."""
        self.compute_ns[core] += times * (copy_ns(arch, elements) + ISSUE_NS)

    def send(self, arch: Target, source: int, to: int, elements: int, times: float = 1.0) -> None:
        """Adds messages from core `source` to core `to`, at the average distance of two cores."""
        sender_ns, wire_ns, receiver_ns = typical_message_times(arch, elements)
        found = self.messages.setdefault((source, to), MessageSum())
        found.count += times
        found.size += times * elements * arch.element_bytes
        found.sender_ns += times * (sender_ns + ISSUE_NS)
        found.wire_ns += times * wire_ns
        found.receiver_ns += times * (receiver_ns + ISSUE_NS)

    def core_ns(self, arch: Target) -> dict[int, float]:
        """Returns the time in ns for which each core is busy with the node, without waiting."""
        busy = defaultdict[int, float](float, self.compute_ns)
        asking_ns = 2 * estimate_flit_ns(arch)
        for (source, to), message in self.messages.items():
            busy[source] += message.count * asking_ns + message.sender_ns
            busy[to] += message.count * asking_ns + message.receiver_ns
        for core, moved in self.memory.items():
            busy[core] += moved.port_ns + moved.rest_ns
        return busy


@dataclass(frozen=True, slots=True)
class StepNeed:
    """Need of an operand: step y of a node needs the first `y * stride // spread + reach + 1` steps of its work.

    If the operand has fewer steps, it needs all.
    """

    work: NodeWork
    stride: int
    spread: int
    reach: int
