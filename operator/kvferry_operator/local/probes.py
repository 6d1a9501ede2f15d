"""Startup, readiness and liveness probes, as the kubelet asks them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from kvferry_operator.local import proc
from kvferry_operator.local.containers import Launch
from kvferry_operator.local.errors import Unsupported
from kvferry_operator.local.pods import Container

EAGER_SECONDS = 0.25
"""While the answer is still awaited, a probe asks this often: a cluster's periods would only delay the start here."""


@dataclass(frozen=True, slots=True)
class HttpGet:
    url: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TcpSocket:
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Exec:
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """Times in seconds, thresholds in consecutive answers."""

    action: HttpGet | TcpSocket | Exec
    initial_delay: float
    period: float
    timeout: float
    failures: int
    successes: int


@dataclass(frozen=True, slots=True)
class Tally:
    """Consecutive answers, and the verdict that they led to. Pure."""

    passing: bool
    streak: int = 0

    def count(self, passed: bool, probe: Probe) -> Tally:
        """The tally after one more answer."""
        if passed == self.passing:
            return Tally(self.passing)
        needed = probe.successes if passed else probe.failures
        if self.streak + 1 >= needed:
            return Tally(passed)
        return Tally(self.passing, self.streak + 1)


def parse(container: Container, field: str, address: str) -> Probe | None:
    """The probe under `field` (`startupProbe`, `readinessProbe`, `livenessProbe`); None when there is none.

    Raises:
        Unsupported: a kind of probe that local mode does not ask.
    """
    raw = container.spec.get(field)
    if not raw:
        return None
    return Probe(
        action=_action(raw, container, field, address),
        initial_delay=float(raw.get("initialDelaySeconds", 0)),
        period=float(raw.get("periodSeconds", 10)),
        timeout=float(raw.get("timeoutSeconds", 1)),
        failures=int(raw.get("failureThreshold", 3)),
        successes=int(raw.get("successThreshold", 1)),
    )


async def ask(probe: Probe, session: aiohttp.ClientSession, launch: Launch, run: str) -> bool:
    """One answer; no answer within the timeout is a failure."""
    try:
        async with asyncio.timeout(probe.timeout):
            match probe.action:
                case HttpGet(url, headers):
                    async with session.get(url, headers=headers, allow_redirects=False) as response:
                        return 200 <= response.status < 400
                case TcpSocket(host, port):
                    _, writer = await asyncio.open_connection(host, port)
                    writer.close()
                    return True
                case Exec(command):
                    return await _execute(command, launch, run)
    except (TimeoutError, OSError, aiohttp.ClientError):
        return False


def _action(raw: Mapping[str, Any], container: Container, field: str, address: str) -> HttpGet | TcpSocket | Exec:
    if "httpGet" in raw:
        get = raw["httpGet"]
        host, port = get.get("host", address), _port(get["port"], container, field)
        scheme = get.get("scheme", "HTTP").lower()
        headers = {header["name"]: header["value"] for header in get.get("httpHeaders", ())}
        return HttpGet(f"{scheme}://{host}:{port}{get.get('path', '/')}", headers)
    if "tcpSocket" in raw:
        return TcpSocket(raw["tcpSocket"].get("host", address), _port(raw["tcpSocket"]["port"], container, field))
    if "exec" in raw:
        return Exec(tuple(raw["exec"]["command"]))
    raise Unsupported(f"container {container.name}, {field}: local mode asks httpGet, tcpSocket and exec probes only")


def _port(port: int | str, container: Container, field: str) -> int:
    if isinstance(port, int):
        return port
    for declared in container.spec.get("ports", ()):
        if declared.get("name") == port:
            return int(declared["containerPort"])
    raise Unsupported(f"container {container.name}, {field}: no port is called {port}")


async def _execute(command: tuple[str, ...], launch: Launch, run: str) -> bool:
    child = await asyncio.create_subprocess_exec(
        *(launch.mounts.translation.text(part) for part in command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=launch.directory,
        env={**launch.environment, proc.RUN: run},
    )
    try:
        return await child.wait() == 0
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGKILL)
            await child.wait()
