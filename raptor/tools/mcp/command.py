"""Command `raptor mcp`."""

from pathlib import Path
from typing import Annotated

import typer


def mcp_command(
    root: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of models that clients may read.", show_default=".")
    ] = Path("."),
    seconds: Annotated[float, typer.Option("--seconds", min=1, max=86400, help="Time limit of a call.")] = 300,
    model_mb: Annotated[int, typer.Option("--model-mb", min=1, max=2048, help="Largest model that is read.")] = 512,
    kept_mb: Annotated[
        int, typer.Option("--kept-mb", min=1, max=2**20, help="Results that are kept in FOLDER/.raptor; old ones go.")
    ] = 4096,
) -> None:
    """Serve RAPTOR to an agent by the Model Context Protocol, over standard input and output.

    Needs the package mcp, which the extra `mcp` of raptor-crossbar installs. A client starts the server, as
    docs/how-to/agents.md shows.

    Example: raptor mcp --help
    """
    from raptor.tools.mcp.server import make_server

    make_server(root, seconds=seconds, model_bytes=model_mb * 10**6, kept_bytes=kept_mb * 10**6).run("stdio")
