"""What a token bucket is told so that a link really has the rate that a figure is named after."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.bench.pair import Transfer
from kvferry_runtime.bench.rate import LARGEST_PACKET, Rate, parse
from kvferry_runtime.bench.samples import count, tokens_for, unaided_seconds
from kvferry_runtime.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "bits", "burst", "limit"),
    [
        ("100mbit", 1e8, 131_072, 131_072 + 250_000),
        ("250mbit", 2.5e8, 131_072, 131_072 + 625_000),
        ("1gbit", 1e9, 250_000, 250_000 + 2_500_000),
        ("10 gbit", 1e10, 2_500_000, 2_500_000 + 25_000_000),
        ("2.5Gbit", 2.5e9, 625_000, 625_000 + 6_250_000),
    ],
)
def test_rates_and_their_buckets(text: str, bits: float, burst: int, limit: int) -> None:
    rate = parse(text)
    assert rate.bits == bits
    assert rate.bucket() == (burst, limit)


@pytest.mark.parametrize("text", ["", "100", "100mb", "mbit", "-1mbit", "1mbit/s", "1kbit", "1000gbit"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(SettingsError, match="rate"):
        parse(text)


@given(st.floats(1e5, 1e11))
def test_a_bucket_holds_the_largest_packet_and_its_queue_holds_the_bucket(bits: float) -> None:
    burst, limit = Rate(bits).bucket()
    assert burst >= LARGEST_PACKET
    assert limit > burst


@pytest.mark.parametrize("text", ["100mbit", "250mbit", "2.5gbit", "10gbit", "300kbit"])
def test_a_rate_is_named_as_it_is_written(text: str) -> None:
    assert parse(text).text == text


def test_what_a_full_bucket_lets_pass_at_once_is_no_speed() -> None:
    """1.25 MB at 100 Mbit/s take 0.1 s; a full bucket shortens that by what it held."""
    rate = parse("100mbit")
    burst, _ = rate.bucket()
    lucky = Transfer(1_250_000, 1_250_000, 0.0, 0.0, 0.0, 0.1 - burst / rate.bytes_per_second)
    assert unaided_seconds(lucky, rate) == pytest.approx(0.1)
    small = Transfer(1000, 1000, 0.0, 0.0, 0.0, 0.001)
    assert unaided_seconds(small, rate) == pytest.approx(0.001 + 1000 / rate.bytes_per_second)


def test_decode_waits_from_the_later_of_asking_and_computing() -> None:
    assert Transfer(1, 1, started=0.0, asked=1.0, computed=3.0, loaded=3.5).seconds == pytest.approx(0.5)
    assert Transfer(1, 1, started=0.0, asked=4.0, computed=3.0, loaded=4.5).seconds == pytest.approx(0.5)


@pytest.mark.parametrize(("each", "budget", "expected"), [(1.0, 4.0, 4), (1.0, 1.0, 3), (0.01, 4.0, 9)])
def test_counts(each: float, budget: float, expected: int) -> None:
    assert count(each, budget) == expected


def test_prompts_that_take_so_long() -> None:
    assert tokens_for(parse("100mbit"), 2.0, 131_072, 2048) == 190
    assert tokens_for(parse("10gbit"), 2.0, 131_072, 2048) == 2048
    assert tokens_for(parse("100kbit"), 0.1, 131_072, 2048) == 1
