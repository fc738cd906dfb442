"""What the shell offers for arguments that are names. Imports wait until it asks."""


def models() -> list[str]:
    from models import MODELS

    return list(MODELS)


def presets() -> list[str]:
    """Presets; the shell adds files by itself where nothing matches."""
    from raptor.arch import presets

    return list(presets())


def strategies() -> list[str]:
    from raptor.compiler import STRATEGIES

    return list(STRATEGIES)


def objectives() -> list[str]:
    from raptor.search import OBJECTIVES

    return list(OBJECTIVES)


def passes() -> list[str]:
    from raptor.driver import PASSES

    return list(PASSES)
