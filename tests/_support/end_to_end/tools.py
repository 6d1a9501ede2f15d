"""kubectl and helm, run to their end."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from end_to_end.errors import StepFailed

_SECONDS = 300.0
_HELM_SECONDS = 900


class Tools:
    """kubectl: the beginning of its command line. kubeconfig: of an administrator."""

    def __init__(self, kubeconfig: Path, kubectl: Sequence[str], helm: Path) -> None:
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self._kubectl = tuple(kubectl)
        self._helm = str(helm)

    def kubectl(self, *arguments: str, stdin: str = "", seconds: float = _SECONDS) -> str:
        """What kubectl prints.

        Raises:
            StepFailed: it failed, with what it said, or took longer than `seconds`.
        """
        return self._run([*self._kubectl, *arguments], stdin, seconds)

    def helm(self, *arguments: str) -> str:
        """What helm prints; it waits for what it makes or removes.

        Raises:
            StepFailed: it failed, with what it said.
        """
        return self._run([self._helm, *arguments, f"--timeout={_HELM_SECONDS}s"], "", _HELM_SECONDS + 10.0)

    def get(self, *arguments: str) -> dict[str, Any]:
        """An object or a list as kubectl gets it."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "--output=json"))
        return found

    def _run(self, command: Sequence[str], stdin: str, seconds: float) -> str:
        try:
            done = subprocess.run(
                command,
                env=self._environment,
                input=stdin,
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            raise StepFailed(f"{' '.join(command)} took longer than {seconds:.0f} s") from None
        if done.returncode != 0:
            raise StepFailed(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout
