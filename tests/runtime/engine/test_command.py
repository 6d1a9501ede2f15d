"""The engine's process: how it ends, well and badly."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventually import eventually
from own_addresses import own_address

pytestmark = pytest.mark.slow

HOST, PORT = own_address(0), 8000


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kvferry_runtime", "engine", *arguments]


def get(path: str) -> str:
    """What the engine answers; empty if nobody does, or with an error."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{PORT}{path}", timeout=30) as response:
            return response.read().decode()
    except OSError:
        return ""


def says(process: subprocess.Popen[str], path: str, word: str) -> bool:
    assert process.poll() is None, process.communicate()[1]
    return word in get(path)


@pytest.fixture
def running(tiny: Path) -> Iterator[subprocess.Popen[str]]:
    arguments = command("--model", str(tiny), "--served-name", "tiny", "--host", HOST, "--port", str(PORT))
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: says(process, "/readyz", "ready"), "the engine is ready")
        yield process
    finally:
        process.kill()
        process.communicate()


def test_sigterm_lets_what_runs_end(running: subprocess.Popen[str]) -> None:
    process = running
    body = {"prompt": "x", "max_tokens": 300, "temperature": 0, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(f"http://{HOST}:{PORT}/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=120) as response:
        response.readline()
        process.send_signal(signal.SIGTERM)
        lines = [line for line in response.read().decode().splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert process.wait(120) == 0


def test_sigterm_does_not_wait_for_the_model(tiny: Path) -> None:
    arguments = command("--model", str(tiny), "--host", HOST, "--port", str(PORT))
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: says(process, "/healthz", "loading"), "the engine listens while it loads")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert process.stderr is not None and "engine is ready" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("what", ["no folder", "no model", "port in use", "no model given"])
def test_what_is_wrong_is_one_line_and_exit_code_2(what: str, tiny: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        arguments, word = {
            "no folder": (["--model", "/nowhere", "--port", "0"], "there is no folder /nowhere"),
            "no model": (["--model", str(tmp_path), "--port", "0"], "no Hugging Face model folder"),
            "port in use": (["--model", str(tiny), "--port", port], f"127.0.0.1:{port} is in use"),
            "no model given": ([], "give --model"),
        }[what]
        environ = {key: value for key, value in os.environ.items() if not key.startswith("KVFERRY_")}
        result = subprocess.run(
            command(*arguments), env=environ, stderr=subprocess.PIPE, text=True, timeout=300, check=False
        )
    assert result.returncode == 2
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert word in lines[0]
