"""Groups of stages, real sidecars and agents between them: the tokens do not depend on how the model is split."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import reference_engines as engines
import tiny_model
from engine_pods import Sides, engine_pods
from kvferry_contract.config import Method
from kvferry_contract.split import Split
from kvferry_runtime.engine.reference.chunks import PREFILL_CHUNK
from kvferry_runtime.engine.reference.request import Mode
from tiny_model import prompt_of

ONE = Split(1)
UNLIKE = [(Split(3), Split(2)), (Split(2), Split(3))]
SPLITS = [
    (Split(2), ONE), (ONE, Split(2)), (Split(2), Split(2)), *UNLIKE, (Split(3, (1, 3, 1)), Split(2, (4, 1))),
]  # fmt: skip
LAYERS = 5
TOKEN_BYTES = 2 * 2 * 16 * 2
"""Of one layer: K and V, 2 heads of 16 values in bf16."""
EXACT = 16 + 64
"""Tokens at both ends of a prompt that lossy methods leave alone."""
LENGTHS = (1, EXACT, PREFILL_CHUNK + 44, 700, 4 * PREFILL_CHUNK + 76)
"""Nothing to compress, then prompts of several passes, the last one of five."""
LOSSY = [Method.FP8, Method.INT8, Method.K8V4]
SAMPLING = {"temperature": 1.0, "top_p": 0.95, "seed": 11, "max_tokens": 12, "ignore_eos": True}
"""Drawn from all tokens that are likely, so that a small error in the KV shows."""

Answers = list[list[int]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.make(tmp_path_factory.mktemp("staged") / "layers", layers=LAYERS, dtype="bfloat16")


def cases(*methods: Method, few: Method) -> list[Any]:
    """All methods with all splits, and one more with two of them."""
    chosen = [(method, *split) for method in methods for split in SPLITS] + [(few, *split) for split in UNLIKE]
    return [
        pytest.param(method, prefill, decode, id="-".join((method, _name(prefill), _name(decode))))
        for method, prefill, decode in chosen
    ]


def _name(split: Split) -> str:
    return "+".join(map(str, split.layers)) or str(split.stages)


class Unsplit:
    """Answers of one engine, and of one prefill and one decode engine with a method between them."""

    def __init__(self, folder: Path, scratch: pytest.TempPathFactory) -> None:
        self._folder = folder
        self._scratch = scratch
        self._known: dict[Method | None, Answers] = {}

    async def alone(self) -> Answers:
        if None not in self._known:
            engine = await asyncio.to_thread(engines.start, self._folder)
            try:
                found = [await engines.complete(engine, prompt_of(length), **SAMPLING) for length in LENGTHS]
            finally:
                engine.close(5)
            self._known[None] = [each.tokens for each in found]
        return self._known[None]

    async def disaggregated(self, method: Method) -> Answers:
        if method not in self._known:
            async with engine_pods(self._scratch.mktemp(method), self._folder, ONE, ONE, method=method) as sides:
                self._known[method] = await answers(sides, method)
        return self._known[method]


@pytest.fixture(scope="module")
def unsplit(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Unsplit:
    return Unsplit(folder, tmp_path_factory)


async def answers(sides: Sides, method: Method) -> Answers:
    """Of all prompts at the same time, each of them whole, from real transfers whose records agree at both ends."""
    found = await asyncio.gather(*(sides.ask(length, prompt_of(length), **SAMPLING) for length in LENGTHS))
    await sides.settled()
    for length, (first, rest) in zip(LENGTHS, found, strict=True):
        assert first.failed is None and rest.failed is None, (first.failed, rest.failed)
        assert rest.end is not None and rest.end.transfer is not None
        assert (rest.end.mode, rest.end.cached_tokens) == (Mode.TRANSFERRED, length)
        assert rest.tokens[:1] == first.tokens
        moved = rest.end.transfer
        assert moved.raw_bytes == length * LAYERS * TOKEN_BYTES, "every layer once"
        goes_as_it_is = method is Method.NONE or (method in LOSSY and length <= EXACT)
        assert (moved.wire_bytes == moved.raw_bytes) == goes_as_it_is
        check_records(sides, length, moved.wire_bytes)
    return [rest.tokens for _, rest in found]


def check_records(sides: Sides, length: int, wire_bytes: int) -> None:
    """Each pair of stages that share layers moved those, and both of them computed the same digests."""
    sent, received = sides.sent(length), sides.received(length)
    assert {record["state"] for record in [*sent, *received]} == {"committed"}
    ours, theirs = (side.split.ranges(LAYERS) for side in (sides.prefill, sides.decode))
    shared = sorted(
        (max(one.start, other.start), min(one.stop, other.stop))
        for one in ours for other in theirs if max(one.start, other.start) < min(one.stop, other.stop)
    )  # fmt: skip
    assert sorted((each["first_layer"], each["first_layer"] + each["layer_count"]) for each in sent) == shared
    for field in ("bytes_raw", "bytes_wire", "chunks"):
        assert sum(each[field] for each in sent) == sum(each[field] for each in received), field
    assert sum(each["bytes_wire"] for each in received) == wire_bytes
    digests = [digest for each in received for digest in each["digest"].split(",")]
    assert sorted(each["digest"] for each in sent) == sorted(digests)
    assert all(digests)


async def test_one_stage_on_both_sides_gives_the_tokens_of_one_engine(unsplit: Unsplit) -> None:
    assert await unsplit.disaggregated(Method.NONE) == await unsplit.alone()


@pytest.mark.parametrize(("method", "prefill", "decode"), cases(Method.NONE, few=Method.LOSSLESS))
async def test_exact_methods_give_the_tokens_of_one_engine(
    folder: Path, tmp_path: Path, unsplit: Unsplit, method: Method, prefill: Split, decode: Split
) -> None:
    async with engine_pods(tmp_path, folder, prefill, decode, method=method) as sides:
        assert await answers(sides, method) == await unsplit.alone()


@pytest.mark.parametrize(("method", "prefill", "decode"), cases(Method.FP8, Method.INT8, few=Method.K8V4))
async def test_lossy_methods_give_the_tokens_that_they_give_without_stages(
    folder: Path, tmp_path: Path, unsplit: Unsplit, method: Method, prefill: Split, decode: Split
) -> None:
    async with engine_pods(tmp_path, folder, prefill, decode, method=method) as sides:
        assert await answers(sides, method) == await unsplit.disaggregated(method)


@pytest.mark.parametrize("method", LOSSY)
async def test_a_loss_is_seen_in_these_tokens(unsplit: Unsplit, method: Method) -> None:
    """Else equality of lossy answers would say nothing. Prompts that are kept exact have the exact answers."""
    exact, lossy = await unsplit.alone(), await unsplit.disaggregated(method)
    differ = [length for length, one, other in zip(LENGTHS, exact, lossy, strict=True) if one != other]
    assert differ and min(differ) > EXACT
