"""The measurement: the same contexts through every method, and what the model makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kvferry_runtime.agent.base import KvMemory
from kvferry_runtime.engine.reference.kv import RequestKv, blocks_for
from kvferry_runtime.engine.reference.model import Model
from kvferry_runtime.engine.reference.runner import Runner
from kvferry_runtime.quality import prediction
from kvferry_runtime.quality.carriage import Carriage
from kvferry_runtime.quality.drift import Drift


@dataclass(frozen=True, slots=True)
class Method:
    """scored: whether the method sees the attention of the context, or its keys alone."""

    carriage: Carriage
    scored: bool


class KeysOnly:
    """A `KvMemory` whose engine gives no scores."""

    def __init__(self, memory: KvMemory) -> None:
        self.rows = memory.rows


class Measurement:
    """Of one model. Windows are measured one after the other, and each adds to the drift of every method.

    exact: of the KV as it was computed. drifts: by the name of the method.
    """

    def __init__(
        self, model: Model, runner: Runner, methods: Mapping[str, Method], context: int, following: int
    ) -> None:
        self.exact = Drift()
        self.drifts = {name: Drift() for name in methods}
        self._model = model
        self._runner = runner
        self._methods = methods
        self._context = context
        self._following = following

    @property
    def window_tokens(self) -> int:
        """Tokens of a window: the context, those that are predicted, and one that leads from one to the other."""
        return self._context + 1 + self._following

    def add(self, window: Sequence[int]) -> None:
        """Measure every method on `window`.

        Raises:
            KvferryError: a method cannot carry the model's KV.
        """
        context, rest = window[: self._context], window[self._context :]
        source, shared = self._prefilled(context)
        truth = torch.tensor(rest[1:])
        exact = prediction.forced(self._model, source, self._context, self._context, rest[:-1])
        self.exact.predicted(exact, exact, truth)
        caches = [(source, self._context)]
        for name, method in self._methods.items():
            kv, kept = self._carried(name, method, shared)
            found = prediction.forced(self._model, kv, kept, self._context, rest[:-1])
            self.drifts[name].predicted(exact, found, truth)
            caches.append((kv, kept))
        reference, *texts = prediction.greedy(self._runner, caches, self._context, rest[0], self._following)
        for drift, text in zip(self.drifts.values(), texts, strict=True):
            drift.answered(reference, text)

    def _prefilled(self, context: Sequence[int]) -> tuple[RequestKv, KvMemory]:
        kv = self._cache(self._context)
        mass, position = kv.attention_mass(len(context)), 0
        while position < len(context):
            position, _ = self._runner.prefill(kv, context, position, _ignore, mass)
        return kv, kv.in_host_memory().share_observed(mass)

    def _carried(self, name: str, method: Method, source: KvMemory) -> tuple[RequestKv, int]:
        kv = self._cache(method.carriage.kept(self._context))
        host = kv.in_host_memory()
        memory = source if method.scored else KeysOnly(source)
        carried = method.carriage.carry(self._model.layout, memory, host.share(), self._context)
        kv.take(host)
        drift = self.drifts[name]
        drift.raw_bytes += carried.raw_bytes
        drift.wire_bytes += carried.wire_bytes
        return kv, carried.kept

    def _cache(self, context: int) -> RequestKv:
        return RequestKv(
            self._model.layout, blocks_for(context + self._following), self._model.dtype, self._model.device
        )


def _ignore(layer: int, start: int, stop: int) -> None:
    """Nobody waits for the KV of a layer: methods carry the whole context."""
