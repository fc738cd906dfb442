"""The search for the number of cores beside chains of tokens."""

import pytest

from raptor.mapping.transformer.token_choice import find_least


def search(costs: list[float], past: int) -> tuple[int, int]:
    """The number that is found, and how many costs were asked for. No larger number is tried from `past` on."""
    asked = set[int]()

    def cost(number: int) -> float:
        asked.add(number)
        return costs[number]

    return find_least(len(costs), cost, lambda number: number >= past), len(asked)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 40, 255, 400])
def test_the_least_of_costs_that_fall_then_rise_is_found(count: int) -> None:
    for least in range(count):
        costs = [float(least - n if n < least else 2 * (n - least)) for n in range(count)]
        found, asked = search(costs, count)
        assert found == least
        assert asked <= 3 * count.bit_length() + 1


def test_the_first_of_equal_costs_is_found() -> None:
    assert search([3.0, 2.0, 2.0, 2.0, 2.0], 5)[0] == 1


def test_costs_that_only_rise_are_soon_left() -> None:
    assert search([float(n) for n in range(400)], past=1) == (0, 3)


def test_costs_that_rise_before_they_fall_are_seen_through() -> None:
    """A larger number is tried as long as it makes the slowest of the other layers faster."""
    costs = [5.0, 6.0, 7.0, 8.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0]
    assert search(costs, past=10)[0] == 9
    assert search(costs, past=1)[0] == 0
