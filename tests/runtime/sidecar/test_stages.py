"""Pipeline stages on both sides, unlike ones too: every byte of every layer, or a failure that is bounded and named."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from kvferry_contract.config import FailurePolicy, Method, OverlapMode, Role
from kvferry_contract.split import Split, shared_layers
from kvferry_runtime.agent.base import LoadResult
from kvferry_runtime.codec.sparse.budget import SPARSE, Budget
from kvferry_runtime.errors import Reason, TransferFailed
from kvferry_runtime.layout import KvDtype, LayerShape
from kvferry_runtime.ring.messages import LoadFailed, ManifestLayer, Sent
from scripted_agent import Prompt
from sidecar_pods import World, transfer_id, until
from stage_pods import FIRST_TOKEN, Loading, Pipeline, pipeline, prompt_layer

TOKENS = 150
PLAIN = LayerShape(2, 2, 8, KvDtype.BF16)
NARROW = LayerShape(2, 1, 8, KvDtype.BF16)
LATENT = LayerShape(1, 1, 24, KvDtype.UINT8)
MIXED = [PLAIN, PLAIN, NARROW, NARROW, PLAIN, LATENT, LATENT]
"""Stages hold other kinds of layer than each other."""


def check(lines: Pipeline, prompt: int, results: list[tuple[Loading, LoadResult]], tokens: int = TOKENS) -> None:
    """Whether decode's layer g holds what prefill's layer g held, wherever either of them is."""
    for loading, result in results:
        layout = loading.stage.layout
        for layer, found in zip(layout.layers, loading.tensors, strict=True):
            assert found.tobytes() == prompt_layer(prompt, layer, layout.shape(layer), tokens).tobytes(), layer
        assert result.raw_bytes == tokens * layout.bytes_per_token
        peers = [shared.peer for shared in shared_layers(layout.layers, lines.prefill_split)]
        from_the_last = peers[-1] == len(lines.prefill_split) - 1
        assert result.first_token == (FIRST_TOKEN if from_the_last else None)


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        (Split(1), Split(2)),
        (Split(2), Split(1)),
        (Split(2), Split(2)),
        (Split(3), Split(2)),
        (Split(2), Split(3)),
        (Split(3, (1, 5, 1)), Split(2, (6, 1))),
        (Split(2, (2, 5)), Split(2, (5, 2))),
        (Split(7), Split(1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("overlap", [OverlapMode.LAYERWISE, OverlapMode.REQUEST])
async def test_every_layer_is_the_same_at_both_ends(
    pods: World, prefill: Split, decode: Split, overlap: OverlapMode
) -> None:
    """Case 36. Two prompts at a time, layers of several kinds."""
    splits = (prefill.ranges(len(MIXED)), decode.ranges(len(MIXED)))
    async with pipeline(pods, MIXED, *splits, overlap=overlap) as lines:
        both = await asyncio.gather(*(lines.hand_over(prompt, TOKENS) for prompt in (1, 2)))
        for prompt, results in zip((1, 2), both, strict=True):
            check(lines, prompt, results)
        await lines.settled()


async def test_thirty_layers_over_four_stages(pods: World) -> None:
    """Case 36."""
    model = [PLAIN] * 30
    async with pipeline(pods, model, Split(4).ranges(30), Split(3, (10, 12, 8)).ranges(30)) as lines:
        assert [len(stage.layout.shapes) for stage in lines.prefill] == [8, 8, 7, 7]
        check(lines, 1, await lines.hand_over(1, TOKENS))
        await lines.settled()


async def test_what_a_lossy_method_brings_does_not_depend_on_the_stages(pods: World) -> None:
    """Nor do the tokens that it must leave exact."""
    found = []
    for split in (Split(1), Split(2), Split(3)):
        ranges = split.ranges(6)
        method = {"method": Method.INT8, "keep_exact_first": 16, "keep_exact_last": 16}
        async with pipeline(pods, [PLAIN] * 6, ranges, ranges, **method) as lines:
            results = await lines.hand_over(1, TOKENS)
            found.append(b"".join(tensor.tobytes() for loading, _ in results for tensor in loading.tensors))
            assert all(result.wire_bytes < result.raw_bytes for _, result in results)
    assert found[0] == found[1] == found[2]


async def test_methods_and_chunks_are_chosen_for_each_stage_of_decode(pods: World) -> None:
    auto = {"method": Method.AUTO, "auto_methods": (Method.NONE, Method.LOSSLESS), "overlap": OverlapMode.AUTO}
    async with pipeline(pods, MIXED, Split(2).ranges(7), Split(3).ranges(7), **auto) as lines:
        for prompt in range(1, 4):
            check(lines, prompt, await lines.hand_over(prompt, TOKENS))
        for stage in lines.prefill:
            for record in stage.pod.core.records.newest(100):
                layers = range(record.first_layer, record.first_layer + record.layer_count)
                assert record.bytes_raw == record.tokens * stage.layout.part(layers).bytes_per_token
        await lines.settled()


async def test_sparse_methods_keep_as_many_tokens_in_every_stage(pods: World) -> None:
    """Case 32."""
    sparse = {"method": Method.SPARSE50, "keep_exact_first": 4, "keep_exact_last": 16}
    kept = Budget(SPARSE["sparse50"], 4, 16).kept(TOKENS)
    rows = []
    for prefill, decode in ((Split(1), Split(1)), (Split(2), Split(3))):
        async with pipeline(pods, [PLAIN] * 5, prefill.ranges(5), decode.ranges(5), **sparse) as lines:
            results = await lines.hand_over(1, TOKENS, kept=kept)
            assert {result.kept_tokens for _, result in results} == {kept}
            rows.append([tensor for loading, _ in results for tensor in loading.tensors])
    assert all(np.array_equal(one, other) for one, other in zip(*rows, strict=True))


async def test_mixed_kinds_need_engines_that_know_the_whole_model(pods: World) -> None:
    splits = (Split(2).ranges(len(MIXED)), Split(1).ranges(len(MIXED)))
    async with pipeline(pods, MIXED, *splits, kinds_known=False) as lines:
        lines.offer(1, TOKENS)
        [loading] = lines.fetch(1, TOKENS)
        failed = await loading.end()
        assert isinstance(failed, TransferFailed) and failed.reason is Reason.FINGERPRINT_MISMATCH
        assert "kv.shape" in failed.message


@pytest.mark.parametrize("policy", [FailurePolicy.RECOMPUTE, FailurePolicy.RETRY])
async def test_a_stage_that_never_ends_fails_only_what_needs_it_and_in_time(pods: World, policy: FailurePolicy) -> None:
    """Case 36: decode starts only after every stage has reported."""
    seconds = 4.0
    async with pipeline(pods, [PLAIN] * 4, Split(2).ranges(4), Split(2).ranges(4), failure_policy=policy) as lines:
        check(lines, 2, await lines.hand_over(2, TOKENS))  # sessions are open: the deadline is for the rest alone
        quick, slow = lines.offer(1, TOKENS, seconds)
        first, second = lines.fetch(1, TOKENS, seconds)
        for each in (quick, slow):
            each.compute(0, TOKENS)
        quick.handle.seal(None)
        assert isinstance(await first.end(), LoadResult)
        failed = await second.end()
        assert isinstance(failed, TransferFailed) and failed.reason is Reason.DEADLINE
        assert await asyncio.to_thread(quick.done.wait) is None
        assert (await asyncio.to_thread(slow.done.wait)).reason is Reason.DEADLINE
        await lines.settled()


@pytest.mark.parametrize("policy", [FailurePolicy.RECOMPUTE, FailurePolicy.RETRY])
async def test_a_stage_that_dies_fails_every_load_that_needs_it(pods: World, policy: FailurePolicy) -> None:
    """Without waiting for the deadline; the stage that lives gets its memory back too."""
    async with pipeline(
        pods, [PLAIN] * 4, Split(2).ranges(4), Split(2, (3, 1)).ranges(4), failure_policy=policy
    ) as lines:
        alive, dead = lines.offer(1, TOKENS, 600.0)
        loading = lines.fetch(1, TOKENS, 600.0)
        for each in (alive, dead):
            each.compute(0, 64)
        await asyncio.sleep(0.1)
        await lines.prefill[1].pod.core.close()
        for each in loading:
            failed = await each.end()
            assert isinstance(failed, TransferFailed)
            assert failed.reason in (Reason.PEER_LOST, Reason.PEER_UNREACHABLE, Reason.DRAINING), failed
        assert (await asyncio.to_thread(alive.done.wait)).reason is not Reason.DEADLINE
        assert await asyncio.to_thread(dead.done.wait) is not None


@pytest.mark.parametrize(
    ("really", "named"),
    [
        ([range(3), range(2, 4)], "both have layer 2"),
        ([range(2), range(3, 4)], "no peer has layers 2 to 2"),
    ],
)
async def test_stages_that_hold_other_layers_than_their_split_says_are_refused(
    pods: World, really: list[range], named: str
) -> None:
    async with pipeline(pods, [PLAIN] * 4, really, [range(4)]) as lines:
        offered, [loading] = lines.offer(1, TOKENS), lines.fetch(1, TOKENS)
        for each in offered:
            each.compute(0, TOKENS)
            each.handle.seal(None)
        failed = await loading.end()
        assert isinstance(failed, TransferFailed) and failed.reason is Reason.DENIED
        assert named in failed.message
        for each in offered:
            assert await asyncio.to_thread(each.done.wait) is not None
        await lines.settled()


async def test_an_engine_that_seals_other_layers_than_it_offered_is_refused(pods: World) -> None:
    """Case 36: by its own sidecar, before decode could count them as another stage's."""
    first = await pods.pod(Role.PREFILL, range(2))
    second = await pods.pod(Role.PREFILL, range(2, 4))
    decode = await pods.pod(Role.DECODE, range(4))
    decode.agent.fetch(transfer_id(1), [first.peer, second.peer], TOKENS)
    second.agent.send(transfer_id(1), Prompt(TOKENS, range(2, 4)))
    first.agent.offer(transfer_id(1), Prompt(TOKENS, range(2)))
    first.agent.announce(transfer_id(1))
    first.agent.seal(transfer_id(1), layers=[ManifestLayer(layer, TOKENS, 2) for layer in (2, 3)])
    sent, loaded = await first.agent.end(transfer_id(1)), await decode.agent.end(transfer_id(1))
    assert isinstance(sent, Sent) and sent.reason == Reason.INTERNAL.value
    assert "(2, 150) was sealed, (0, 150) was offered" in sent.message
    assert isinstance(loaded, LoadFailed) and sent.message in loaded.message


async def test_an_engine_that_offers_layers_which_it_does_not_hold_is_sent_away(pods: World) -> None:
    prefill = await pods.pod(Role.PREFILL, range(2))
    prefill.agent.offer(transfer_id(1), Prompt(TOKENS, range(1, 3)))
    await until(lambda: not prefill.core.attached)
