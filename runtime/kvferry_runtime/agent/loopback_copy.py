"""What a `Loopback` does in place of a network: rows from engines' memory into an engine's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvferry_runtime.agent.base import KvMemory, LoadResult, ResumableMemory
from kvferry_runtime.agent.eviction import Compaction, Eviction
from kvferry_runtime.codec.sparse.budget import Budget
from kvferry_runtime.layout import KvLayout


@dataclass(frozen=True, slots=True)
class Source:
    """What one pod offers of a prompt of `tokens` tokens. budget: of a sparse method, None for all others."""

    layout: KvLayout
    memory: KvMemory
    tokens: int
    first_token: int | None
    budget: Budget | None


@dataclass(frozen=True, slots=True)
class Sink:
    """Where a pod wants this range of a prompt, in every layer that it holds."""

    layout: KvLayout
    memory: KvMemory
    token_start: int
    token_stop: int


def copy(sources: Sequence[Source], sink: Sink, slow: bool) -> LoadResult:
    """Fill the sink from sources that together have each of its layers once.

    slow: bring a memory that can go on from there only the first `resume_tokens`, where no pod is a stage.

    Raises:
        KvferryError: the memory is not as announced.
    """
    first_token = next((source.first_token for source in sources if source.first_token is not None), None)
    budget = sources[0].budget
    if budget is not None and budget.evicts(sources[0].tokens):
        return _copy_kept(budget, sources, sink, first_token)
    return _copy_all(sources, sink, first_token, slow)


def _copy_all(sources: Sequence[Source], sink: Sink, first_token: int | None, slow: bool) -> LoadResult:
    raw_bytes = resume = 0
    if slow and sink.layout.whole and len(sources) == 1 and isinstance(sink.memory, ResumableMemory):
        resume = sink.memory.resume_tokens
    shorter = 0 < resume < sink.token_stop
    stop = resume if shorter else sink.token_stop
    for source in sources:
        for layer in source.layout.layers:
            for part in range(sink.layout.shape(layer).parts):
                span = (layer, part, sink.token_start, stop)
                rows = np.concatenate(source.memory.rows(*span))
                position = 0
                for target in sink.memory.rows(*span):
                    target[:] = rows[position : position + len(target)]
                    position += len(target)
                    raw_bytes += target.nbytes
    tokens = stop if shorter else None
    return LoadResult(first_token, len(sink.layout.shapes), raw_bytes, raw_bytes, tokens=tokens)


def _copy_kept(budget: Budget, sources: Sequence[Source], sink: Sink, first_token: int | None) -> LoadResult:
    compaction = Compaction(budget, sink.layout, sink.memory, sink.token_stop)
    wire_bytes = raw_bytes = 0
    for source in sources:
        eviction = Eviction(budget, source.layout, source.memory, source.tokens)
        slot = np.empty(2 * source.tokens * source.layout.bytes_per_token, np.uint8)
        for layer in source.layout.layers:
            span = (range(layer, layer + 1), sink.token_start, sink.token_stop)
            length = eviction.encode(*span, slot)
            compaction.decode(slot[:length], *span)
            wire_bytes += length
        raw_bytes += source.tokens * source.layout.bytes_per_token
    compaction.check()
    return LoadResult(first_token, len(sink.layout.shapes), raw_bytes, wire_bytes, compaction.kept)
