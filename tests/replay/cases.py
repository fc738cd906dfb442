"""Cases compiled at both commits, as data: the code of another commit must understand them."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import models
from raptor.target import arch
from tests.models.test_models import small_options

CHIPS = "lenet5", "resnet18", "mobilenet_v2", "bert_tiny"
"""Models, one of each kind, that are compiled for other chips, in other formats, and by search."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model of the zoo, and arguments of `raptor.compile` and `Program.save`.

    `chip`: the content of `chip.json`. `quantised`: arguments of `raptor.quantize`, before; none for a model of floats.
    """

    name: str
    model: str
    sizes: dict[str, Any]
    compiled: dict[str, Any] = field(default_factory=dict[str, Any])
    saved: dict[str, Any] = field(default_factory=dict[str, Any])
    chip: dict[str, Any] = field(default_factory=dict[str, Any])
    quantised: dict[str, Any] = field(default_factory=dict[str, Any])

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def cases(*, full: bool) -> Iterator[Case]:
    """Yields each model, small, by every mapping; some for other chips, in other formats, by search.

    `full`: full sizes.
    """
    for model, mapping in itertools.product(models.MODELS, ("rows", "raptor")):
        yield Case(f"{model} {mapping}", model, small_options(model), {"mapping": mapping, "cores": 2000})
    for model, (name, more) in itertools.product(CHIPS, _VARIANTS.items()):
        yield Case(f"{model} {name}", model, small_options(model), **more)
    yield from (Case(f"{m} pixelwise", m, small_options(m), {"mapping": "pixelwise"}) for m in ("lenet5", "mlp"))
    if full:
        for model, mapping in itertools.product(models.MODELS, ("rows", "raptor")):
            yield Case(f"full {model} {mapping}", model, {}, {"mapping": mapping, "cores": 4000})
        yield Case("full resnet18 of the README", "resnet18", {}, {"xbar": 128, "cores": 200})


def _chip(**core: Any) -> dict[str, Any]:
    """The benchmark chip with 500 cores, of which something is different."""
    content = json.loads(arch.arch_json(arch.load("bench", cores=500)))
    content["chip_config"]["network_config"].pop("net_config_file_path", None)
    content["chip_config"]["core_config"] |= core
    return content


_LARGE = {"cores": 1000}
_VARIANTS: dict[str, dict[str, Any]] = {
    "few cores": {"compiled": {"cores": 60, "xbars_per_core": 128}},
    "crossbars of 64x32": {"compiled": {**_LARGE, "xbar": [64, 32]}},
    "cells of 2 bits": {"compiled": {**_LARGE, "cell_bits": 2}},
    "elements of 16 bits": {"compiled": {**_LARGE, "bits": 16}},
    "isaac": {"compiled": {**_LARGE, "arch": "isaac"}},
    "eight in flight": {"compiled": {"arch": "chip.json"}, "chip": _chip(rob_size=8)},
    "pim and npz": {"compiled": _LARGE, "saved": {"stream_format": "both", "weight_format": "npz"}},
    "two chips": {"compiled": {"cores": 500, "chips": 2, "link": "package-ucie"}},
    "integers": {"compiled": _LARGE, "quantised": {"scheme": "s8s8"}},
    "integers, one instruction": {
        "compiled": {**_LARGE, "mapping": "raptor", "requant": "instruction"},
        "quantised": {"scheme": "pow2", "per_channel": True},
    },
    "latency": {"compiled": {**_LARGE, "optimize": "latency", "effort": 3}},
    "throughput, few cores": {"compiled": {"cores": 144, "optimize": "throughput", "effort": 3}},
    "energy": {"compiled": {**_LARGE, "optimize": "energy", "effort": 3}},
}
