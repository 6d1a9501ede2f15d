"""Two pods with real engines: what the pair of stand-ins is, with a model that computes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from kvferry_contract import ports, transfer
from kvferry_contract.config import Method, OverlapMode, Role
from kvferry_contract.transfer import TransferParams
from kvferry_runtime.bench import children, layouts, pair
from kvferry_runtime.bench.children import Child
from kvferry_runtime.bench.namespaces import Link
from kvferry_runtime.bench.pods import SIDECAR, Place, scratch, variables_of
from kvferry_runtime.errors import KvferryError

START_SECONDS = 120.0
SETTLE_SECONDS = 2.0
"""A sidecar closes its record a moment after decode has its tokens."""
_LOOK_SECONDS = 0.2
_DEADLINE_MS = 90_000
_FIRST_ID, _IDS = 20, 200
"""Token ids that any vocabulary has."""


@dataclass(frozen=True, slots=True)
class Served:
    """first_token: seconds until decode had one. hidden_share: of the wire time, as prefill's sidecar recorded it."""

    first_token: float
    hidden_share: float


@dataclass(frozen=True, slots=True)
class _Side:
    place: Place
    sidecar: Child
    engine: Child
    client: Child

    def url(self, port: int, path: str) -> str:
        return f"http://{self.place.address}:{port}{path}"


class ModelPair:
    """A running pair. Use `running`."""

    def __init__(self, prefill: _Side, decode: _Side) -> None:
        self._prefill = prefill
        self._decode = decode

    def serve(self, tokens: int) -> Served:
        """A prompt of random token ids, given to both engines at the same time as a router does.

        Raises:
            KvferryError: an engine refused it, or the KV did not arrive.
        """
        transfer_id = secrets.token_hex(16)
        prompt = [_FIRST_ID + secrets.randbelow(_IDS) for _ in range(tokens)]
        peer = f"{self._prefill.place.address}:{ports.SIDECAR_PEER}"
        for side, role, peers in ((self._decode, "decode", (peer,)), (self._prefill, "prefill", ())):
            params = TransferParams(transfer_id, role, peers, _DEADLINE_MS)
            body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, transfer.FIELD: params.to_dict()}
            side.client.tell("post", url=side.url(ports.ENGINE, "/v1/completions"), body=body)
        answers = [side.client.hear("post") for side in (self._decode, self._prefill)]
        for answer in answers:
            if answer["status"] != HTTPStatus.OK:
                raise KvferryError(f"an engine answered {answer['status']}: {answer['body']}")
        return Served(answers[0]["seconds"], self._record(transfer_id)["hidden_share"])

    def _record(self, transfer_id: str) -> dict[str, Any]:
        url = self._prefill.url(ports.SIDECAR_HTTP, f"/v1/transfers/{transfer_id}")
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            answer = self._prefill.client.ask("get", url=url)
            record = answer["body"]
            if answer["status"] == HTTPStatus.OK and record.get("state") == "committed":
                return dict(record)
            if time.monotonic() > deadline:
                raise KvferryError(f"the KV did not arrive: prefill's sidecar says {record}")
            time.sleep(_LOOK_SECONDS)  # the record is only to be asked for


@contextmanager
def running(model: Path, overlap: OverlapMode, link: Link | None) -> Iterator[ModelPair]:
    """Start engines and sidecars, wait until both have loaded the model; stop them at the end.

    Raises:
        KvferryError: a process did not start; the message has the end of its log.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        setup = pair.Setup(layouts.SMALL, Method.NONE, overlap)
        roles = (Role.PREFILL, Role.DECODE)
        sides = [
            _side(stack, folder, model, role, place, setup)
            for role, place in zip(roles, pair.places(link), strict=True)
        ]
        deadline = time.monotonic() + START_SECONDS
        for side in sides:
            _wait_until_ready(side, deadline)
        yield ModelPair(sides[0], sides[1])


def _side(stack: ExitStack, folder: Path, model: Path, role: Role, place: Place, setup: pair.Setup) -> _Side:
    variables = variables_of(folder, place, setup.config(role))
    commands = {
        "sidecar": SIDECAR,
        "engine": ("-m", "kvferry_runtime", "engine", "--model", str(model)),
        "client": ("-m", "kvferry_runtime.bench.web_client"),
    }
    started = {
        name: stack.enter_context(
            children.running(place.prefix, command, variables, folder / f"{role.value}-{name}.log")
        )
        for name, command in commands.items()
    }
    return _Side(place, **started)


def _wait_until_ready(side: _Side, deadline: float) -> None:
    while True:
        side.sidecar.check()
        side.engine.check()
        answers = [side.client.ask("get", url=side.url(port, "/readyz")) for port in (ports.ENGINE, ports.SIDECAR_HTTP)]
        if all(answer["status"] == HTTPStatus.OK for answer in answers):
            return
        if time.monotonic() > deadline:
            raise KvferryError(f"an engine is not ready within {START_SECONDS:g} s:\n{side.engine.tail()}")
        time.sleep(_LOOK_SECONDS)  # another process's start sets no event here
