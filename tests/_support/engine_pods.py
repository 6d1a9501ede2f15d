"""Prefill and decode as groups of engines in this process, with a real sidecar core and agent beside each stage."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reference_engines as engines
from kv_settings import transfer_config
from kvferry_contract.config import FailurePolicy, Role
from kvferry_contract.split import Split
from kvferry_contract.transfer import TransferParams, stage_transfer
from kvferry_runtime.agent.client import HostAgent
from reference_engines import Completion
from sidecar_pods import Pod, transfer_id, until, world
from stage_groups import ACTIVATION_BYTES, Group

DEADLINE_MS = 60_000
START_SECONDS = 180.0
TICK = 0.1


@dataclass(frozen=True)
class Side:
    """One role: a group of engines, and its pods by stage."""

    split: Split
    pods: Sequence[Pod]
    group: Group

    def records(self, number: int, decode_stages: int) -> list[dict[str, Any]]:
        """What the sidecars of this side tell of one prompt's transfers: of each pod, those it took part in."""
        own = [stage_transfer(transfer_id(number), stage, decode_stages) for stage in range(decode_stages)]
        return [record.to_dict() for pod in self.pods for name in own for record in pod.core.records.find(name)]


@dataclass(frozen=True)
class Sides:
    """A prefill and a decode group that exchange KV through sidecars, on a network in memory."""

    prefill: Side
    decode: Side

    async def ask(self, number: int, prompt: list[int], **fields: Any) -> tuple[Completion, Completion]:
        """What the router does: both at the same time, one transfer id. Gives prefill's answer and decode's."""
        peers = tuple(pod.peer for pod in self.prefill.pods)

        def params(role: str, peers: tuple[str, ...] = ()) -> dict[str, Any]:
            return TransferParams(transfer_id(number), role, peers, DEADLINE_MS).to_dict()

        first = {**fields, "max_tokens": 1, "kv_transfer_params": params("prefill")}
        rest = {**fields, "kv_transfer_params": params("decode", peers)}
        return await asyncio.gather(
            engines.complete(self.prefill.group.engine, prompt, **first),
            engines.complete(self.decode.group.engine, prompt, **rest),
        )

    def sent(self, number: int) -> list[dict[str, Any]]:
        """Records of one prompt at the stages of prefill, one for each pair of stages that share layers."""
        return self.prefill.records(number, self.decode.split.stages)

    def received(self, number: int) -> list[dict[str, Any]]:
        """Records of one prompt at the stages of decode, one for each of them."""
        return self.decode.records(number, self.decode.split.stages)

    async def settled(self) -> None:
        """No block, slot or transfer is held any more, at any stage."""

        def over() -> bool:
            pods = [*self.prefill.pods, *self.decode.pods]
            return (
                self.prefill.group.free
                and self.decode.group.free
                and not any(pod.core.open_transfers for pod in pods)
                and all(set(pod.slots()) <= {"slots", "free", "posted"} for pod in pods)
            )

        await until(over)


@asynccontextmanager
async def engine_pods(
    scratch: Path,
    folder: Path,
    prefill: Split,
    decode: Split,
    *,
    activation_bytes: int = ACTIVATION_BYTES,
    kv_blocks: int = engines.SETTINGS.kv_blocks or 0,
    **transfer: Any,
) -> AsyncIterator[Sides]:
    """All pods of both groups, attached. A transfer that fails ends its request, so that no answer is recomputed.

    scratch: an empty folder. folder: of the model. activation_bytes: of its largest activation.
    transfer: see `transfer_config`.
    """
    transfer = {"failure_policy": FailurePolicy.FAIL, **transfer}
    async with world(scratch) as pods, contextlib.AsyncExitStack() as stack:
        sides = {}
        for role, split, other in ((Role.PREFILL, prefill, decode), (Role.DECODE, decode, prefill)):
            own = [await pods.pod(role, attached=False, tick=TICK, **transfer) for _ in range(split.stages)]
            config = transfer_config(**transfer)
            agents = [HostAgent(pod.agent.directory, role, config) for pod in own]
            # in a thread: it loads the model, and the sidecars' loop must turn
            group = await asyncio.to_thread(
                Group, folder, split, agents, activation_bytes=activation_bytes, role=role, peer_split=other,
                transfer=config, failure_policy=config.failure_policy, kv_blocks=kv_blocks,
            )  # fmt: skip
            stack.push_async_callback(asyncio.to_thread, group.close)
            sides[role] = Side(split, own, group)
            await until(lambda agents=agents: all(agent.state().attached for agent in agents), START_SECONDS)
        yield Sides(sides[Role.PREFILL], sides[Role.DECODE])
