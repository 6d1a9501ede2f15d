"""The figures of quality on predictions whose distance is known."""

import math

import pytest
import torch

from kvferry_runtime.quality.drift import Drift
from kvferry_runtime.quality.report import figures, table


def log(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def test_equal_predictions_have_no_divergence_at_all() -> None:
    drift = Drift()
    scores = torch.randn(20, 1000).log_softmax(dim=-1)
    drift.predicted(scores, scores.clone(), torch.arange(20))
    assert (drift.mean_kl, drift.top1) == (0.0, 1.0)


def test_divergence_top_and_perplexity_of_a_known_pair() -> None:
    drift = Drift()
    drift.predicted(log(0.5, 0.25, 0.25), log(0.25, 0.5, 0.25), torch.tensor([0]))
    drift.predicted(log(0.5, 0.25, 0.25), log(0.5, 0.25, 0.25), torch.tensor([1]))
    assert drift.mean_kl == pytest.approx((0.5 * math.log(2) - 0.25 * math.log(2)) / 2, rel=1e-6)
    assert drift.top1 == 0.5
    assert drift.perplexity == pytest.approx(4.0)


@pytest.mark.parametrize(("found", "equal", "same"), [([1, 2, 3], 3, 1), ([1, 9, 3], 1, 0), ([9, 2, 3], 0, 0)])
def test_a_greedy_text_counts_up_to_its_first_difference(found: list[int], equal: int, same: int) -> None:
    drift = Drift()
    drift.answered([1, 2, 3], found)
    assert (drift.equal_tokens, drift.greedy_tokens, drift.equal_texts) == (equal, 3, same)


def test_names_of_figures_are_stable_and_perplexity_stands_against_the_exact_one() -> None:
    exact, drift = Drift(), Drift(raw_bytes=100, wire_bytes=52)
    exact.predicted(log(0.5, 0.5), log(0.5, 0.5), torch.tensor([0]))
    drift.predicted(log(0.5, 0.5), log(0.25, 0.75), torch.tensor([0]))
    drift.answered([1], [1])
    found = {figure.name: figure for figure in figures(exact, {"int8": drift})}
    assert list(found) == [f"quality.int8.{key}" for key in ("kl", "top1", "ppl", "size", "greedy", "texts")]
    assert found["quality.int8.ppl"].ratio == pytest.approx(2.0)
    assert found["quality.int8.size"].value == 0.52
    assert "| int8   | 0.520 |" in table(exact, {"int8": drift})
