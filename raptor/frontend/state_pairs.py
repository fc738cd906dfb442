"""States of a model: which output is the next value of which input, as the user says, or by the names of exporters."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NoReturn

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.common.options.option_texts import AUTOMATIC
from raptor.graph.ir import Graph, Tensor
from raptor.graph.residency import StatePair
from raptor.target.chip_elements import ElementCoding

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of the inputs or of the outputs of a model, by name."""
_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ENDS = {
    *("in", "out", "n", "next", "new", "prev", "previous", "past", "present"),
    *("initial", "init", "final", "last", "old", "updated"),
}
"""Words in which the names of a state's input and output differ."""
_STATE_WORDS = {
    *("state", "states", "hidden", "cell", "cache", "memory", "mem", "past", "present"),
    *("h", "c", "hx", "cx", "hs", "cs", "kv", "conv", "rnn", "gru", "lstm"),
}
"""Words of which the name of a state has one."""
_SHORT = re.compile(r"(?P<stem>[hc]x?)_?(?P<end>0|n|in|out)", re.IGNORECASE)
"""Names of the states of recurrent layers: h0 and hn, c_0 and c_n."""


def find_states(
    graph: Graph, given: Mapping[str, str], growing: Mapping[str, str] = MappingProxyType({})
) -> tuple[StatePair, ...]:
    """Returns the states of a graph, in the order of its inputs. `given`: output by input, or `AUTOMATIC`.

    `growing`: states that are known because they grow; then automatic recognition need not find others.

    Raises `UserError` for a pair that is none: other shapes or types, names that do not exist, an input that no node
    reads; and if automatic recognition finds none.
    """
    pairs = [StatePair(*names) for names in (growing if given == AUTOMATIC else given).items()]
    inputs, outputs = ({name: graph.tensors[name].shape for name in names} for names in (graph.inputs, graph.outputs))
    if given == AUTOMATIC:
        known = {name for names in growing.items() for name in names}
        found = [pair for pair in find_named_pairs(inputs, outputs) if known.isdisjoint((pair.input, pair.output))]
        pairs += found or (() if growing else _none_found(inputs, outputs))
    read = {name for node in graph.nodes for name in node.inputs}
    for pair in pairs:
        fault = find_pair_fault(inputs, outputs, pair) or _type_fault(
            graph.tensors[pair.input], graph.tensors[pair.output]
        )
        if fault is None and pair.input not in read:
            fault = f"no node reads {pair.input}, so it is no state"
        if fault is None and [p.output for p in pairs].count(pair.output) > 1:
            fault = f"{pair.output} is the next value of two inputs"
        if fault is not None:
            raise UserError(f"{spell_option('states')} {pair}: {fault}")
    return tuple(sorted(pairs, key=lambda pair: graph.inputs.index(pair.input)))


def recognise_states(inputs: Shapes, outputs: Shapes) -> list[StatePair]:
    """Returns the states that names tell, of a model with these inputs and outputs. Raises `UserError` if none is."""
    return find_named_pairs(inputs, outputs) or _none_found(inputs, outputs)


def find_pair_fault(inputs: Shapes, outputs: Shapes, pair: StatePair) -> str | None:
    """Returns why two names are no state of a model with these inputs and outputs; None if they may be one."""
    for name, known, what in ((pair.input, inputs, "input"), (pair.output, outputs, "output")):
        if name not in known:
            return f"the model has no {what} {name}; it has {', '.join(known)}"
    if inputs[pair.input] != outputs[pair.output]:
        return f"the input is {list(inputs[pair.input])}, and the output {list(outputs[pair.output])}"
    return None


def _type_fault(before: Tensor, after: Tensor) -> str | None:
    """Returns why a tensor cannot take the place of another of its shape; None if it can."""
    if before.element != after.element:
        return f"the input is {before.element} on the chip, and the output {after.element}"
    if _without_range(before.coding) != _without_range(after.coding):
        return "input and output have other scales or types; the same option of raptor quantize gives them one scale"
    return None


def _without_range(coding: ElementCoding | None) -> ElementCoding | None:
    """Returns a coding without the range of values that an input may have."""
    return coding and replace(coding, low=None, high=None)


def find_named_pairs(inputs: Shapes, outputs: Shapes) -> list[StatePair]:
    """Finds pairs by names such as past and present, h0 and hn, state and stateN, cache_in and cache_out."""
    made, given = defaultdict[tuple[str, ...], list[str]](list), defaultdict[tuple[str, ...], list[str]](list)
    for name in outputs:
        made[_key(name)].append(name)
    for name in inputs:
        given[_key(name)].append(name)
    return [
        StatePair(names[0], made[key][0])
        for key, names in given.items()
        if len(names) == len(made[key]) == 1
        and inputs[names[0]] == outputs[made[key][0]]
        and {*key, *_words(names[0]), *_words(made[key][0])} & _STATE_WORDS
    ]


def _none_found(inputs: Shapes, outputs: Shapes) -> NoReturn:
    raise UserError(
        f"{spell_option('states')} auto: no output has the name and the shape of an input's next value. Inputs: "
        f"{_listed(inputs)}; outputs: {_listed(outputs)}; name pairs as input=output"
    )


def _key(name: str) -> tuple[str, ...]:
    """Returns what the names of the input and the output of a state have in common."""
    short = _SHORT.fullmatch(name)
    words = [short["stem"].lower()] if short else _words(name)
    return tuple(word for word in words if word not in _ENDS and word not in ("key", "values"))


def _words(name: str) -> list[str]:
    return [word.lower() for word in _TOKEN.findall(name)]


def _listed(shapes: Shapes) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
