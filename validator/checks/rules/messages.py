"""Rules on sends, receives and tokens. Only the communication is executed, which shows whether a program finishes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from validator.checks.findings import Indices, RuleHit, RuleTopic, Severity, hits
from validator.checks.instruction_table import Column
from validator.checks.rule_registry import register_rule
from validator.checks.rule_subject import CheckSubject

ERROR, WARNING = Severity.ERROR, Severity.WARNING
TOPIC = RuleTopic.MESSAGES

_SHOWN = 6
_EVENTS = 32


@dataclass(frozen=True, slots=True, eq=False)
class CommunicationResult:
    """Result of executing the communication of a program: the steps of all cores, and where each core stopped.

    `index` is the instruction of each step; `reached[core]` is the step that `core` could not do, or its end.
    """

    starts: Indices
    index: Indices
    partner: Column
    kind: Column
    event: Column
    reached: Indices
    blocked: Column

    def stuck_cores(self) -> Indices:
        """Returns the cores that do not finish."""
        return np.flatnonzero(self.reached < self.starts[1:])


@register_rule(
    "core-range",
    ERROR,
    TOPIC,
    "Partner that does not exist",
    effect="a send or sync to a core that is not instantiated ends the simulator without a message (SIGSEGV); a recv "
    "from one, or a send to -10, hangs",
    advice="name a core from 0 to core_cnt - 1 that has a stream; the global memory is reached by ld and st",
)
def core_range(subject: CheckSubject) -> Iterator[RuleHit]:
    s = subject.columns
    at = s.find_named("send", "recv", "sync")
    known = np.zeros(s.core_count, np.bool_)
    known[: len(subject.instantiated)] = subject.instantiated
    inside = (s.a[at] >= 0) & (s.a[at] < s.core_count)
    for wrong, why in (
        (at[~inside], f"the program has cores 0 to {s.core_count - 1}"),
        (at[inside][~known[s.a[at][inside]]], "which has no stream"),
    ):
        if len(wrong):
            yield RuleHit(f"core={s.a[wrong[0]]}, {why}", wrong)


@register_rule(
    "self-message",
    ERROR,
    TOPIC,
    "Message of a core to itself",
    effect="a rendezvous needs two cores: the core hangs",
    advice="copy within a core with lmv",
)
def self_message(subject: CheckSubject) -> Iterator[RuleHit]:
    s = subject.columns
    at = s.find_named("send", "recv")
    yield from hits("", at[s.a[at] == s.core[at]])


@register_rule(
    "event-range",
    ERROR,
    TOPIC,
    "Event register or token count out of range",
    effect="a core has event registers 0 to 31 and no check: others are written outside the array (it may abort "
    "at the end); a negative wait_value gives tokens instead of taking them",
    advice="use event registers 0 to 31 and wait values of at least 0",
)
def event_range(subject: CheckSubject) -> Iterator[RuleHit]:
    s = subject.columns
    at = s.find_named("sync", "wait")
    wrong = at[(s.b[at] < 0) | (s.b[at] >= _EVENTS)]
    if len(wrong):
        yield RuleHit(f"event_register={s.b[wrong[0]]}", wrong)
    waits = s.find_named("wait")
    wrong = waits[s.c[waits] < 0]
    if len(wrong):
        yield RuleHit(f"wait_value={s.c[wrong[0]]}", wrong)


def _pairs(subject: CheckSubject, name: str) -> tuple[Indices, Indices]:
    """Returns the sends or receives, each with the number of its pair (sender, receiver).

    They are sorted by pair, and within a pair in program order.
    """
    s = subject.columns
    at = s.find_named(name)
    at = at[(s.a[at] >= 0) & (s.a[at] < s.core_count) & (s.a[at] != s.core[at])]
    here, there = s.core[at].astype(np.int64), s.a[at].astype(np.int64)
    key = here * s.core_count + there if name == "send" else there * s.core_count + here
    order = np.argsort(key, kind="stable")
    return at[order], key[order]


@register_rule(
    "message-count",
    ERROR,
    TOPIC,
    "Sends and receives of a pair of cores differ in number",
    effect="the surplus side waits for ever: latency mode ends by its timeout, throughput mode exits 0 with figures "
    "that mean nothing",
    advice="give every send one recv on the other core",
)
def message_count(subject: CheckSubject) -> Iterator[RuleHit]:
    s = subject.columns
    (sends, send_keys), (recvs, recv_keys) = _pairs(subject, "send"), _pairs(subject, "recv")
    pairs = np.union1d(send_keys, recv_keys)
    sent, received = _counts(send_keys, pairs), _counts(recv_keys, pairs)
    different = np.flatnonzero(sent != received)
    if not len(different):
        return
    pair = different[0]
    source, target = divmod(int(pairs[pair]), s.core_count)
    instructions, keys = (sends, send_keys) if sent[pair] > received[pair] else (recvs, recv_keys)
    last = instructions[np.searchsorted(keys, pairs[pair], side="right") - 1]
    more = f", and {len(different) - 1} more pairs" if len(different) > 1 else ""
    fact = f"core {source} sends {sent[pair]} times to core {target}, which receives {received[pair]} times{more}"
    yield RuleHit(fact, np.array([last]))


def _counts(keys: Indices, pairs: Indices) -> Indices:
    return np.searchsorted(keys, pairs, side="right") - np.searchsorted(keys, pairs, side="left")


@register_rule(
    "message-size",
    ERROR,
    TOPIC,
    "Send and receive of a message differ in size",
    effect="nobody checks: each side pays for its own size, the network for the sender's, and on a chip bytes would be "
    "lost or overwritten",
    advice="give both the same size",
)
def message_size(subject: CheckSubject) -> Iterator[RuleHit]:
    s = subject.columns
    (sends, send_keys), (recvs, recv_keys) = _pairs(subject, "send"), _pairs(subject, "recv")
    if len(sends) != len(recvs) or (send_keys != recv_keys).any():
        return  # sends cannot be matched with receives; the rule message-count reports this
    wrong = np.flatnonzero(s.d[sends] != s.d[recvs])
    if len(wrong):
        core, pc, _ = s.locate_instruction(int(recvs[wrong[0]]))
        fact = f"sends {s.d[sends[wrong[0]]]} bytes, core {core} receives {s.d[recvs[wrong[0]]]} at {pc}"
        yield RuleHit(fact, sends[wrong])


def execute_communication(subject: CheckSubject) -> CommunicationResult:
    """Executes the sends, receives and tokens of the program, once; returns where each core stops."""
    from validator.checks.communication_kernels import (
        FREE,
        ON_RECV,
        ON_SEND,
        ON_WAIT,
        run_communication,
    )

    known: CommunicationResult | None = subject.computed.get("_communication")
    if known is not None:
        return known
    s = subject.columns
    tokens_of_nowhere = s.named_mask("sync", "wait") & ((s.b < 0) | (s.b >= _EVENTS))
    index = np.flatnonzero(s.named_mask("send", "recv", "wait", "sync") & ~tokens_of_nowhere)
    kind = np.full(len(index), FREE, np.int32)
    for name, code in (("send", ON_SEND), ("recv", ON_RECV), ("wait", ON_WAIT)):
        kind[s.named_mask(name)[index]] = code
    waits = kind == ON_WAIT
    result = CommunicationResult(
        starts=np.searchsorted(index, s.starts).astype(np.int64),
        index=index,
        partner=np.where(waits, -1, s.a[index]).astype(np.int32),
        kind=kind,
        event=s.b[index],
        reached=np.zeros(s.core_count, np.int64),
        blocked=np.zeros(s.core_count, np.int32),
    )
    tokens = np.zeros((max(s.core_count, 1), _EVENTS), np.int64)
    value = np.where(waits, s.c[index], 0)
    run_communication(result.starts, kind, result.partner, value, result.event, result.reached, result.blocked, tokens)
    subject.computed["_communication"] = result
    subject.computed["_tokens"] = tokens
    return result


def _waits_for(c: CommunicationResult, core: int) -> list[int]:
    """Returns the other cores that could release `core`: its partner, or cores that still have tokens for its event."""
    from validator.checks.communication_kernels import FREE, ON_WAIT

    step = int(c.reached[core])
    if c.kind[step] != ON_WAIT:
        return [int(c.partner[step])] if c.partner[step] != core else []
    gives = np.flatnonzero((c.kind == FREE) & (c.partner == core) & (c.event == c.event[step]))
    owner = np.searchsorted(c.starts, gives, side="right") - 1
    return [int(other) for other in owner[(gives >= c.reached[owner]) & (owner != core)]]


@register_rule(
    "deadlock",
    ERROR,
    TOPIC,
    "Messages in crossed orders: cores wait for each other in a circle",
    effect="these cores hang: latency mode ends by its timeout (up to hours of wall clock), throughput mode exits 0 "
    "with figures that mean nothing",
    advice="emit sends, receives and waits of every core in one global order of all messages",
)
def deadlock(subject: CheckSubject) -> Iterator[RuleHit]:
    """Exact: sends and receives are rendezvous with fixed partners, so the order of execution makes no difference."""
    c = execute_communication(subject)
    for circle in _circles(c):
        yield RuleHit(_circle(subject, c, circle), np.array([c.index[c.reached[circle[0]]]]), count=len(circle))


def _circles(c: CommunicationResult) -> Iterator[list[int]]:
    """Yields a cycle of each group of cores that wait for each other, from the core where a search enters the group."""
    stuck: list[int] = c.stuck_cores().tolist()
    if not stuck:
        return
    import networkx as nx  # takes 0.1 s

    waits: nx.DiGraph[int] = nx.DiGraph()
    waits.add_nodes_from(stuck)
    waits.add_edges_from((core, other) for core in stuck for other in _waits_for(c, core) if other in waits)
    groups = [group for group in nx.strongly_connected_components(waits) if len(group) > 1]
    group_of = {core: number for number, group in enumerate(groups) for core in group}
    entry: dict[int, int] = {}
    for core in nx.dfs_preorder_nodes(waits):
        if core in group_of:
            entry.setdefault(group_of[core], core)
    for number, core in entry.items():
        group = waits.subgraph(groups[number])
        # networkx's stubs do not say the type of a circle's edges.
        edges = cast(Iterator[tuple[int, int]], nx.find_cycle(group, core))  # pyright: ignore[reportUnknownMemberType]
        yield [core for core, _ in edges]


def _circle(subject: CheckSubject, c: CommunicationResult, circle: list[int]) -> str:
    places = [subject.columns.locate_instruction(int(c.index[c.reached[core]])) for core in circle[:_SHOWN]]
    steps = ", ".join(f"core {core} at {pc} ({text.split(' ', 1)[0]})" for core, pc, text in places)
    more = f" and {len(circle) - _SHOWN} more" if len(circle) > _SHOWN else ""
    return f"{steps}{more} wait for each other"


@register_rule(
    "wait-starved",
    ERROR,
    TOPIC,
    "wait for tokens that never come",
    effect="the core hangs: latency mode ends by its timeout, throughput mode exits 0 with figures that mean nothing",
    advice="sync to this core and event register as many times as its waits take tokens",
)
def wait_starved(subject: CheckSubject) -> Iterator[RuleHit]:
    from validator.checks.communication_kernels import ON_WAIT

    c = execute_communication(subject)
    for core in (int(core) for core in c.stuck_cores()):
        if c.kind[c.reached[core]] == ON_WAIT and not _waits_for(c, core):
            yield RuleHit(f"event_register {c.event[c.reached[core]]}", np.array([c.index[c.reached[core]]]))


@register_rule(
    "sync-unused",
    WARNING,
    TOPIC,
    "Tokens that no wait takes",
    effect="they stay in the event register; when the streams loop in throughput mode they release later waits early",
    advice="take as many tokens with wait as are given with sync",
)
def sync_unused(subject: CheckSubject) -> Iterator[RuleHit]:
    c = execute_communication(subject)
    if len(c.stuck_cores()):
        return
    left = np.argwhere(subject.computed["_tokens"] > 0)
    if len(left):
        core, event = int(left[0][0]), int(left[0][1])
        s = subject.columns
        at = np.flatnonzero(s.named_mask("sync") & (s.a == core) & (s.b == event))
        yield RuleHit(
            f"{subject.computed['_tokens'][core, event]} tokens left in event_register {event} of core {core}", at
        )


@register_rule(
    "event-shared",
    WARNING,
    TOPIC,
    "Event register with several producers in throughput mode",
    effect="the streams loop, and a token of the next round can release a wait early: the count of rounds is wrong",
    advice="use one event register for each producer, or send and recv",
)
def event_shared(subject: CheckSubject) -> Iterator[RuleHit]:
    if subject.chip is None or subject.chip.target.simulator.is_latency_mode:
        return
    s = subject.columns
    at = s.find_named("sync")
    at = at[(s.b[at] >= 0) & (s.b[at] < _EVENTS)]
    event = s.a[at].astype(np.int64) * _EVENTS + s.b[at]
    for shared in np.unique(event):
        givers = at[event == shared]
        if len(np.unique(s.core[givers])) > 1:
            fact = f"event_register {shared % _EVENTS} of core {shared // _EVENTS} has several producers"
            yield RuleHit(fact, givers)
