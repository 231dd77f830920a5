"""The sum tree against running sums over all its leaves."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rl_training.data import sum_tree
from rl_training.data.sum_tree import SumTree

#: one layer, two layers with an incomplete last group of children, three layers
CAPACITIES = [1, 7, 4096, 4097, 5000, 70_001]


def make_tree(values: NDArray[np.float64]) -> SumTree:
    tree = SumTree(len(values))
    tree.set(np.arange(len(values)), values)
    return tree


def random_values(capacity: int, seed: int = 0) -> NDArray[np.float64]:
    """Values of very different sizes, about half of them 0, never all."""
    rng = np.random.default_rng(seed)
    values = np.exp(rng.normal(0.0, 3.0, capacity)) * (rng.random(capacity) < 0.5)
    values[rng.integers(capacity)] = 1.0
    return values


@settings(max_examples=150, deadline=None)
@given(
    capacity=st.integers(1, 300),
    top_nodes=st.sampled_from([1, 5, 4096]),  # as many layers as there can be; some; one
    data=st.data(),
)
def test_equals_the_running_sum_of_whole_numbers(capacity: int, top_nodes: int, data: st.DataObject) -> None:
    """Sums of whole numbers are exact, so every point of every interval has one right answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sum_tree, "TOP_NODES", top_nodes)
        tree, twin = SumTree(capacity), np.zeros(capacity, np.int64)
    changes = st.lists(st.tuples(st.integers(0, capacity - 1), st.integers(0, 9)), min_size=1, max_size=60)
    for change in data.draw(st.lists(changes, min_size=1, max_size=4)):
        indices, values = zip(*change, strict=True)
        tree.set(indices, values)
        for index, value in change:  # one after the other: the last one stays
            twin[index] = value
        np.testing.assert_array_equal(tree.get(np.arange(capacity)), twin)
        assert tree.total == twin.sum()
    if twin.sum() == 0:
        with pytest.raises(ValueError, match="all 0"):
            tree.sample(np.zeros(1))
        return
    points = np.arange(0, twin.sum(), 0.5)
    np.testing.assert_array_equal(tree.sample(points), twin.cumsum().searchsorted(points, side="right"))


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_equals_the_running_sum_of_any_numbers(capacity: int) -> None:
    values = random_values(capacity)
    tree = make_tree(values)
    points = np.random.default_rng(1).random(2000) * tree.total
    ends, found = values.cumsum(), tree.sample(points)
    assert found.dtype == np.int64
    slack = 1e-12 * ends[-1]  # the two sum in different orders
    assert np.all(ends[found] >= points - slack)
    assert np.all(ends[found] - values[found] <= points + slack)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_total_is_exact_to_the_last_bits(capacity: int) -> None:
    values = random_values(capacity)
    exact = sum(map(Fraction, values.tolist()))
    assert abs(Fraction(make_tree(values).total) - exact) <= exact * 400 * Fraction(2) ** -53


@settings(max_examples=100, deadline=None)
@given(capacity=st.sampled_from(CAPACITIES), seed=st.integers(0, 2**32 - 1))
def test_a_leaf_of_value_0_is_never_drawn(capacity: int, seed: int) -> None:
    """Also at the ends of the intervals, where the rounding of the sums decides, and at and beyond the total."""
    values = random_values(capacity, seed)
    tree = make_tree(values)
    ends = np.random.default_rng(seed).choice(values.cumsum(), 300)
    beside = [ends, np.nextafter(ends, 0.0), np.nextafter(ends, np.inf), [0.0, tree.total, np.nextafter(tree.total, 0.0)]]
    found = tree.sample(np.concatenate(beside))
    assert np.all(tree.get(found) > 0.0)
    assert found.min() >= np.flatnonzero(values)[0]
    assert found.max() <= np.flatnonzero(values)[-1]


def test_a_remainder_that_rounding_makes_too_long_stays_in_its_node() -> None:
    """Added one by one, small numbers are lost beside a 1; in pairs they are not: a node is longer than its children."""
    values = np.zeros(2 * 4096)
    values[17], values[18:32] = 1.0, 2.0**-53
    tree = make_tree(values)
    assert tree.total == 1.0 + 14 * 2.0**-53
    assert tree.sample([0.0, 1.0, 1.0 + 2.0**-52, tree.total]).tolist() == [17, 17, 17, 17]


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_tree_rebuilt_from_its_leaves_is_the_same_bit_for_bit(capacity: int) -> None:
    rng = np.random.default_rng(2)
    tree = make_tree(random_values(capacity))
    for _ in range(30):  # small and large batches of changes
        indices = rng.integers(0, capacity, rng.integers(1, 300))
        tree.set(indices, rng.random(len(indices)) * 1e3 ** rng.integers(-2, 3))
    saved = tree.leaves(capacity)
    rebuilt = SumTree(capacity)
    rebuilt.set(np.arange(capacity), 1.0)  # must leave nothing behind
    rebuilt.load(saved)
    assert rebuilt.total == tree.total
    for found, expected in zip(rebuilt._layers, tree._layers, strict=True):
        np.testing.assert_array_equal(found, expected)
    points = rng.random(500) * tree.total
    np.testing.assert_array_equal(rebuilt.sample(points), tree.sample(points))


def test_saved_leaves_are_a_copy_and_loading_clears_the_rest() -> None:
    tree = make_tree(np.arange(1.0, 6001.0))
    saved = tree.leaves(10)
    tree.set(3, 99.0)
    assert saved.tolist() == list(range(1, 11))
    tree.load(saved)
    assert tree.total == 55.0
    assert tree.leaves(6000)[10:].sum() == 0.0
    tree.load([])
    assert tree.total == 0.0


@settings(max_examples=100, deadline=None)
@given(capacity=st.sampled_from(CAPACITIES), data=st.data())
def test_a_run_of_leaves_is_set_as_single_leaves_are(capacity: int, data: st.DataObject) -> None:
    trees = [make_tree(random_values(capacity)) for _ in range(2)]
    count = data.draw(st.integers(0, min(capacity, 300)))
    start = data.draw(st.integers(0, capacity - count))
    values = random_values(300, seed=1)[:count]
    trees[0].set(np.arange(start, start + count), values)
    trees[1].set_run(start, values)
    for one, other in zip(trees[0]._layers, trees[1]._layers, strict=True):
        np.testing.assert_array_equal(one, other)
    assert trees[0].total == trees[1].total
    with pytest.raises(IndexError, match="leaf indices"):
        trees[1].set_run(capacity - count + 1, values)


def test_the_last_of_duplicate_indices_wins() -> None:
    tree = SumTree(5000)
    tree.set([4, 4000, 4, 4], [1.0, 2.0, 3.0, 0.5])
    assert tree.get([4, 4000]).tolist() == [0.5, 2.0]
    assert tree.total == 2.5


def test_draws_are_proportional_to_the_values() -> None:
    rng = np.random.default_rng(3)
    values = np.zeros(5000)
    values[::250] = np.arange(1.0, 21.0)  # 20 leaves under 20 parents
    tree = make_tree(values)
    counts = np.bincount(tree.sample(rng.random(50_000) * tree.total), minlength=5000)[::250]
    expected = 50_000 * np.arange(1.0, 21.0) / 210.0
    assert counts.sum() == 50_000
    assert float(((counts - expected) ** 2 / expected).sum()) < 43.8  # the 0.999 quantile at 19 degrees of freedom


@pytest.mark.parametrize("value", [-1e-300, np.nan, np.inf, -np.inf])
def test_refuses_invalid_values(value: float) -> None:
    tree = make_tree(np.ones(20))
    with pytest.raises(ValueError, match="finite"):
        tree.set([1, 2], [1.0, value])
    with pytest.raises(ValueError, match="finite"):
        tree.load([1.0, value])
    assert tree.total == 20.0


@pytest.mark.parametrize("index", [-1, 5000, 5007])
def test_refuses_leaves_that_do_not_exist(index: int) -> None:
    tree = SumTree(5000)  # padded to 5008 inside
    with pytest.raises(IndexError, match="4999"):
        tree.set([0, index], [1.0, 1.0])
    with pytest.raises(IndexError, match="4999"):
        tree.get(index)
    with pytest.raises(ValueError, match="5001 values"):
        tree.load(np.ones(5001))
    with pytest.raises(ValueError, match="at least one"):
        SumTree(0)


def test_the_memory_is_counted() -> None:
    tree = SumTree(10**6)
    held = [*tree._layers, tree._ends()]
    assert tree.nbytes == sum(array.nbytes for array in held) < 1.1 * 8 * 10**6
