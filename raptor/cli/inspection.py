"""Command `raptor inspect MODEL`."""

from pathlib import Path
from typing import Annotated

import typer

from raptor.cli import model_options
from raptor.common.options import ISA


def command(
    model: model_options.Model,
    xbar: model_options.Xbar = None,
    xbars_per_core: model_options.XbarsPerCore = None,
    bits: model_options.Bits = 8,
    cell_bits: model_options.CellBits = None,
    arch: model_options.Arch = None,
    shape: model_options.Shape = None,
    dim: model_options.Dim = None,
    constant: model_options.Set = None,
    isa: model_options.InstructionSet = "extended",
    host: model_options.Host = False,
    host_ops: model_options.HostOps = None,
    host_nodes: model_options.HostNodes = None,
    json: Annotated[Path | None, typer.Option("--json", help="File for JSON; - for the terminal.")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Show what would happen to a model: operators, multiply-accumulates, crossbars of each layer, chip and host.

    Exit status: 0 every operator can be compiled, 2 some cannot, or bad input.

    Example: raptor inspect lenet5.onnx --xbar 128
    """
    # The front end takes a moment to import; `raptor --help` does without.
    from raptor.analysis.inspection import inspect, show, write
    from raptor.common import storage
    from raptor.common.console import Console
    from raptor.common.errors import UnsupportedError, UnsupportedNode

    found = inspect(
        model,
        xbar=xbar,
        xbars_per_core=xbars_per_core,
        bits=bits,
        cell_bits=cell_bits,
        arch=arch,
        shapes=model_options.read_shapes(shape or ()),
        dims=model_options.read_dims(dim or ()),
        constants=model_options.read_constants(constant or ()),
        base_isa=ISA.parse(isa) == "base",
        host=host,
        host_ops=model_options.read_names(host_ops or ()),
        host_nodes=model_options.read_names(host_nodes or ()),
    )
    if json is not None:
        write(json, found)
    if not (quiet or storage.is_terminal(json)):
        show(found, Console())
    if found.unsupported:
        raise UnsupportedError([UnsupportedNode(n.node, n.op_type, n.reason) for n in found.unsupported])
