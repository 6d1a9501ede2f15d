"""The agent of engines whose KV lies in host memory."""

from __future__ import annotations

import dataclasses
import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from kvferry_contract.config import Method, Role, TransferConfig
from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import (
    AgentState,
    FetchHandle,
    KvAgent,
    KvMemory,
    LoadResult,
    ResumableMemory,
    SendHandle,
)
from kvferry_runtime.agent.eviction import Compaction, Eviction
from kvferry_runtime.agent.loads import Load
from kvferry_runtime.agent.loop import AgentLoop
from kvferry_runtime.agent.mailbox import Mailbox
from kvferry_runtime.agent.methods import Methods
from kvferry_runtime.agent.self_check import SelfCheck
from kvferry_runtime.agent.sends import Send
from kvferry_runtime.agent.slot_codec import SlotCodec
from kvferry_runtime.agent.slot_work import SlotCopier
from kvferry_runtime.agent.sparse_room import sparse_room
from kvferry_runtime.agent.sparse_slots import SparseSlots
from kvferry_runtime.agent.traced import Computed, TracedCopier, TracedSend
from kvferry_runtime.agent.transfers import OpenTransfers
from kvferry_runtime.codec import registry
from kvferry_runtime.codec.base import Codec
from kvferry_runtime.codec.none.format import NoneCodec
from kvferry_runtime.codec.sparse import budget
from kvferry_runtime.errors import CodecRefused, LayoutError, RingError, RingUnavailable, SettingsError, TransferFailed
from kvferry_runtime.layout import KvDtype, KvLayout
from kvferry_runtime.ring import packets
from kvferry_runtime.ring.messages import PROTOCOL_VERSION, Attach
from kvferry_runtime.trace.recorder import Recorder

_log = logging.getLogger(__name__)


class HostAgent(KvAgent):
    """directory: the ring's folder. All copies run in one thread of its own; it sleeps when there is none."""

    def __init__(
        self,
        directory: Path,
        role: Role,
        transfer: TransferConfig,
        codec: SlotCopier | None = None,
        methods: frozenset[Method] = frozenset(Method),
        recorder: Recorder | None = None,
        evictions: type[Eviction] = Eviction,
    ) -> None:
        """codec: in place of the one that `transfer` names. methods: that the engine can take (`kvferry_contract`'s
        `engines.METHODS`). recorder: where a timeline is asked for. evictions: of the kind of memory that is offered.

        Raises:
            SettingsError: the engine cannot take `transfer.method`.
        """
        if transfer.method not in methods:
            raise SettingsError(
                f"transfer.compression.method {transfer.method.value}: this engine cannot take it; "
                f"it can take {', '.join(sorted(methods))}"
            )
        self._directory = directory
        self._role = role
        self._transfer = transfer
        self._codec: SlotCopier = codec or _slot_copier(transfer)
        self._recorder = recorder
        if recorder is not None:
            self._codec = TracedCopier(self._codec, recorder, sees_rows=isinstance(self._codec, SlotCodec))
        self._computed = Computed()
        self._budget = budget.of(transfer)
        self._evictions = evictions
        self._lock = threading.Lock()
        self._open: set[Send | Load] = set()
        self._mailbox: Mailbox[Send | Load] = Mailbox()
        self._layout: KvLayout | None = None
        self._loop: AgentLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self, layout: KvLayout, fingerprint: Mapping[str, str], engine_age: Callable[[], float]) -> None:
        """See `KvAgent.start`.

        Raises:
            LayoutError: one token of a layer does not fit into a chunk.
            CodecRefused: the method cannot carry this layout.
            SettingsError: the fingerprint is too large.
            RingUnavailable: already started, or closed.
        """
        self.check(layout)
        methods = Methods(self._transfer, self._codec, layout)
        with self._lock:
            if self._closed or self._thread is not None:
                raise RingUnavailable("this agent was closed or already started: make another one")
            attach = Attach(
                version=PROTOCOL_VERSION,
                engine_boot_id=uuid.uuid4().hex,
                role=self._role.value,
                fingerprint={**layout.fingerprint(), **fingerprint},
                first_layer=layout.first_layer,
                layer_count=len(layout.shapes),
                total_layers=layout.total_layers,
                codecs=sorted(self._codec.codecs),
            )
            try:
                packets.check_from_agent(attach)
            except RingError as error:
                raise SettingsError(f"the engine's fingerprint cannot be sent: {error}") from error
            transfers = OpenTransfers(layout, self._codec, methods, self._open.discard)
            self._methods = methods
            self._layout = layout
            self._loop = AgentLoop(self._directory, attach, transfers, self._mailbox, engine_age)
            self._thread = threading.Thread(target=self._loop.run, name="kvferry-agent", daemon=True)
            self._thread.start()

    def offer(
        self,
        params: TransferParams,
        memory: KvMemory,
        tokens: int,
        on_done: Callable[[TransferFailed | None], None],
        layers: range | None = None,
    ) -> SendHandle:
        """See `KvAgent.offer`.

        Raises:
            RingUnavailable: not started, or closed.
            LayoutError: the prompt is empty, or some of the layers are not held here.
        """
        if tokens < 1:
            raise LayoutError(f"a prompt of {tokens} tokens cannot be offered: at least 1 is needed")
        with self._lock:
            held, methods = self._running_layout(), self._methods
            layout = held if layers is None else held.part(layers)
            goes_on = layout.layers.stop < held.layers.stop
            if self._budget is not None and self._budget.evicts(tokens):
                memory = eviction = self._evictions(self._budget, layout, memory, tokens)
                on_done = eviction.last_word(on_done)
            send = Send(
                params, memory, tokens, layout, self._transfer, methods.lossy, methods.chosen, on_done,
                self._mailbox.put, goes_on,
            )  # fmt: skip
            self._open.add(send)
            self._mailbox.put(send)
        if self._recorder is None:
            return send
        last_layer = None if goes_on else layout.layers[-1]
        return TracedSend(send, self._recorder, self._computed, params.transfer_id, tokens, last_layer)

    def fetch(
        self,
        params: TransferParams,
        memory: KvMemory,
        token_start: int,
        token_stop: int,
        on_done: Callable[[LoadResult | TransferFailed], None],
    ) -> FetchHandle:
        """See `KvAgent.fetch`.

        Raises:
            RingUnavailable: not started, or closed.
            LayoutError: the range is empty, or a sparse method is to begin within the prompt.
        """
        if not 0 <= token_start < token_stop:
            raise LayoutError(f"tokens {token_start} to {token_stop} cannot be loaded: the range is empty")
        if self._budget is not None and token_start:
            raise LayoutError(f"tokens {token_start} to {token_stop}: a sparse method brings whole prompts, from 0 on")
        with self._lock:
            layout = self._running_layout()
            resumable = layout.whole and self._budget is None
            resume = memory.resume_tokens if resumable and isinstance(memory, ResumableMemory) else 0
            if self._budget is not None and self._budget.evicts(token_stop):
                memory = Compaction(self._budget, layout, memory, token_stop)
            load = Load(params, memory, token_start, token_stop, layout, on_done, self._mailbox.put, resume)
            self._open.add(load)
            self._mailbox.put(load)
        return load

    def state(self) -> AgentState:
        transfers = self._open.copy()
        sends = sum(isinstance(transfer, Send) for transfer in transfers)
        loop = self._loop
        return AgentState(
            attached=loop is not None and loop.attached,
            open_sends=sends,
            open_loads=len(transfers) - sends,
            lent_slots=int(loop is not None and loop.copying),
        )

    def close(self, timeout: float) -> None:
        """See `KvAgent.close`. timeout: seconds to wait for a running copy."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            loop.stop()
            thread.join(timeout)
            if thread.is_alive():
                _log.error("the agent's thread is still copying after %s s", timeout)
                return
        self._mailbox.close()

    def _running_layout(self) -> KvLayout:
        if self._layout is None or self._closed:
            raise RingUnavailable("this agent is closed or was not started")
        return self._layout

    def check(self, layout: KvLayout) -> None:
        """Raises LayoutError or CodecRefused as `start` does."""
        if self._budget is not None:
            sparse_room(layout, self._transfer.chunk_bytes)
        for shape in set(layout.shapes):
            if shape.bytes_per_token > self._transfer.chunk_bytes:
                raise LayoutError(
                    f"one token of {shape} has {shape.bytes_per_token} bytes, a chunk holds "
                    f"{self._transfer.chunk_bytes}: raise transfer.overlap.chunkBytes"
                )
            if shape.dtype is KvDtype.UINT8 and self._budget is None:
                continue  # always goes with the exact codec
            refusal = self._codec.method.supports(shape)
            if refusal is not None:
                raise CodecRefused(f"transfer.compression.method {self._codec.method.name}: {refusal}")


def _slot_copier(transfer: TransferConfig) -> SlotCopier:
    sparse = budget.SPARSE.get(transfer.method.value)
    if sparse is None:
        return _slot_codec(transfer)
    return SparseSlots(sparse, _slot_codec(dataclasses.replace(transfer, method=Method.NONE)))


def _slot_codec(transfer: TransferConfig) -> SlotCodec:
    exact = NoneCodec()
    automatic = transfer.method is Method.AUTO
    wanted = [method.value for method in transfer.auto_methods] if automatic else [transfer.codec]
    # numba takes seconds and 190 MB, and each method its own compilation: only those that are sent or come in
    codecs: dict[str, Codec] = {**registry.host_codecs(wanted), exact.name: exact}
    return SlotCodec(
        method=exact if automatic else codecs[transfer.codec],
        exact=exact,
        codecs=codecs,
        integrity=transfer.integrity,
        checks=SelfCheck(transfer.max_relative_error),
    )
