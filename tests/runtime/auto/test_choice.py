"""What is chosen, and the reason that is given for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_contract.config import OverlapMode
from kvferry_runtime.auto.choice import LAYERWISE_MIN_TOKENS, NEGLIGIBLE_SECONDS, Why, choose
from kvferry_runtime.auto.prediction import Job, exposed_seconds
from kvferry_runtime.auto.speeds import LADDER, MethodSpeed, ordered

MIB = 1 << 20
MBIT = 1e6 / 8
NONE = MethodSpeed("none", 1.0, 6e9, 6e9)
LOSSLESS = MethodSpeed("lossless", 0.75, 5e9, 5e9)
INT8 = MethodSpeed("int8", 0.53, 5e9, 5e9)
ALL = [NONE, LOSSLESS, INT8]


@pytest.mark.parametrize("layerwise", [True, False])
def test_what_goes_on_after_the_layers_that_are_sent_hides_them(layerwise: bool) -> None:
    """Two offers of half of the layers each: the first half has the second half's time to be through."""
    link = 500 * MBIT
    early = Job(32 * MIB, 0, 16, MIB, compute_seconds=0.4, tail_seconds=0.2)
    late = Job(32 * MIB, 0, 16, MIB, compute_seconds=0.2)
    exposed = [exposed_seconds(half, link, NONE, NONE, layerwise) for half in (early, late)]
    if not layerwise:
        assert exposed[0] == exposed[1], "neither begins before the end of the pass"
        return
    assert exposed[0] < exposed[1]
    assert exposed[1] - exposed[0] == pytest.approx(0.2), "the link is busy from its first layer on"
    quick = 100 * link
    assert exposed_seconds(early, quick, NONE, NONE, layerwise) == 0.0, "it is there before the pass ends"
    assert exposed_seconds(late, quick, NONE, NONE, layerwise) > 0.0


def job(raw_bytes: int = 64 * MIB, compute: float = 0.0, exact: int = 0) -> Job:
    return Job(raw_bytes, exact, 32, MIB, compute)


@pytest.mark.parametrize(
    ("rate", "compute", "methods", "method", "why"),
    [
        pytest.param(None, 0.0, ALL, "none", Why.UNMEASURED, id="first transfer to a peer"),
        pytest.param(100 * MBIT, 0.0, ALL, "int8", Why.LINK_SLOW, id="slow link"),
        pytest.param(100 * MBIT, 0.0, [NONE, LOSSLESS], "lossless", Why.LINK_SLOW, id="slow link, exact only"),
        pytest.param(1000 * MBIT, 1.0, ALL, "none", Why.HIDDEN, id="hides behind the pass"),
        pytest.param(1000 * MBIT, 0.4, ALL, "lossless", Why.LINK_SLOW, id="the exact method that hides"),
        pytest.param(40_000 * MBIT, 0.0, ALL, "none", Why.LINK_FAST, id="methods are slower than the link"),
        pytest.param(100 * MBIT, 0.0, [NONE], "none", Why.ONLY, id="nothing else at both ends"),
        pytest.param(None, 0.0, [NONE], "none", Why.ONLY, id="nothing else, and nothing measured"),
    ],
)
def test_which_method_and_why(
    rate: float | None, compute: float, methods: list[MethodSpeed], method: str, why: Why
) -> None:
    choice = choose(job(compute=compute), rate, methods, OverlapMode.AUTO, 2048)
    assert (choice.method, choice.why) == (method, why)
    assert (choice.exposed_seconds is None) is (rate is None)


@pytest.mark.parametrize(
    ("mode", "tokens", "layerwise"),
    [
        (OverlapMode.AUTO, LAYERWISE_MIN_TOKENS - 1, False),
        (OverlapMode.AUTO, LAYERWISE_MIN_TOKENS, True),
        (OverlapMode.LAYERWISE, 1, True),
        (OverlapMode.REQUEST, 100_000, False),
    ],
)
def test_layer_by_layer_before_anything_was_measured(mode: OverlapMode, tokens: int, layerwise: bool) -> None:
    assert choose(job(), None, ALL, mode, tokens).layerwise is layerwise


@pytest.mark.parametrize(
    ("raw_bytes", "rate", "compute", "layerwise"),
    [
        pytest.param(64 * MIB, 1000 * MBIT, 0.5, True, id="most of it hides"),
        pytest.param(64 * MIB, 1000 * MBIT, 0.0, False, id="nothing to hide behind"),
        pytest.param(MIB // 8, 10_000 * MBIT, 0.01, False, id="too small to win anything"),
        pytest.param(MIB, 100 * MBIT, 0.0002, False, id="the pass is too short"),
    ],
)
def test_layer_by_layer_only_where_it_wins(raw_bytes: int, rate: float, compute: float, layerwise: bool) -> None:
    assert choose(job(raw_bytes, compute), rate, [NONE], OverlapMode.AUTO, 2048).layerwise is layerwise


@pytest.mark.parametrize(("tokens", "layerwise"), [(LAYERWISE_MIN_TOKENS - 1, False), (LAYERWISE_MIN_TOKENS, True)])
def test_a_short_prompt_must_win_a_share_of_its_time(tokens: int, layerwise: bool) -> None:
    """8 ms behind a pass of 2 s: worth it for a long prompt, within the noise of a short one."""
    assert choose(job(8 * MIB, 2.0), 8000 * MBIT, [NONE], OverlapMode.AUTO, tokens).layerwise is layerwise


def test_bytes_that_must_stay_exact_speak_against_a_lossy_method() -> None:
    """A prompt of which lossy methods may touch next to nothing gains nothing by one."""
    untouchable = job(exact=63 * MIB)
    assert choose(untouchable, 100 * MBIT, [NONE, INT8], OverlapMode.REQUEST, 2048).method == "none"


@given(
    raw_bytes=st.integers(1, 1 << 34),
    compute=st.floats(0, 10),
    rate=st.floats(1e5, 1e11),
    costs=st.lists(st.tuples(st.floats(0.05, 1.2), st.floats(1e7, 1e11), st.floats(1e7, 1e11)), min_size=1, max_size=6),
    overlap=st.sampled_from(OverlapMode),
)
def test_never_slower_than_a_less_lossy_method(
    raw_bytes: int,
    compute: float,
    rate: float,
    costs: list[tuple[float, float, float]],
    overlap: OverlapMode,
) -> None:
    """And within five per cent of the fastest, in the model."""
    methods = [MethodSpeed(name, *cost) for name, cost in zip(LADDER, costs, strict=False)]
    work = job(raw_bytes, compute)
    choice = choose(work, rate, methods, overlap, 2048)
    ways = {OverlapMode.AUTO: (False, True), OverlapMode.LAYERWISE: (True,), OverlapMode.REQUEST: (False,)}[overlap]
    waits = {
        method.method: min(exposed_seconds(work, rate, method, methods[0], way) for way in ways) for method in methods
    }
    assert choice.exposed_seconds is not None
    assert choice.exposed_seconds + compute <= 1.05 * (min(waits.values()) + compute) + 2 * NEGLIGIBLE_SECONDS
    less_lossy = methods[: [method.method for method in methods].index(choice.method)]
    assert all(waits[choice.method] < waits[method.method] for method in less_lossy)


def test_methods_that_leave_out_tokens_are_never_chosen() -> None:
    assert ordered(["sparse75", "fp4", "none", "int8", "auto"]) == ["none", "int8", "fp4"]
