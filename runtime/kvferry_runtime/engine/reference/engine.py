"""A loaded engine as HTTP sees it: prompts become requests, requests become events."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kvferry_contract.config import Role
from kvferry_contract.transfer import FIELD
from kvferry_runtime.agent.base import KvAgent
from kvferry_runtime.engine.reference.kv import BLOCK_TOKENS, KvPool
from kvferry_runtime.engine.reference.loop import EngineLoop, Refused
from kvferry_runtime.engine.reference.metrics import EngineMetrics
from kvferry_runtime.engine.reference.model import Model
from kvferry_runtime.engine.reference.openai import Api, Asked, BadRequest
from kvferry_runtime.engine.reference.request import Delta, Event, Request
from kvferry_runtime.engine.reference.sampling import Sampling
from kvferry_runtime.engine.reference.text import PromptError, TextStream, Tokenizer
from kvferry_runtime.engine.stages.ring import StageRing


class Engine:
    """codec: name of the configured method, for answers. ring: of the group of which this is the first stage.

    The parts are made by `building`.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        pool: KvPool,
        loop: EngineLoop,
        agent: KvAgent | None,
        metrics: EngineMetrics,
        role: Role,
        codec: str,
        ring: StageRing | None = None,
    ) -> None:
        self.model = model
        self.pool = pool
        self.loop = loop
        self.agent = agent
        self.metrics = metrics
        self.role = role
        self.codec = codec
        self._ring = ring
        self._encoder = tokenizer
        self._decoder = tokenizer.copy()
        self._encoding = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvferry-tokenizer")

    async def prepare(self, asked: Asked) -> tuple[list[int], int]:
        """The prompt's tokens and how many may follow, checked against what this engine can hold.

        Raises:
            BadRequest: no tokens, unknown tokens, too many, or a transfer of another role.
        """
        if asked.transfer is not None and self.agent is not None and asked.transfer.role != self.role:
            raise BadRequest(f"{FIELD}.role: {asked.transfer.role!r} was sent to a {self.role} engine")
        prompt = asked.prompt
        if asked.api is Api.COMPLETIONS and isinstance(prompt, list):
            tokens: list[int] = list(prompt)  # type: ignore[arg-type]
        else:
            # long texts take a while, and other streams go on meanwhile
            tokens = await asyncio.get_running_loop().run_in_executor(self._encoding, self._encode, prompt)
        if not tokens:
            raise BadRequest("the prompt has no tokens")
        if (largest := max(tokens)) >= self.model.vocabulary:
            raise BadRequest(f"prompt has token {largest}, the model's vocabulary ends at {self.model.vocabulary - 1}")
        room = min(self.model.max_positions, self.pool.total * BLOCK_TOKENS) - len(tokens)
        wanted = min(asked.default_tokens, max(room, 1)) if asked.max_tokens is None else asked.max_tokens
        if wanted > room:
            raise BadRequest(
                f"prompt of {len(tokens)} tokens and max_tokens {wanted} do not fit: the model takes "
                f"{self.model.max_positions} together, this engine's KV cache {self.pool.total * BLOCK_TOKENS} "
                "(--kv-blocks); ask for fewer",
                code="context_length_exceeded",
            )
        return tokens, wanted

    async def generate(self, asked: Asked, prompt: list[int], max_tokens: int) -> AsyncGenerator[Event, None]:
        """Events until the last one. Leaving early, also by cancellation, gives the request up.

        Raises:
            loop.Refused: the engine takes no requests now.
        """
        events: asyncio.Queue[Event] = asyncio.Queue()  # at most max_tokens + 1 events come
        here = asyncio.get_running_loop()

        def sink(event: Event) -> None:
            if not here.is_closed():
                here.call_soon_threadsafe(events.put_nowait, event)

        request = Request(
            prompt=prompt,
            max_tokens=max_tokens,
            sampling=Sampling(asked.temperature, asked.top_p, asked.top_k, _seed(asked)),
            end_tokens=asked.stop_token_ids | (frozenset() if asked.ignore_eos else self.model.end_tokens),
            text=TextStream(self._decoder, prompt, asked.stops),
            sink=sink,
            transfer=asked.transfer,
            arrived=time.monotonic(),
        )
        try:
            self.loop.submit(request)
        except Refused:
            self.metrics.ended("refused")
            raise
        over = False
        try:
            while not over:
                event = await events.get()
                over = not isinstance(event, Delta)
                yield event
        finally:
            if not over:
                self.loop.cancel(request)

    def state(self) -> dict[str, Any]:
        """For /v1/state."""
        agent = None if self.agent is None else self.agent.state()
        return {
            "blocks": {"total": self.pool.total, "free": self.pool.free},
            "requests": self.loop.counts(),
            "engine_age_ms": int(self.loop.age() * 1000),
            "agent": None if agent is None else dataclasses.asdict(agent),
        }

    def close(self, timeout: float) -> None:
        """Fail what is open, give the sidecar up, end the threads; at most about `timeout` seconds each."""
        self.loop.stop(timeout)
        if self.agent is not None:
            self.agent.close(timeout)
        if self._ring is not None:
            self._ring.close(timeout)
        self._encoding.shutdown(wait=False, cancel_futures=True)

    def _encode(self, prompt: Any) -> list[int]:
        try:
            return self._encoder.encode(prompt) if isinstance(prompt, str) else self._encoder.encode_chat(prompt)
        except PromptError as error:
            raise BadRequest(str(error)) from error


def _seed(asked: Asked) -> int:
    """Without a seed any will do, but both engines of a transfer must draw the same tokens."""
    if asked.seed is not None:
        return asked.seed
    if asked.transfer is not None:
        return int(asked.transfer.transfer_id[:15], 16)
    return secrets.randbits(63)
