"""`kvferry local up` in the foreground: start, show, stop at the first signal, hurry at the second."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import TextIO

from kvferry_operator.local.request import Request
from kvferry_operator.local.session import running
from kvferry_operator.local.signals import until_signal
from kvferry_operator.local.supervisor import Supervisor
from kvferry_operator.local.view import View


async def up(asked: Request, output: TextIO) -> None:
    """Serve until a signal; all is stopped and removed when this returns.

    Raises:
        LocalError: it cannot start, or a container refused its settings.
    """
    view = View(output)
    kills: list[Callable[[], None]] = []

    def hurry() -> None:
        for kill in kills:
            kill()

    await until_signal(_serve(asked, view, kills), hurry, view.say)
    view.say("stopped; nothing is left running")


async def _serve(asked: Request, view: View, kills: list[Callable[[], None]]) -> None:
    model = asked.model
    async with running(model.namespace, model.name, asked.manifests, asked.options, view.say) as supervisor:
        kills.append(supervisor.kill)
        view.say(f"{model.name}: starting (pid {os.getpid()})")
        view.say(f"logs: {supervisor.record.logs}")
        shown = asyncio.create_task(view.run(supervisor))
        try:
            await supervisor.wait_ready()
            view.say(_invitation(asked, supervisor))
            await supervisor.wait_failed()
        finally:
            shown.cancel()
            await asyncio.gather(shown, return_exceptions=True)


def _invitation(asked: Request, supervisor: Supervisor) -> str:
    url = supervisor.record.url
    if not url:
        return f"{asked.model.name} is ready; it has no router (spec.router.replicas is 0)"
    body = {"model": asked.served_name, "prompt": "The ferry crosses the river", "max_tokens": 32}
    return (
        f"{asked.model.name} is ready: send requests to {url}, for example\n"
        f"  curl {url}/v1/completions -H 'Content-Type: application/json' -d '{json.dumps(body)}'\n"
        f"stop it with Ctrl-C or `kvferry local down {asked.model.name}`"
    )
