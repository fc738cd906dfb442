"""Routes that dead links cut, against walks over the mesh; places between which no message is cut."""

from itertools import permutations

import numpy as np
import pytest

from raptor.target.avoid_links import find_uncut_places
from raptor.target.mesh_routes import CutRoutes
from tests.mesh_walks import Link, walk


def draw_links(rng: np.random.Generator, rows: int, cols: int, count: int) -> list[Link]:
    places = range(rows * cols)
    links = [(k, k + 1) for k in places if (k + 1) % cols] + [(k, k + cols) for k in places if k + cols < rows * cols]
    return [links[i] for i in rng.choice(len(links), min(count, len(links)), replace=False).tolist()]


@pytest.mark.parametrize(("rows", "cols", "count"), [(1, 6, 2), (5, 1, 2), (3, 4, 1), (4, 4, 5), (5, 3, 12)])
def test_cut_routes_are_those_whose_walks_meet_a_dead_link(rows: int, cols: int, count: int):
    for seed in range(10):
        dead = draw_links(np.random.default_rng(seed), rows, cols, count)
        routes, every = CutRoutes.from_links(dead, rows * cols, cols), np.arange(rows * cols)
        wanted = [[bool((walk(a, b, cols) | walk(b, a, cols)) & set(dead)) for b in every] for a in every]
        assert routes.cut(every[:, None], every).tolist() == wanted


def count_faults(peers: list[list[int]], cut: np.ndarray, forbidden: np.ndarray, places: tuple[int, ...]) -> int:
    cuts = sum(int(cut[places[a], places[b]]) for a, others in enumerate(peers) for b in others)
    return cuts + int(forbidden[np.arange(len(places)), list(places)].sum())


def test_places_are_found_if_there_are_some():
    """For six cores, all places are tried. Places that are right already stay."""
    feasible = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        every = np.arange(6)
        cut = CutRoutes.from_links(draw_links(rng, 2, 3, 1 + seed % 3), 6, 3).cut(every[:, None], every)
        forbidden = rng.random((6, 6)) < 0.15
        talks = np.triu(rng.random((6, 6)) < 0.3, 1)
        peers = [np.flatnonzero(row) for row in talks | talks.T]
        listed = [others.tolist() for others in peers]
        least = min(count_faults(listed, cut, forbidden, places) for places in permutations(range(6)))
        found = find_uncut_places(peers, cut, forbidden, every)
        assert sorted(found.tolist()) == every.tolist()
        left = count_faults(listed, cut, forbidden, tuple(found.tolist()))
        assert (left == 0) == (least == 0)
        feasible += least == 0
        if not left:
            assert np.array_equal(find_uncut_places(peers, cut, forbidden, found), found)
    assert 10 < feasible < 40


def test_cores_that_talk_to_all_are_gathered_on_one_side():
    """Nine of sixteen cores that all exchange messages fit a mesh of four rows, of which one is cut in two."""
    every = np.arange(16)
    cut = CutRoutes.from_links([(5, 6)], 16, 4).cut(every[:, None], every)
    peers = [np.array([b for b in range(9) if b != a]) if a < 9 else np.zeros(0, np.int64) for a in range(16)]
    found = find_uncut_places(peers, cut, None, every)
    assert not cut[np.ix_(found[:9], found[:9])].any()
