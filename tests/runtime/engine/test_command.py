"""The engine's process: how it ends, well and badly."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kvferry_runtime", "engine", *arguments]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
        return response.read().decode()


def wait_ready(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, process.communicate()[1]
        try:
            get(port, "/readyz")
            return
        except OSError:
            assert time.monotonic() < deadline, "not ready in time"
            time.sleep(0.1)


@pytest.fixture
def running(tiny: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    port = free_port()
    arguments = command("--model", str(tiny), "--served-name", "tiny", "--port", str(port))
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    try:
        wait_ready(process, port)
        yield process, port
    finally:
        process.kill()
        process.communicate()


def test_sigterm_lets_what_runs_end(running: tuple[subprocess.Popen[str], int]) -> None:
    process, port = running
    body = {"prompt": "x", "max_tokens": 300, "temperature": 0, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as response:
        response.readline()
        process.send_signal(signal.SIGTERM)
        lines = [line for line in response.read().decode().splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert process.wait(20) == 0


def test_sigterm_does_not_wait_for_the_model(tiny: Path) -> None:
    port = free_port()
    arguments = command("--model", str(tiny), "--port", str(port))
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None and time.monotonic() < deadline
            try:
                assert "loading" in get(port, "/healthz")
                break
            except OSError:
                time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
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
            command(*arguments), env=environ, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert result.returncode == 2
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert word in lines[0]
