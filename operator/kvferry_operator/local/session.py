"""One deployment from its objects to running pods and back to nothing: what `kvferry local up` and the demo share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvferry_operator.local import deployment, host, logfiles, objects, preflight, state, volumes
from kvferry_operator.local.custody import Custody
from kvferry_operator.local.errors import CannotStart
from kvferry_operator.local.pods import Manifest
from kvferry_operator.local.supervisor import Supervisor

_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Advice:
    """What a user of this command can do. name: where another instance has the name. port: where another program has
    a port at one of the instance's addresses."""

    name: str = "stop it"
    port: str = "stop it"


@dataclass(frozen=True, slots=True)
class Options:
    """models: stands for the volume mounted at /models; None leaves a hostPath there as it is.
    logs: where logs go and stay; None keeps them with the instance, until it ends. traces: where the pods write
    timelines of their transfers when they end; None for none.
    model_path: the model's folder as its container sees it, to be checked; empty when it is downloaded.
    """

    models: Path | None
    logs: Path | None = None
    model_path: str = ""
    model_uri: str = ""
    traces: Path | None = None
    advice: Advice = Advice()
    base: Path = field(default_factory=lambda: state.root(os.environ, os.getuid()))
    memory: Path = volumes.MEMORY


@contextlib.asynccontextmanager
async def running(
    namespace: str, name: str, manifests: Sequence[Manifest], options: Options, report: Callable[[str], None]
) -> AsyncIterator[Supervisor]:
    """A supervisor whose pods are starting; they are stopped, and everything is removed, at the end.

    Raises:
        LocalError: this name is taken, the machine lacks something, or the objects ask for what only a cluster has;
            nothing is left running.
    """
    host.check_linux()
    claim = state.claim(options.base, f"{namespace}-{name}", options.advice.name, options.memory)
    custody = Custody.start(claim)
    try:
        logs = options.logs / name if options.logs else claim.folder / "logs"
        traces = (options.traces / name).absolute() if options.traces else None
        places = volumes.Places(claim.folder, claim.memory, logs.absolute(), options.models, traces)
        key = secrets.token_hex(_KEY_BYTES).encode()
        plan = deployment.plan(namespace, name, manifests, places, claim.endpoints, key, os.environ)
        if options.model_path:
            folder = plan.local_path(options.model_path)
            preflight.check_model(folder, options.model_uri)
            preflight.check_split(folder, objects.splits_of(manifests))
        await asyncio.to_thread(preflight.check, plan, options.memory, options.advice.port)
        supervisor = Supervisor(plan, claim, custody, logfiles.Logs(places.logs), report)
        try:
            _start(supervisor)
            yield supervisor
        finally:
            await supervisor.stop()
    finally:
        await custody.close()


def _start(supervisor: Supervisor) -> None:
    try:
        supervisor.start()
    except OSError as error:
        raise CannotStart(f"{error.filename or 'a file'} cannot be made: {error.strerror}") from error
