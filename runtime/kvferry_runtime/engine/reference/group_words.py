"""What stages tell each other, in the words of the engine and of the agent. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import LoadResult
from kvferry_runtime.engine.reference.sampling import Sampling
from kvferry_runtime.engine.stages import messages as group
from kvferry_runtime.errors import Reason, TransferFailed


def short(text: str) -> str:
    """As much of a text as a command takes."""
    return text[: group.MAX_TEXT]


def long(text: str) -> str:
    """As much of a text as a report takes."""
    return text[: group.MAX_LONG_TEXT]


def sampling_sent(sampling: Sampling) -> group.Sampling:
    return group.Sampling(sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed)


def sampling_of(sent: group.Sampling) -> Sampling:
    return Sampling(sent.temperature, sent.top_p, sent.top_k, sent.seed)


def transfer_sent(params: TransferParams) -> group.Transfer:
    return group.Transfer(
        transfer_id=params.transfer_id, role=params.role, peers=list(params.peers), deadline_ms=params.deadline_ms
    )


def transfer_of(sent: group.Transfer) -> TransferParams:
    return TransferParams(sent.transfer_id, sent.role, tuple(sent.peers), sent.deadline_ms)


def loaded(stage: int, request: int, outcome: LoadResult | TransferFailed) -> group.Loaded:
    """A stage's last word on loading."""
    if isinstance(outcome, TransferFailed):
        return group.Loaded(stage=stage, request=request, result=None, failure=_failure(outcome))
    load = group.Load(
        outcome.first_token, outcome.chunks, outcome.raw_bytes, outcome.wire_bytes, outcome.kept_tokens, outcome.tokens
    )
    return group.Loaded(stage=stage, request=request, result=load, failure=None)


def sent(stage: int, request: int, failure: TransferFailed | None) -> group.Sent:
    """A stage's last word on an offer."""
    return group.Sent(stage=stage, request=request, failure=None if failure is None else _failure(failure))


def outcome_of_loads(words: Sequence[group.Loaded]) -> LoadResult | TransferFailed:
    """What became of a load at all stages. words: of every stage, in the order in which they came.

    The first failure counts: those after it may be cancellations that followed from it. The last stage of decode always
    loads from the last one of prefill, which alone knows the first token.
    """
    if (failure := _first_failure(words)) is not None:
        return failure
    by_stage = sorted(words, key=lambda word: word.stage)
    results = [word.result for word in by_stage if word.result is not None]
    last = results[-1]
    if any(result.kept_tokens != last.kept_tokens for result in results):
        kept = [result.kept_tokens for result in results]
        return TransferFailed(Reason.INTERNAL, f"the stages kept different numbers of tokens of the prompt: {kept}")
    return LoadResult(
        first_token=last.first_token,
        chunks=sum(result.chunks for result in results),
        raw_bytes=sum(result.raw_bytes for result in results),
        wire_bytes=sum(result.wire_bytes for result in results),
        kept_tokens=last.kept_tokens,
        tokens=last.tokens,
    )


def outcome_of_sends(words: Sequence[group.Sent]) -> TransferFailed | None:
    """What became of an offer at all stages: the first failure, None if decode has everything. words: as above."""
    return _first_failure(words)


def _first_failure(words: Sequence[group.Loaded] | Sequence[group.Sent]) -> TransferFailed | None:
    failed = next(((word.stage, word.failure) for word in words if word.failure is not None), None)
    if failed is None:
        return None
    stage, failure = failed
    where = f"stage {stage}: " if len(words) > 1 else ""
    return TransferFailed(Reason(failure.reason), where + failure.message)


def _failure(failure: TransferFailed) -> group.Failure:
    return group.Failure(reason=failure.reason.value, message=long(failure.message))
