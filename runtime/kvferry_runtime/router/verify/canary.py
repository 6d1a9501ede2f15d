"""One canary: a short prompt of our own through both engines, like a client's, and then the sidecars' records of it."""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid

import msgspec

from kvferry_contract.transfer import RESULT_FIELD, TransferParams, stage_transfer
from kvferry_runtime.errors import Reason
from kvferry_runtime.router.answer import Identity
from kvferry_runtime.router.choice import AnswerError, Json, TokenMismatch
from kvferry_runtime.router.exchange import Attempt, Exchange, PrefillFailed, Transfer
from kvferry_runtime.router.openai import Api, parse
from kvferry_runtime.router.pairing import Pair
from kvferry_runtime.router.settings import RouterSettings
from kvferry_runtime.router.upstream import Refused, Upstream, UpstreamError
from kvferry_runtime.router.verify import sidecars
from kvferry_runtime.router.verify.evidence import Evidence, StageTransfer, sources
from kvferry_runtime.router.verify.sidecars import Record
from kvferry_runtime.router.verify.verdict import Verdict, failed, judge, reason_of, undecided

HEADER = "x-kvferry-canary"
"""On the requests of a canary, so that an engine can tell them from a client's."""
RECORD_SECONDS = 3.0
"""The sender hears of the receiver's commitment a moment after the answer; records are waited for no longer."""
_RECORD_PAUSE_SECONDS = 0.05
_WORDS = "one two three four five six seven eight nine ten eleven twelve"
_REPEATS = 12
"""Enough tokens that a codec, which leaves the first and last ones exact, has something to do."""


class Canaries:
    """Sends canaries to pairs of one router's groups. Holds no state beyond one canary."""

    def __init__(self, settings: RouterSettings, upstream: Upstream) -> None:
        self._settings = settings
        self._upstream = upstream

    async def send(self, pair: Pair) -> Verdict:
        """What came of one canary; within the deadlines of a client's request."""
        transfer_id = uuid.uuid4().hex
        exchange = Exchange(
            self._upstream,
            parse(Api.COMPLETIONS, _body(), self._settings.served_name),
            self._attempt(pair, transfer_id),
        )
        limit = self._settings.silence_seconds
        try:
            async with asyncio.timeout(limit):
                answer = await exchange.whole()
        except TimeoutError:
            return undecided(f"no answer within {limit:g} s")
        except PrefillFailed as error:
            return undecided(f"prefill: {error}")
        except UpstreamError as error:
            return _engine_failed(error)
        except TokenMismatch as error:
            return failed(Reason.INTERNAL, str(error))
        except AnswerError as error:
            return undecided(f"engine {pair.decode.engine}: {error}")
        return judge(await self._evidence(pair, transfer_id, answer[RESULT_FIELD]), self._settings.transport)

    async def _evidence(self, pair: Pair, transfer_id: str, result: Json) -> Evidence:
        """The records once all ends have ended, or as they are when `RECORD_SECONDS` have passed."""
        deadline = asyncio.get_running_loop().time() + RECORD_SECONDS
        stages = len(pair.decode.sidecar_http)
        while True:
            unheard: list[str] = []
            transfers = await asyncio.gather(
                *(
                    self._transfer(pair, address, stage_transfer(transfer_id, stage, stages), unheard)
                    for stage, address in enumerate(pair.decode.sidecar_http)
                )
            )
            evidence = Evidence(
                transfer_id=transfer_id,
                mode=str(result.get("mode") or ""),
                why=str(result.get("reason") or ""),
                transfers=tuple(transfers),
                prefill_stages=len(pair.prefill.sidecars),
                unheard=tuple(dict.fromkeys(unheard)),
            )
            if evidence.settled or asyncio.get_running_loop().time() >= deadline:
                return evidence
            await asyncio.sleep(_RECORD_PAUSE_SECONDS)  # a sidecar tells nobody of an end

    async def _transfer(self, pair: Pair, decode: str, transfer_id: str, unheard: list[str]) -> StageTransfer:
        """What one stage of decode, whose sidecar is at `decode`, loaded, and what it loaded from recorded of it."""
        received = await self._record(decode, transfer_id, "receive", unheard)
        stages, strangers = sources(received, pair.prefill.sidecars)
        asked = (self._record(pair.prefill.sidecar_http[stage], transfer_id, "send", unheard) for stage in stages)
        sent = await asyncio.gather(*asked)
        return StageTransfer(received, dict(zip(stages, sent, strict=True)), strangers)

    async def _record(self, address: str, transfer_id: str, direction: str, unheard: list[str]) -> Record | None:
        try:
            return await sidecars.record(self._upstream, address, transfer_id, direction)
        except UpstreamError:
            unheard.append(address)
            return None

    def _attempt(self, pair: Pair, transfer_id: str) -> Attempt:
        deadline_ms = self._settings.transfer_deadline_ms
        return Attempt(
            decode=pair.decode,
            transfer=Transfer(
                prefill=pair.prefill,
                prefill_params=TransferParams(transfer_id, "prefill", (), deadline_ms),
                decode_params=TransferParams(transfer_id, "decode", pair.prefill.sidecars, deadline_ms),
            ),
            engine_headers={HEADER: "1"},
            client_headers={},
            identity=Identity(
                answer_id=f"cmpl-{transfer_id}",
                created=int(time.time()),
                model=self._settings.served_name,
                disaggregated=True,
                result={},
            ),
        )


def _body() -> bytes:
    """The nonce comes first, so that no engine has any part of the prompt in its prefix cache."""
    prompt = f"{secrets.token_hex(8)} " + " ".join([_WORDS] * _REPEATS)
    return msgspec.json.encode({"prompt": prompt, "max_tokens": 2, "temperature": 0})


def _engine_failed(error: UpstreamError) -> Verdict:
    """An engine's error speaks of the transfer only where the failure policy made it one."""
    if isinstance(error, Refused) and error.transfer_failed:
        return failed(reason_of(str((error.detail or {}).get("code"))), str(error))
    return undecided(str(error))
