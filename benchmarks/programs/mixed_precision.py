"""Measure the savings of mixed precision, compared with a published search: `make bench-mixed`.

The search of cim-aq publishes policies, and what they save by its own model: one engine, layer after layer, in which
each write and each product of a tile takes its turn. Here the same policies run as programs on a chip that holds all
weights, in the simulator. ONNX has 4 and 8 bits, so widths between are rounded up. Of ViT-B/32, only the model of the
publication is computed: there is no such network in `models`. The first table has the policy of VGG-16 and its parts,
the second all policies.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import models
import raptor
from benchmarks.search.published_policies import (
    POLICIES,
    SIDE,
    PublishedPolicy,
    published_factor,
)
from raptor.options import ModelInputs
from raptor.tools.quantise import Policy
from raptor.tools.quantise.mixed_precision import find_weighted_layers
from raptor.tools.quantise.options import QuantisationChoice
from raptor.tools.quantise.static_quantisation import CalibratedModel, CalibrationRequest, calibrate_model

EIGHT_BITS = Policy()
PROJECTION = ".downsample.0"
"""End of the names of layers that project the input of a block of ResNet."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=224, help="pixels of a side of the image")
    parser.add_argument("--width", type=float, default=1.0, help="share of the channels")
    parser.add_argument("--cores", type=int, default=144, help="cores of the chip")
    args = parser.parse_args()
    bench = MixedBench(args)
    (vgg,) = (p for p in POLICIES if p.model == "vgg16")
    parts = {
        "policy": vgg,
        "its weights alone": replace(vgg, inputs="8" * len(vgg.inputs)),
        "its inputs alone": replace(vgg, weights="8" * len(vgg.weights)),
    }
    print("| 8 bits everywhere, divided by | table of the publication | latency, simulated | energy, simulated |")
    print("|---|---:|---:|---:|")
    for name, policy in parts.items():
        print("|", " | ".join((name, *bench.format_factors(policy))), "|", flush=True)
    print("\n| network | cells | fixed | points | publication | weights | inputs | latency | energy |")
    print("|---|---:|---|---:|---:|---:|---:|---:|---:|")
    for policy in POLICIES:
        head = (policy.model, f"{policy.cell_bits} bits", policy.fixed, f"{policy.points}")
        published, *simulated = bench.format_factors(policy)
        eights = "8" * len(policy.weights)
        alone = (replace(policy, inputs=eights), replace(policy, weights=eights))
        parts_alone = (f"{published_factor(p):.3f}" for p in alone)
        print("|", " | ".join((*head, published, *parts_alone, *simulated)), "|", flush=True)


class MixedBench:
    """Networks and their programs with 8 bits, which policies share."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self._calibrated: dict[str, CalibratedModel] = {}
        self._simulated: dict[tuple[str, int, bytes], tuple[float, float]] = {}

    def format_factors(self, policy: PublishedPolicy) -> tuple[str, str, str]:
        """Returns what a policy divides: the latency by the publication; latency and energy of programs, or nothing."""
        published = f"{published_factor(policy):.3f}"
        if policy.model not in models.MODELS:
            return published, "", ""
        found = self._simulate(policy, make_policy(list_layer_names(self._calibrate(policy.model)), policy))
        base = self._simulate(policy, EIGHT_BITS)
        return published, f"{base[0] / found[0]:.3f}", f"{base[1] / found[1]:.3f}"

    def _calibrate(self, name: str) -> CalibratedModel:
        if name not in self._calibrated:
            model = models.build(name, image_size=self.args.size, width=self.args.width)
            choice = QuantisationChoice(per_channel=True)
            request = CalibrationRequest(None, 0, 1, ModelInputs())
            self._calibrated[name] = calibrate_model(model, choice, request, any_bits=True)
        return self._calibrated[name]

    def _simulate(self, policy: PublishedPolicy, bits: Policy) -> tuple[float, float]:
        chip = {"xbar": SIDE, "cell_bits": policy.cell_bits, "cores": self.args.cores}
        key = policy.model, policy.cell_bits, bits.to_json()
        if key not in self._simulated:
            self._simulated[key] = simulate_policy(self._calibrate(policy.model), bits, chip)
        return self._simulated[key]


def list_layer_names(source: CalibratedModel) -> list[str]:
    return order_as_published(find_weighted_layers(source.base))


def order_as_published(names: Iterable[str]) -> list[str]:
    """Returns names of layers in the order of the published policies: a projection comes before its block."""
    ordered: list[str] = []
    for name in names:
        block = name.removesuffix(PROJECTION)
        at = next((k for k, other in enumerate(ordered) if other.startswith(f"{block}.")), len(ordered))
        ordered.insert(at if name.endswith(PROJECTION) else len(ordered), name)
    return ordered


def make_policy(names: Sequence[str], policy: PublishedPolicy) -> Policy:
    """Returns a policy with the published bits, rounded up to the 4 or 8 bits of ONNX."""
    weights, inputs = policy.bits
    return Policy(
        weights={n: 4 for n, bits in zip(names, weights, strict=True) if bits <= 4},
        inputs={n: 4 for n, bits in zip(names, inputs, strict=True) if bits <= 4},
    )


def simulate_policy(source: CalibratedModel, bits: Policy, chip: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the latency and the energy of a program."""
    found = raptor.compile(source.quantise(bits), **chip).simulate()
    assert found.latency_ns is not None
    assert found.energy_pj is not None
    return found.latency_ns, found.energy_pj


if __name__ == "__main__":
    main()
