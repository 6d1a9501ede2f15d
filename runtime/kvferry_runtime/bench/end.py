"""One end of the measured chain, in a process of its own: an agent and its memory, told by JSON lines what to do.

`python -m kvferry_runtime.bench.end ROLE RING_DIR CONFIG slots|method` reads requests from standard input, one object
a line, answers each on standard output, and ends with the input.
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
from kvferry_runtime.agent.base import LoadResult
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.bench.cache import LAYOUT, BenchCache
from kvferry_runtime.bench.stamps import stamping
from kvferry_runtime.errors import KvferryError, TransferFailed

DEADLINE_MS = 60_000
WAIT_S = DEADLINE_MS / 1000 + 10


class End:
    """Requests are methods; they answer with what goes into the JSON."""

    def __init__(self, role: Role, directory: Path, config: RuntimeConfig, stamps: bool) -> None:
        self._role = role
        self._agent = HostAgent(directory, role, config.transfer, stamping() if stamps else None)
        self._agent.start(LAYOUT, {"model": config.model.served_name}, lambda: 0.0)
        self._cache: BenchCache | None = None
        self._sent: queue.Queue[TransferFailed | None] = queue.Queue()

    def attached(self) -> bool:
        return self._agent.state().attached

    def memory(self, tokens: int, paged: bool) -> None:
        """A cache for up to so many tokens; the producer's is filled."""
        self._cache = BenchCache(tokens, paged, seed=1 if self._role is Role.PREFILL else 2)
        if self._role is Role.PREFILL:
            self._cache.fill(tokens)

    def offer(self, ids: list[str], tokens: int) -> None:
        """Offer the same tokens under each id, all of them final."""
        assert self._cache is not None
        for transfer_id in ids:
            params = TransferParams(transfer_id, "prefill", (), DEADLINE_MS)
            handle = self._agent.offer(params, self._cache.memory(), tokens, self._sent.put)
            for layer in LAYOUT.layers:
                handle.layer_final(layer, 0, tokens)
            handle.seal(None)

    def sent(self, count: int) -> None:
        """Wait until so many offers are over. Raises TransferFailed."""
        for _ in range(count):
            failure = self._sent.get(timeout=WAIT_S)
            if failure is not None:
                raise failure

    def fetch(self, ids: list[str], tokens: int, peer: str) -> dict[str, Any]:
        """Load one after the other. Returns seconds and bytes of each."""
        assert self._cache is not None
        memory = self._cache.memory()
        seconds, wire_bytes = [], 0
        for transfer_id in ids:
            params = TransferParams(transfer_id, "decode", (peer,), DEADLINE_MS)
            done: queue.SimpleQueue[tuple[float, LoadResult | TransferFailed]] = queue.SimpleQueue()
            started = time.perf_counter()
            self._agent.fetch(params, memory, 0, tokens, _stopping_the_clock(done))
            finished, outcome = done.get(timeout=WAIT_S)
            if isinstance(outcome, TransferFailed):
                raise outcome
            seconds.append(finished - started)
            wire_bytes = outcome.wire_bytes
        return {"seconds": seconds, "wire_bytes": wire_bytes}

    def clear(self) -> None:
        assert self._cache is not None
        self._cache.clear()

    def worst_error(self, tokens: int) -> float:
        assert self._cache is not None
        return self._cache.worst_error(tokens)

    def close(self) -> None:
        self._agent.close(10.0)


def _stopping_the_clock(
    done: queue.SimpleQueue[tuple[float, LoadResult | TransferFailed]],
) -> Callable[[LoadResult | TransferFailed], None]:
    def on_done(outcome: LoadResult | TransferFailed) -> None:
        done.put((time.perf_counter(), outcome))

    return on_done


def main(arguments: list[str]) -> None:
    role, directory, config, mode = arguments
    end = End(Role(role), Path(directory), RuntimeConfig.from_json(Path(config).read_text()), mode == "slots")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": getattr(end, request.pop("op"))(**request)}
        except (KvferryError, queue.Empty) as error:
            answer = {"error": str(error) or type(error).__name__}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    end.close()


if __name__ == "__main__":
    main(sys.argv[1:])
