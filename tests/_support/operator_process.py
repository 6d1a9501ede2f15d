"""The operator as a process of its own, as it runs in a cluster: started, asked, killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from eventually import eventually

START_SECONDS = 240.0
STOP_SECONDS = 120.0
COMMAND = (sys.executable, "-m", "kvferry_operator.serve")


class OperatorProcess:
    """One that runs. lines: of its log so far, as they were written."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def port(self) -> int:
        """Of health and metrics."""
        found = eventually(
            lambda: [line["port"] for line in self.lines if "port" in line] or self.exit_code,
            "it says which port it listens on",
            START_SECONDS,
        )
        assert isinstance(found, list), f"the operator ended with {self.exit_code}: {self.lines}"
        return int(found[0])

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def get(self, path: str) -> tuple[int, str]:
        """Status and text."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except urllib.error.URLError as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            raise AssertionError(f"no answer ({error}); exit code {self.exit_code}; log: {self.lines}") from error

    def metric(self, name: str, /, **labels: str) -> float:
        """Sum of the samples with these labels."""
        families = text_string_to_metric_families(self.get("/metrics")[1])
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        assert samples, f"no metric {name}"
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def wait_ready(self) -> None:
        eventually(lambda: self.exit_code is not None or self.get("/readyz")[0] == 200, "it is ready", START_SECONDS)
        assert self.exit_code is None, f"the operator ended with {self.exit_code}: {self.lines}"

    def wait_end(self, seconds: float = STOP_SECONDS) -> int:
        """Its exit code; minus the number of the signal that killed it."""
        code = self._process.wait(seconds)
        self._reader.join(STOP_SECONDS)
        return code

    def stop(self) -> int:
        """As a pod is ended."""
        self.ask_to_stop()
        return self.wait_end()

    def ask_to_stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def pause(self) -> None:
        """As a node that is too busy does to it."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self.wait_end()

    def close(self) -> None:
        if self.exit_code is None:
            self.kill()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with contextlib.suppress(ValueError):  # closed under us
            for line in self._process.stderr:
                try:
                    self.lines.append(json.loads(line))
                except json.JSONDecodeError:
                    self.lines.append({"msg": line.rstrip()})


@contextlib.contextmanager
def running(
    kubeconfig: Path, *namespaces: str, flags: Sequence[str] = (), command: Sequence[str] = COMMAND
) -> Iterator[OperatorProcess]:
    """An operator for some namespaces, or for all; it is killed at the end if it still runs."""
    arguments = [
        *command,
        f"--kubeconfig={kubeconfig}",
        *(f"--namespace={name}" for name in namespaces),
        "--http-port=0",
        *flags,
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVFERRY_")}
    started = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment)
    operator = OperatorProcess(started)
    try:
        yield operator
    finally:
        operator.close()
