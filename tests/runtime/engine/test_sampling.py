from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.engine.reference.sampling import Sampling, sample

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3], dtype=np.float32))


def draws(sampling: Sampling, count: int = 2000) -> Counter[int]:
    return Counter(sample(LOGITS, sampling, index) for index in range(count))


def test_greedy_takes_the_likeliest_and_of_equal_ones_the_first() -> None:
    assert sample(LOGITS, Sampling(0, 1, 0, 5), 0) == 1
    assert sample(np.array([1, 3, 3, 2], dtype=np.float32), Sampling(0, 1, 0, 5), 0) == 1


def test_tokens_come_as_often_as_their_probability_says() -> None:
    found = draws(Sampling(1.0, 1.0, 0, 1), 20_000)
    for token, probability in enumerate([0.1, 0.4, 0.2, 0.3]):
        assert found[token] / 20_000 == pytest.approx(probability, abs=0.02)


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (Sampling(1.0, 1.0, 2, 1), {1, 3}),
        (Sampling(1.0, 1.0, 1, 1), {1}),
        (Sampling(1.0, 0.69, 0, 1), {1, 3}),
        (Sampling(1.0, 0.71, 0, 1), {1, 2, 3}),
        (Sampling(1.0, 0.0, 0, 1), {1}),
        (Sampling(1.0, 0.5, 3, 1), {1, 3}),
        (Sampling(1.0, 1.0, 100, 1), {0, 1, 2, 3}),
    ],
)
def test_top_k_and_top_p_keep_the_likeliest(sampling: Sampling, allowed: set[int]) -> None:
    assert set(draws(sampling)) == allowed


def test_a_cold_temperature_is_nearly_greedy_and_a_hot_one_nearly_uniform() -> None:
    assert set(draws(Sampling(0.01, 1, 0, 1))) == {1}
    assert min(draws(Sampling(100, 1, 0, 1), 8000).values()) > 1700


@pytest.mark.parametrize("temperature", [1e-300, 5e-324])
def test_the_least_temperatures_are_greedy(temperature: float) -> None:
    assert set(draws(Sampling(temperature, 1, 0, 1), 20)) == {1}


@given(seed=st.integers(-(2**63), 2**63 - 1), index=st.integers(0, 10_000), temperature=st.floats(0.05, 5))
def test_a_draw_depends_on_seed_and_index_alone(seed: int, index: int, temperature: float) -> None:
    sampling = Sampling(temperature, 0.9, 3, seed)
    assert sample(LOGITS, sampling, index) == sample(LOGITS.copy(), sampling, index)


def test_indices_and_seeds_draw_differently() -> None:
    assert len(draws(Sampling(1.0, 1.0, 0, 1))) == 4
    assert len({sample(LOGITS, Sampling(1.0, 1.0, 0, seed), 0) for seed in range(50)}) > 1
