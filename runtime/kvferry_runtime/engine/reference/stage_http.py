"""HTTP of a stage behind the first one: health, readiness, metrics, state; completions are the first stage's."""

from __future__ import annotations

from aiohttp import web

from kvferry_runtime.engine.reference.answer import error_body
from kvferry_runtime.engine.reference.attachment import Attachment
from kvferry_runtime.engine.reference.http import METRICS_TYPE, STALLED_SECONDS
from kvferry_runtime.engine.reference.later_stage import LaterStage
from kvferry_runtime.engine.reference.openai import Api, Json


class StageServer:
    """The stage comes later than the server, which listens while the layers are loading."""

    def __init__(self, served_name: str, role: str) -> None:
        self._name = served_name
        self._role = role
        self._stage: LaterStage | None = None
        self._draining = False
        self._attachment = Attachment()

    def serve(self, stage: LaterStage) -> None:
        """From now on, tell of this stage."""
        self._stage = stage

    def drain(self) -> None:
        """From now on, be unready; what runs goes on."""
        self._draining = True

    def application(self) -> web.Application:
        app = web.Application()
        for api in Api:
            app.router.add_post(api.value, self._refuse)
        app.router.add_get("/v1/state", self._state)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _refuse(self, _: web.Request) -> web.Response:
        place = "a later pipeline stage" if self._stage is None else self._stage.place
        message = f"this is {place} of {self._name}: send requests to stage 0 of its group"
        return web.json_response(error_body(message, "unavailable", "unavailable"), status=503)

    async def _state(self, _: web.Request) -> web.Response:
        state: Json = {"model": self._name, "role": self._role, "draining": self._draining}
        return web.json_response(state | (self._stage.state() if self._stage else {"loading": True}))

    async def _healthz(self, _: web.Request) -> web.Response:
        """Alive while the layers are loading; afterwards as long as the stage's thread turns."""
        worker = None if self._stage is None else self._stage.worker
        if worker is not None and (not worker.alive() or worker.age() > STALLED_SECONDS):
            return web.Response(status=503, text=f"the stage's loop has not turned for {worker.age():.0f} s\n")
        return web.Response(text="ok\n" if worker else "ok, the layers are loading\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self._unready()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ready'}\n")

    def _unready(self) -> str | None:
        if self._stage is None:
            return "the layers are loading, or other stages of the group are awaited"
        if self._draining:
            return "draining"
        if not self._stage.worker.alive():
            return "the stage's loop has ended"
        if not self._stage.worker.begun:
            return "not every stage of the group is ready"
        return "not attached to the sidecar yet" if self._attachment.awaited(self._stage.agent) else None

    async def _metrics(self, _: web.Request) -> web.Response:
        text = self._stage.exposition() if self._stage else b""
        return web.Response(body=text, headers={"Content-Type": METRICS_TYPE})
