"""iperf3 from one end to another: what one TCP stream carries on this link, the limit that transfers are held against.

Its JSON (`-J`) has `end.sum_received.bits_per_second`: payload that the server received.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from dataclasses import dataclass, field
from typing import Protocol

from kvferry_runtime.errors import KvferryError

PORT = 5201
_LEFT_OUT_SECONDS = 1
"""At the beginning, while TCP finds the rate: a limit must not be too low."""
_TIMEOUT_SECONDS = 30.0
_START_SECONDS = 5.0


class End(Protocol):
    """prefix: of a command that shall run there. address: where others reach it."""

    @property
    def prefix(self) -> list[str]: ...
    @property
    def address(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Loopback:
    """This machine itself."""

    prefix: list[str] = field(default_factory=list)
    address: str = "127.0.0.1"


def goodput(sender: End, receiver: End, seconds: int) -> float:
    """Bytes per second of payload, one stream, from `sender` to `receiver`.

    Raises:
        KvferryError: it did not run.
    """
    server = subprocess.Popen(  # noqa: S603
        [*receiver.prefix, "iperf3", "--server", "--one-off", "--forceflush", "--port", str(PORT)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        _wait_until_listening(server)
        client = [*sender.prefix, "iperf3", "--client", receiver.address, "--port", str(PORT), "--json"]
        times = ["--time", str(seconds), "--omit", str(_LEFT_OUT_SECONDS)]
        result = subprocess.run(  # noqa: S603
            [*client, *times], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS + seconds, check=False
        )
        return float(json.loads(result.stdout)["end"]["sum_received"]["bits_per_second"]) / 8
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        raise KvferryError(f"iperf3 gave no figure: {error}") from error
    finally:
        server.kill()
        server.communicate()


def _wait_until_listening(server: subprocess.Popen[bytes]) -> None:
    assert server.stdout is not None
    deadline, said = time.monotonic() + _START_SECONDS, b""
    while b"listening" not in said:
        readable, _, _ = select.select([server.stdout], [], [], max(0.0, deadline - time.monotonic()))
        more = os.read(server.stdout.fileno(), 4096) if readable else b""
        if not more:
            raise KvferryError(f"the iperf3 server does not listen: {said.decode(errors='replace').strip()}")
        said += more
