"""Trees of sums: each partial sum is added once, and the last sum is where it is wanted."""

from hypothesis import given
from hypothesis import strategies as st

from raptor.mapping.modes.sum_trees import FEWEST_IN_TREE, passing_place, sum_messages, tree_sums


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))), st.integers(0, 20))
def test_a_tree_adds_each_partial_sum_once(tree: tuple[int, int], number: int):
    count, home = tree
    held = {place: {place} for place in range(count)}
    for each in tree_sums(count, home, number):
        assert held[each.place] | held[each.given] == set(range(each.begin, each.end))
        held[each.place] = held[each.place] | held.pop(each.given)
    assert held == {home: set(range(count))}


def test_cores_of_a_tree_receive_few_messages():
    received = [to for _, to in sum_messages(range(32), 5, 0, as_tree=True)]
    assert max(received.count(core) for core in range(32)) == 5
    assert [to for _, to in sum_messages(range(32), 5, 0, as_tree=False)] == [5] * 31


def test_few_cores_send_to_the_last_one():
    messages = sum_messages(range(FEWEST_IN_TREE - 1), 1, 0, as_tree=True)
    assert {to for _, to in messages} == {1}


def test_inputs_are_passed_on_from_core_to_core():
    """The source sends to cores 0, 1 and 3, 7, ...; each core sends at most once for each level."""
    passing = [passing_place(number) for number in range(16)]
    assert [n for n, place in enumerate(passing) if place is None] == [0, 1, 2, 3, 7, 15]
    assert all(place < number for number, place in enumerate(passing) if place is not None)
    assert max(passing.count(place) for place in range(16)) <= 3
