"""`kv_transfer_params`: how the router tells an engine which transfer a request belongs to.

It rides in the body of a completion request, under the name that vLLM uses. Only the router writes it; what a
client sends under this name is dropped by the router. The key of a transfer is `transfer_id` alone: request ids of
the engines may differ freely.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

FIELD = "kv_transfer_params"
"""Key in the request body."""

RESULT_FIELD = "kvferry"
"""Key under which engines and router put what happened into the last chunk (or the body) of an answer."""

MAX_PEERS = 64
MAX_HOST = 250
"""Characters of a peer's host, which fits with its port into the 256 that messages take. Pods' names have far less."""
MAX_DEADLINE_MS = 3_600_000
_TRANSFER_ID = re.compile(r"[0-9a-f]{32}")
_PEER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})")


class TransferParamsError(ValueError):
    """`kv_transfer_params` is not what the router writes."""


@dataclass(frozen=True, slots=True)
class TransferParams:
    """One hand-over of a prompt's KV cache.

    transfer_id: 32 lower-case hexadecimal digits, never reused.
    role: "prefill" (compute, offer the KV, answer with the first token) or "decode" (fetch, then go on).
    peers: decode only: `host:port` of the sidecar of each prefill stage, by stage.
    deadline_ms: time from receipt after which the transfer has failed.
    """

    transfer_id: str
    role: str
    peers: tuple[str, ...]
    deadline_ms: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "transfer_id": self.transfer_id,
            "role": self.role,
            "peers": list(self.peers),
            "deadline_ms": self.deadline_ms,
        }

    @classmethod
    def from_dict(cls, raw: object) -> TransferParams:
        """Read and check.

        Raises:
            TransferParamsError: names the key, the value and what is allowed.
        """
        if not isinstance(raw, dict):
            raise TransferParamsError(f"{FIELD}: expected an object, found {type(raw).__name__}")
        unknown = sorted(map(str, set(raw) - {"transfer_id", "role", "peers", "deadline_ms"}))
        if unknown:
            raise TransferParamsError(f"{FIELD}: unknown keys {unknown}")
        transfer_id, role = raw.get("transfer_id"), raw.get("role")
        peers, deadline_ms = raw.get("peers", []), raw.get("deadline_ms")
        if not isinstance(transfer_id, str) or not _TRANSFER_ID.fullmatch(transfer_id):
            raise TransferParamsError(f"{FIELD}.transfer_id: {transfer_id!r} is not 32 hexadecimal digits")
        if role not in ("prefill", "decode"):
            raise TransferParamsError(f"{FIELD}.role: {role!r} is not prefill or decode")
        if not isinstance(peers, list) or len(peers) > MAX_PEERS or not all(_is_peer(peer) for peer in peers):
            raise TransferParamsError(f"{FIELD}.peers: not a list of at most {MAX_PEERS} host:port")
        if (role == "decode") != bool(peers):
            raise TransferParamsError(f"{FIELD}.peers: needed for decode, and for decode alone")
        if isinstance(deadline_ms, bool) or not isinstance(deadline_ms, int) or not 0 < deadline_ms <= MAX_DEADLINE_MS:
            raise TransferParamsError(f"{FIELD}.deadline_ms: {deadline_ms!r} is not within 1 to {MAX_DEADLINE_MS}")
        return cls(transfer_id=transfer_id, role=str(role), peers=tuple(peers), deadline_ms=deadline_ms)


def stage_transfer(transfer_id: str, decode_stage: int, decode_stages: int) -> str:
    """Id under which one stage of decode loads its layers of a transfer; of one stage it is the transfer's own.

    Each stage of decode loads by itself, from every stage of prefill that holds layers of it, and ids are never shared.
    Prefill derives the same ids to offer each stage of decode what it holds for it.
    """
    if decode_stages == 1:
        return transfer_id
    return hashlib.blake2b(f"{transfer_id}/{decode_stage}/{decode_stages}".encode(), digest_size=16).hexdigest()


def _is_peer(text: object) -> bool:
    match = _PEER.fullmatch(text) if isinstance(text, str) else None
    return match is not None and len(match[1]) <= MAX_HOST and 0 < int(match[2]) < 65536
