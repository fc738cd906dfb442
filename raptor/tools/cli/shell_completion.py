"""Values for shell completion of arguments. Imports are inside the functions, so that other commands start fast."""

from raptor.common.options.option_values import SCHEME, STRATEGY


def models() -> list[str]:
    """Returns the names of the built-in models; none if another project's package `models` is found."""
    from raptor.common.errors import UserError
    from raptor.common.package_clashes import require_own_packages

    try:
        require_own_packages("models")
    except UserError:
        return []
    from models import MODELS
    from models.trained import TRAINED

    return [*MODELS, *TRAINED]


def devices() -> list[str]:
    """Returns the names of the device presets."""
    from raptor.target.device_file import device_presets

    return list(device_presets())


def presets() -> list[str]:
    """Returns the names of the architecture presets; the shell itself completes files."""
    from raptor.target.arch import arch_presets

    return list(arch_presets())


def strategies() -> list[str]:
    return list(STRATEGY.choices)


def schemes() -> list[str]:
    return list(SCHEME.choices)


def passes() -> list[str]:
    from raptor.compiler.compilation import PASS_OPTION

    return list(PASS_OPTION.choices)


def backends() -> list[str]:
    """Returns the names of the machines: RAPTOR's own back ends, and those of installed packages."""
    from raptor.common.machine_backends import list_backends

    return list(list_backends())
