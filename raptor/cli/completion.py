"""Suggestions of shell completion for arguments that are names. Imports wait until the shell asks."""

from raptor.common.option_values import SCHEME, STRATEGY


def models() -> list[str]:
    """Returns the models; none if another package called `models` is found, which the command then reports."""
    from raptor.common.errors import UserError
    from raptor.common.packages import require_own

    try:
        require_own("models")
    except UserError:
        return []
    from models import MODELS

    return list(MODELS)


def devices() -> list[str]:
    """Returns the presets of device files."""
    from raptor.target.device_file import device_presets

    return list(device_presets())


def presets() -> list[str]:
    """Returns the presets; the shell adds files by itself where nothing matches."""
    from raptor.target.arch import presets

    return list(presets())


def strategies() -> list[str]:
    return list(STRATEGY.names)


def schemes() -> list[str]:
    return list(SCHEME.names)


def passes() -> list[str]:
    from raptor.compiler import PASS

    return list(PASS.names)
