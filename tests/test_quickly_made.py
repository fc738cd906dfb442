"""Dataclasses that set their slots themselves: like any other frozen slotted dataclass."""

import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from raptor.common.quickly_made import quickly_made


@quickly_made
@dataclass(frozen=True, slots=True)
class Base:
    """A class with fields."""

    first: int


@quickly_made
@dataclass(frozen=True, slots=True)
class Made(Base):
    """One more field, and one with a default that does not count."""

    second: str
    third: float = field(default=2.0, compare=False)


@dataclass(frozen=True, slots=True)
class Usual(Base):
    """A class with the same fields, made as dataclasses are."""

    second: str
    third: float = field(default=2.0, compare=False)


def test_it_is_made_like_any_other():
    assert (Made(1, "a").first, Made(1, "a").second, Made(1, "a").third) == (1, "a", 2.0)
    assert Made(second="a", third=3.0, first=1) == Made(1, "a")
    assert replace(Made(1, "a"), second="b") == Made(1, "b")
    assert hash(Made(1, "a")) == hash(Made(1, "a", 5.0))
    assert repr(Made(1, "a")) == repr(Usual(1, "a")).replace("Usual", "Made")
    assert inspect.signature(Made) == inspect.signature(Usual)
    assert pickle.loads(pickle.dumps(Made(1, "a", 4.0))).third == 4.0


def test_it_is_frozen_and_slotted():
    with pytest.raises(FrozenInstanceError):
        Made(1, "a").first = 2  # pyright: ignore[reportAttributeAccessIssue]
    assert not hasattr(Made(1, "a"), "__dict__")


@pytest.mark.parametrize("arguments", [(), (1,), (1, "a", 2.0, 3)])
def test_missing_and_further_arguments_are_refused(arguments: tuple[object, ...]):
    with pytest.raises(TypeError, match=r"__init__\(\)"):
        Made(*arguments)  # pyright: ignore[reportArgumentType]


def test_other_classes_are_refused():
    @dataclass(frozen=True, slots=True)
    class WithFactory:
        values: list[int] = field(default_factory=list[int])

    @dataclass(frozen=True)
    class WithoutSlots:
        value: int

    @dataclass(frozen=True, slots=True)
    class WithKeyword:
        value: int = field(kw_only=True)

    @dataclass(frozen=True, slots=True)
    class WithMore:
        value: int

        def __post_init__(self) -> None:
            assert self.value

    for cls in (WithFactory, WithoutSlots, WithKeyword, WithMore):
        with pytest.raises(TypeError, match=f"{cls.__name__}: a slotted dataclass of plain fields"):
            quickly_made(cls)
