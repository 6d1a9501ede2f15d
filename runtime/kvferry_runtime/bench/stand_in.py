"""An engine's stand-in, in a process of its own: an agent and its memory, and layers that take a fixed time each.

`python -m kvferry_runtime.bench.stand_in ROLE RING_DIR CONFIG LAYOUT` reads requests from standard input, one JSON
object a line, answers each on standard output, and ends with the input. All times are CLOCK_MONOTONIC seconds, which
the two sides can compare, as they run on one machine.
"""

from __future__ import annotations

import json
import queue
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvferry_contract.config import Role, RuntimeConfig
from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import FetchHandle, LoadResult, SendHandle
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.bench.layouts import layout
from kvferry_runtime.bench.values import RequestKv
from kvferry_runtime.errors import KvferryError, TransferFailed

DEADLINE_MS = 90_000
WAIT_S = DEADLINE_MS / 1000 + 10

Loaded = tuple[float, "LoadResult | TransferFailed"]


class StandIn:
    """Requests are methods; they answer with what goes into the JSON."""

    def __init__(self, role: Role, directory: Path, config: RuntimeConfig, layout_name: str) -> None:
        self._role = role
        self._layout = layout(layout_name, config.group.split, config.group.stage)
        self._agent = HostAgent(directory, role, config.transfer)
        self._agent.start(self._layout, {"model": config.model.served_name}, lambda: 0.0)
        self._kv: RequestKv | None = None
        self._sent: queue.SimpleQueue[TransferFailed | None] = queue.SimpleQueue()
        self._loaded: queue.SimpleQueue[Loaded] = queue.SimpleQueue()
        self._open: SendHandle | FetchHandle | None = None

    def attached(self) -> bool:
        return self._agent.state().attached

    def memory(self, tokens: int) -> None:
        """Room for a prompt of so many tokens; the producer's is filled."""
        self._kv = RequestKv(self._layout, tokens)
        if self._role is Role.PREFILL:
            self._kv.fill()

    def prefill(self, transfer_id: str, tokens: int, layer_seconds: float) -> dict[str, float]:
        """Offer a prompt and go through its layers, each so long; answer when the last one is through.

        The time is slept, as a GPU would leave the processor alone.
        """
        assert self._kv is not None
        params = TransferParams(transfer_id, "prefill", (), DEADLINE_MS)
        started = time.monotonic()
        handle = self._open = self._agent.offer(params, self._kv.memory(), tokens, self._sent.put)
        for index, layer in enumerate(self._layout.layers, start=1):
            time.sleep(max(0.0, started + index * layer_seconds - time.monotonic()))
            handle.layer_final(layer, 0, tokens)
        finished = time.monotonic()
        handle.seal(None)
        return {"started": started, "finished": finished}

    def sent(self) -> None:
        """Wait for the end of the prompt that was offered last. Raises TransferFailed."""
        outcome = self._sent.get(timeout=WAIT_S)
        if outcome is not None:
            raise outcome

    def fetch(self, transfer_id: str, tokens: int, peer: str) -> float:
        """Ask for a prompt's KV and do not wait for it; the time of asking."""
        assert self._kv is not None
        params = TransferParams(transfer_id, "decode", (peer,), DEADLINE_MS)
        asked = time.monotonic()
        self._open = self._agent.fetch(params, self._kv.memory(), 0, tokens, _stopping_the_clock(self._loaded))
        return asked

    def loaded(self) -> dict[str, float]:
        """Wait for what was asked for last. Raises TransferFailed."""
        finished, outcome = self._loaded.get(timeout=WAIT_S)
        if isinstance(outcome, TransferFailed):
            raise outcome
        return {"finished": finished, "raw_bytes": outcome.raw_bytes, "wire_bytes": outcome.wire_bytes}

    def clear(self) -> None:
        assert self._kv is not None
        self._kv.clear()

    def worst_error(self, tokens: int) -> float:
        assert self._kv is not None
        return self._kv.worst_error(tokens)

    def close(self) -> None:
        self._agent.close(10.0)


def _stopping_the_clock(loaded: queue.SimpleQueue[Loaded]) -> Callable[[LoadResult | TransferFailed], None]:
    def on_done(outcome: LoadResult | TransferFailed) -> None:
        loaded.put((time.monotonic(), outcome))

    return on_done


def main(arguments: list[str]) -> None:
    role, directory, config, layout_name = arguments
    settings = RuntimeConfig.from_json(Path(config).read_text())
    stand_in = StandIn(Role(role), Path(directory), settings, layout_name)
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"result": getattr(stand_in, request.pop("op"))(**request)}
        except (KvferryError, queue.Empty) as error:
            answer = {"error": str(error) or type(error).__name__}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    stand_in.close()


if __name__ == "__main__":
    main(sys.argv[1:])
