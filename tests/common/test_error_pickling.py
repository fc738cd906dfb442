"""Errors travel between processes and through copies whole: with kind, message and attributes."""

import copy
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context

import pytest

import raptor
import validator
from raptor.common import errors
from raptor.common.errors import (
    CapacityError,
    DeadLinkError,
    IncompleteError,
    InternalError,
    RaptorError,
    UnsupportedError,
    UnsupportedNode,
    UserError,
)
from raptor.device import errors as device_errors
from raptor.graph.requantise.synthesis import NoRecipeError
from raptor.mapping.refinement import RefinementError
from raptor.mapping.row_mapping import NothingStreamsError
from raptor.pim.verify_pim import PimError
from raptor.tools.explore.study_database import UnreachableError
from tests.pipeline import conv_model
from tests.tiny_models import make_model, node
from validator.errors import BlockedCore, DeadlockError, IdError, ProgramError
from validator.model.float64 import NoFloat64Error


def _is_device_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, device_errors.DeviceError)


EXAMPLES: dict[type[RaptorError], RaptorError] = {
    type(example): example
    for example in (
        RaptorError("anything"),
        PimError("pim: core 2 step 4 (conv): %x is used before it is defined", core=2, step=4),
        UserError("model.onnx: no such file"),
        UnreachableError("study.storage: no answer"),
        CapacityError("cores", 11, 10, where="layer conv", levers=("--cores 11", "--xbar 4")),
        DeadLinkError("cores", 11, 10, where="2 dead links", levers=("--cores 11",)),
        UnsupportedError([UnsupportedNode("a", "Loop", "no loops", ("b",)), UnsupportedNode("b", "If", "no branches")]),
        IncompleteError("input 'x' (1,H): H has no size", ["--dim", "H=SIZE"]),
        NoFloat64Error("no float64 kernel"),
        RefinementError("lowering: made for other computes"),
        NothingStreamsError("no layer can be computed by line on a chip of this size"),
        NoRecipeError("requantisation does not fit 32-bit integers"),
        InternalError("map failed"),
        errors.VerifyError("graph: output y is never defined"),
        ProgramError(3, 17, "send 1 2", "no such core"),
        IdError(0, 4, "sld 8 4", "look, token 2: the id is 9, but the rows of the table are 0 to 8"),
        *(kind("crossbar 3: not so") for kind in vars(device_errors).values() if _is_device_error(kind)),
        DeadlockError((BlockedCore(0, 5, "recv", "core 1, which has ended"), BlockedCore(2, 0, "wait", "a token"))),
    )
}


def _subclasses(kind: type[RaptorError]) -> Iterator[type[RaptorError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _subclasses(inner)


WITH_EXTRAS = (
    "xdsl_dialect",
    "distil_model",
    "fit_network",
    "input_codes",
    "torch_graph",
    "torch_operators",
    "weight_noise",
)
"""Modules that need the packages xdsl or torch."""


def test_every_error_has_an_example() -> None:
    for package in (raptor, validator):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(("__main__", *WITH_EXTRAS)):
                import_module(module.name)
    ours = {kind for kind in _subclasses(RaptorError) if kind.__module__.split(".")[0] in ("raptor", "validator")}
    assert ours == set(EXAMPLES)


def _by_pickle(protocol: int) -> Callable[[RaptorError], RaptorError]:
    return lambda error: pickle.loads(pickle.dumps(error, protocol))


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {protocol}": _by_pickle(protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)},
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_a_copy_is_equal(kind: type[RaptorError], way: str) -> None:
    error = copy.copy(EXAMPLES[kind])
    error.add_note("seen by a user")
    _assert_equal(COPIES[way](error), error)


def _assert_equal(got: BaseException, wanted: BaseException) -> None:
    assert type(got) is type(wanted)
    assert str(got) == str(wanted)
    assert got.args == wanted.args
    assert vars(got) == vars(wanted)


def too_few_cores() -> None:
    raptor.compile(conv_model((1, 5, 4, 4), 4), xbar=3, cores=1, xbars_per_core=1)


def an_operator_nobody_has() -> None:
    raptor.compile(make_model([node("Relu", "x", "r"), node("Bernoulli", "r", "y")], {"x": (1, 4)}, ["y"]))


def example(name: str) -> None:
    raise next(error for kind, error in EXAMPLES.items() if kind.__name__ == name)


def _caught(work: Callable[..., None], *args: str) -> RaptorError:
    with pytest.raises(RaptorError) as caught:
        work(*args)
    return caught.value


def test_a_process_pool_passes_them_on() -> None:
    tasks: list[tuple[Callable[..., None], tuple[str, ...]]] = [(too_few_cores, ()), (an_operator_nobody_has, ())]
    tasks += [(example, (kind.__name__,)) for kind in EXAMPLES]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for work, args in tasks:
            with pytest.raises(RaptorError) as caught:
                pool.submit(work, *args).result()
            _assert_equal(caught.value, _caught(work, *args))
