"""The agent of engines whose KV lies on a GPU.

To the sidecar, and in all that concerns transfers, it is the agent for host memory, with another way to copy chunks.
What it adds: an event each time that the engine says a layer is final, and no `on_done` before the device has let go
of the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from kvferry_contract.config import Method, Role, TransferConfig
from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import AgentState, FetchHandle, KvAgent, KvMemory, LoadResult, SendHandle
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.agent.device.cuda import CudaDevice
from kvferry_runtime.agent.device.eviction import DeviceEviction
from kvferry_runtime.agent.device.memory import DeviceCache, DeviceKv, on_device
from kvferry_runtime.agent.device.slot_codec import DeviceSlotCodec
from kvferry_runtime.agent.device.sparse_slots import DeviceSparseSlots
from kvferry_runtime.agent.device.streams import Device
from kvferry_runtime.agent.self_check import SelfCheck
from kvferry_runtime.codec import registry
from kvferry_runtime.codec.device.registry import device_codecs
from kvferry_runtime.codec.sparse.budget import SPARSE
from kvferry_runtime.errors import TransferFailed
from kvferry_runtime.layout import KvLayout
from kvferry_runtime.trace.recorder import Recorder

USUAL_BLOCK_TOKENS = 16
"""Of most engines' caches."""

_REFUSED_SECONDS = 5.0
"""For the thread of an agent that was refused to end. Nothing is queued then, so it ends at once."""


class DeviceSend(SendHandle):
    """A send whose layers are final when the device has passed an event."""

    def __init__(self, memory: DeviceKv, send: SendHandle) -> None:
        self._memory = memory
        self._send = send

    def layer_final(self, layer: int, token_start: int, token_stop: int) -> None:
        """The kernels that make them so are queued on this thread's current stream; nothing is waited for."""
        self._memory.record_final(layer, token_stop)
        self._send.layer_final(layer, token_start, token_stop)

    def seal(self, first_token: int | None) -> None:
        self._send.seal(first_token)

    def cancel(self, reason: str) -> None:
        self._send.cancel(reason)


class DeviceAgent(KvAgent):
    """directory: the ring's folder. device: the GPU on which every tensor of the cache lies."""

    def __init__(
        self,
        directory: Path,
        role: Role,
        transfer: TransferConfig,
        device: Device,
        block_tokens: int = USUAL_BLOCK_TOKENS,
        recorder: Recorder | None = None,
        methods: frozenset[Method] = frozenset(Method),
    ) -> None:
        """block_tokens: of the engine's cache, for which kernels are compiled at the start. recorder, methods: see
        `HostAgent`.

        Raises:
            SettingsError: the engine cannot take `transfer.method`.
        """
        self.device = device
        self._codec = _slot_copier(transfer, device, block_tokens)
        try:
            self._host = HostAgent(directory, role, transfer, self._codec, methods, recorder, DeviceEviction)
        except BaseException:
            self._codec.close(_REFUSED_SECONDS)  # nobody gets an agent that could be closed
            raise

    def memory(self, cache: DeviceCache, block_ids: list[int]) -> DeviceKv:
        """One request's blocks, to be given to `offer` or `fetch`. Raises LayoutError as `DeviceKv` does."""
        return DeviceKv(cache, self.device, block_ids)

    def start(self, layout: KvLayout, fingerprint: Mapping[str, str], engine_age: Callable[[], float]) -> None:
        """See `HostAgent.start`. Compiles the kernels first, so that no request waits for that."""
        self._host.check(layout)
        self._codec.warm_up(layout)
        self._host.start(layout, fingerprint, engine_age)

    def offer(
        self,
        params: TransferParams,
        memory: KvMemory,
        tokens: int,
        on_done: Callable[[TransferFailed | None], None],
        layers: range | None = None,
    ) -> SendHandle:
        """See `HostAgent.offer`. Raises LayoutError: `memory` is not of this agent."""
        kv = on_device(memory).lent()

        def done(failure: TransferFailed | None) -> None:
            kv.in_flight.close(lambda: on_done(failure))

        return DeviceSend(kv, self._host.offer(params, kv, tokens, done, layers))

    def fetch(
        self,
        params: TransferParams,
        memory: KvMemory,
        token_start: int,
        token_stop: int,
        on_done: Callable[[LoadResult | TransferFailed], None],
    ) -> FetchHandle:
        """See `HostAgent.fetch`. What still uses the blocks must be queued on this thread's current stream.

        Raises:
            LayoutError: `memory` is not of this agent.
        """
        kv = on_device(memory)
        kv.record_writable()

        def done(outcome: LoadResult | TransferFailed) -> None:
            kv.in_flight.close(lambda: on_done(outcome))

        return self._host.fetch(params, kv, token_start, token_stop, done)

    def state(self) -> AgentState:
        """lent_slots: those on which the device works."""
        return replace(self._host.state(), lent_slots=self._codec.working)

    def close(self, timeout: float) -> None:
        """See `HostAgent.close`; then wait as long again for what is queued on the device."""
        self._host.close(timeout)
        self._codec.close(timeout)


def _slot_copier(transfer: TransferConfig, device: Device, block_tokens: int) -> DeviceSlotCodec | DeviceSparseSlots:
    sparse = SPARSE.get(transfer.method.value)
    if sparse is None:
        return _slot_codec(transfer, device, block_tokens)
    dense = _slot_codec(replace(transfer, method=Method.NONE), device, block_tokens)
    return DeviceSparseSlots(sparse, dense, block_tokens)


def _slot_codec(transfer: TransferConfig, device: Device, block_tokens: int) -> DeviceSlotCodec:
    codecs = device_codecs()
    method = codecs["none"] if transfer.method is Method.AUTO else codecs[transfer.codec]
    used = codecs.values() if transfer.method is Method.AUTO else [method]
    lossy = [codec.name for codec in used if codec.lossy]
    hosts = registry.host_codecs(lossy)  # numba takes a second and 190 MB: only for those who check what is lost
    checks = SelfCheck(transfer.max_relative_error)
    return DeviceSlotCodec(device, method, codecs["none"], codecs, hosts, transfer.integrity, checks, block_tokens)


def cuda_agent(
    directory: Path,
    role: Role,
    transfer: TransferConfig,
    device: torch.device,
    block_tokens: int = USUAL_BLOCK_TOKENS,
    recorder: Recorder | None = None,
    methods: frozenset[Method] = frozenset(Method),
) -> DeviceAgent:
    """The agent for a CUDA device. Raises SettingsError: no such device, or a method that the engine cannot take."""
    return DeviceAgent(directory, role, transfer, CudaDevice(device), block_tokens, recorder, methods)
