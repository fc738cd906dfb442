"""Compile networks of timm and torchvision as PyTorch exports them, and print what binds their intervals.

python -m venv env && env/bin/pip install torch==2.6.0 torchvision==0.21.0 timm==1.0.31 onnx -e .
env/bin/python -m benchmarks.programs.pytorch_models [NAME ...] [--cores 200]

The weights are random. Each network is exported to a temporary file, compiled by default, validated with one input, and
explained. A name is one of timm, or of torchvision (classification, segmentation).
"""

import argparse
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import raptor
from raptor.common.errors import RaptorError
from raptor.compiler.analysis.explain import explain

MODELS = (
    "vit_tiny_patch16_224",
    "pit_ti_224",
    "pvt_v2_b0",
    "crossvit_tiny_240",
    "mobilevit_xxs",
    "efficientvit_b0",
    "efficientvit_m0",
    "shvit_s1",
    "visformer_tiny",
    "edgenext_xx_small",
    "efficientformerv2_s0",
    "bat_resnext26ts",
    "lraspp_mobilenet_v3_large",
    "deeplabv3_mobilenet_v3_large",
    "eva02_tiny_patch14_224",
    "mobilenetv4_hybrid_medium",
    "mobileone_s0",
    "repvgg_a0",
    "fastvit_t8",
    "repvit_m0_9",
)
SEGMENTATION_SHAPE = 1, 3, 192, 192
"""Input shape of segmentation networks."""


def export_network(name: str, path: Path) -> None:
    """Writes a network with seeded weights as an ONNX file."""
    timm, torch, torchvision = map(import_module, ("timm", "torch", "torchvision"))
    module: Any = torch.nn.Module

    class Plain(module):
        """A network that returns one tensor."""

        def __init__(self, inner: Any) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType] torch is not here
            self.inner = inner

        def forward(self, x: Any) -> Any:
            found = self.inner(x)
            return found["out"] if isinstance(found, dict) else found  # pyright: ignore[reportUnknownVariableType] torch is not here

    torch.manual_seed(0)
    if hasattr(torchvision.models.segmentation, name):
        build = getattr(torchvision.models.segmentation, name)
        network, shape = build(weights=None, weights_backbone=None, num_classes=21), SEGMENTATION_SHAPE
    elif timm.is_model(name):
        network = timm.create_model(name, pretrained=False)
        shape = (1, *network.default_cfg["input_size"])
    else:
        network, shape = getattr(torchvision.models, name)(weights=None), (1, 3, 224, 224)
    with torch.no_grad():
        torch.onnx.export(Plain(network).eval(), (torch.randn(shape),), path, opset_version=17, dynamo=False)


def format_row(name: str, cores: int) -> str:
    """Returns a row of the table; times in ms."""
    with tempfile.TemporaryDirectory() as folder:
        export_network(name, Path(folder) / "model.onnx")
        program = raptor.compile(Path(folder) / "model.onnx", arch="bench", cores=cores)
        out = program.save(Path(folder) / "out", stream_format="pim", weight_format="npz")
        verdict, found = program.validate().verdict, explain(out)
    times = (found.latency_ns, found.interval_ns, found.bounds.average, found.bounds.busiest, found.bounds.port)
    cells = (name, verdict, *(f"{t / 1e6:.3g}" for t in times), f"{found.interval_ns / found.bounds.average:.1f}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="NAME")
    parser.add_argument("--cores", type=int, default=200)
    options = parser.parse_args()
    print("| network | verdict | latency, ms | interval, ms | even work, ms | busiest core, ms | port, ms | times |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    failed = False
    for name in options.models:
        try:
            print(format_row(name, options.cores), flush=True)
        except RaptorError as error:
            failed = True
            print(f"| {name} | {error} |", flush=True)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
