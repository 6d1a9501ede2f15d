"""`kvferry local` as a user types it: up in one terminal, ps, logs and down in another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import local_objects as objects
from kvferry_operator.api.parse import parse
from kvferry_operator.cli.main import main
from kvferry_operator.local import request, state
from kvferry_operator.local.errors import CannotStart
from kvferry_operator.local.record import Record
from local_objects import INSTANCE

# `up` takes the rendered objects; these have fake containers, the rest is the command's own way
_UP = """
import asyncio, os, sys
from pathlib import Path
import local_objects
from kvferry_operator.local.request import Request
from kvferry_operator.local.session import Options
from kvferry_operator.local.up import up
from the_model import MODEL
options = Options(models=None, memory=Path(sys.argv[1]))
asyncio.run(up(Request(MODEL, tuple(local_objects.deployment()), options), sys.stdout))
"""
_RAW = {
    "apiVersion": "kvferry.io/v1alpha1",
    "kind": "DisaggregatedModel",
    "metadata": {"name": INSTANCE},
    "spec": {
        "model": {"uri": "file:///models/x", "cache": {"type": "hostPath", "path": "/var/lib/models"}},
        "engine": {"type": "reference"},
        "prefill": {"replicas": 1},
        "decode": {"replicas": 1},
    },
}


class Terminal:
    """A user's machine of its own: runtime folder, shared memory, environment."""

    def __init__(self, folder: Path) -> None:
        self.run_folder, self.memory = folder / "run", folder / "shm"
        self.run_folder.mkdir()
        self.memory.mkdir()
        model = f"from kvferry_operator.api.parse import parse\nMODEL = parse({_RAW!r})\n"
        (folder / "the_model.py").write_text(model)
        path = os.pathsep.join((str(folder), str(Path(objects.__file__).parent)))
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(self.run_folder), "PYTHONPATH": path}
        self.up: subprocess.Popen[str] | None = None

    def start(self) -> list[str]:
        """Begin `up`, in the background; what it printed until it was ready."""
        self.up = subprocess.Popen(
            [sys.executable, "-c", _UP, str(self.memory)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.up.stdout is not None
        lines: list[str] = []
        for line in self.up.stdout:
            lines.append(line.rstrip())
            if line.startswith("stop it with"):
                return lines
        raise AssertionError(lines)

    def kvferry(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        program = Path(sys.executable).with_name("kvferry")
        return subprocess.run(
            [program, "local", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def end(self) -> str:
        """The rest of what `up` printed."""
        assert self.up is not None
        with self.up:
            assert self.up.stdout is not None
            return self.up.stdout.read() if not self.up.stdout.closed else ""

    @property
    def clean(self) -> bool:
        return not list(self.run_folder.iterdir()) and not list(self.memory.iterdir())


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    if terminal.up is not None:
        terminal.up.kill()
        terminal.end()


def test_up_says_where_to_send_requests_and_others_see_it_until_down(terminal: Terminal) -> None:
    said = "\n".join(terminal.start())
    assert f"{INSTANCE} is ready: send requests to http://127." in said
    assert "curl http://127." in said and f"logs: {terminal.run_folder}" in said
    shown = terminal.kvferry("ps")
    assert shown.returncode == 0
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert [(row[1], row[3], row[4]) for row in rows[2:5]] == [
        ("prefill", "2/2", "ready"),
        ("decode", "2/2", "ready"),
        ("router", "1/1", "ready"),
    ]
    logs = terminal.kvferry("logs", "prefill", "-c", "engine")
    assert logs.returncode == 0 and "engine starts (restart 0)" in logs.stdout
    missing = terminal.kvferry("logs", "nobody")
    assert missing.returncode == 1 and "there are: m-decode-" in missing.stderr
    wrong = terminal.kvferry("down", "other")
    assert (wrong.returncode, wrong.stderr) == (
        1,
        f"kvferry local: no instance other runs here; running: {INSTANCE}\n",
    )
    down = terminal.kvferry("down", INSTANCE)
    assert (down.returncode, down.stdout) == (0, f"default-{INSTANCE}: stopped\n")
    assert "nothing is left running" in terminal.end()
    assert terminal.clean
    assert terminal.kvferry("ps").stdout == "nothing runs here\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything(terminal: Terminal, number: signal.Signals) -> None:
    terminal.start()
    assert terminal.up is not None
    terminal.up.send_signal(number)
    assert "nothing is left running" in terminal.end()
    assert terminal.up.returncode == 0
    assert terminal.clean


def test_down_ends_an_instance_whose_supervisor_hangs(terminal: Terminal) -> None:
    terminal.start()
    assert terminal.up is not None
    terminal.up.send_signal(signal.SIGSTOP)
    down = terminal.kvferry("down", "--grace", "0.5")
    assert down.returncode == 0, down.stderr
    assert "did not stop within 0 s: killing it" in down.stderr
    terminal.end()
    assert terminal.clean


def test_what_a_crash_of_the_machine_left_is_cleaned_up(terminal: Terminal) -> None:
    """No supervisor, no janitor: only files, as in a /tmp that survives."""
    folder = terminal.run_folder / "kvferry" / "default-m"
    (folder / "pods" / "x").mkdir(parents=True)
    memory = terminal.memory / "kvferry" / "0123"
    memory.mkdir(parents=True)
    (folder / "lock").write_text(f'{{"pid": 1, "start": 1, "run": "gone", "memory": "{memory}"}}')
    down = terminal.kvferry("down")
    assert down.returncode == 0 and "cleaning up after a crash" in down.stderr
    assert terminal.clean
    assert terminal.kvferry("down").stderr == "kvferry local: nothing runs here\n"


def test_what_a_crash_left_is_not_shown_as_running_nor_followed(terminal: Terminal) -> None:
    folder = terminal.run_folder / "kvferry" / "default-m"
    (folder / "logs" / "m-decode-0").mkdir(parents=True)
    (folder / "logs" / "m-decode-0" / "engine.log").write_text("last words\n")
    (folder / "lock").write_text('{"pid": 1, "start": 1, "run": "gone", "memory": "/nowhere"}')
    (folder / "instance.json").write_text(Record("default", "m", 1, "", str(folder / "logs"), ()).to_json())
    assert (
        terminal.kvferry("ps").stdout == "default/m  ended without cleaning up: `kvferry local down default/m` does\n"
    )
    logs = terminal.kvferry("logs", "-f")
    assert (logs.returncode, logs.stdout) == (0, "last words\n")
    assert terminal.kvferry("down", "default/m").returncode == 0
    assert terminal.clean


def test_a_folder_of_somebody_else_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "default-m").mkdir()
    (tmp_path / "default-m" / "lock").touch()
    stranger = os.getuid() + 1
    monkeypatch.setattr("os.getuid", lambda: stranger)
    with pytest.raises(CannotStart, match="is not a folder of this user"):
        list(state.instances(tmp_path))


@pytest.mark.parametrize("grace", ["-1", "nan", "inf"])
def test_a_grace_that_is_no_time_is_a_usage_error(grace: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["local", "down", f"--grace={grace}"])
    assert stopped.value.code == 2
    assert f"--grace: {grace} is not" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "arguments", "code", "message"),
    [
        (None, [], 2, "no such file"),
        ("kind: Service", [], 2, "holds no DisaggregatedModel"),
        ("{", [], 2, "not YAML"),
        ("two", [], 2, "holds 2 models, local mode runs one at a time"),
        ("unknown", [], 2, "spec.decoder: unknown field; did you mean decode"),
        ("good", ["--name", "No Good"], 2, "metadata.name"),
        ("good", ["--set-model", "/nowhere"], 2, "kvferry local: --set-model /nowhere: no such folder"),
        ("good", ["--model-dir", "/nowhere"], 1, "/nowhere/x does not exist"),
        ("good", ["--log-dir", "/proc/x"], 2, "--log-dir /proc/x: cannot be written: No such file"),
        ("good", ["--trace", "/proc/x"], 2, "--trace /proc/x: cannot be written: No such file"),
        ("hub", ["--model-dir", "/proc/x"], 2, "--model-dir /proc/x: cannot be written: No such file"),
        ("good", ["-f", "second.yaml"], 2, "-f second.yaml: one `kvferry local up` runs one model"),
        ("vllm", [], 1, f"{INSTANCE}: spec.engine.type vllm is rendered, not served yet"),
    ],
)
def test_bad_input_is_one_clear_message(
    content: str | None,
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    good = objects.as_yaml(_RAW)
    spec = _RAW["spec"]
    assert isinstance(spec, dict)
    contents = {
        "good": good,
        "two": f"{good}\n---\n{good}",
        "unknown": objects.as_yaml({**_RAW, "spec": {**spec, "decoder": {}}}),
        "hub": objects.as_yaml({**_RAW, "spec": {**spec, "model": {"uri": "hf://a/b"}}}),
        # as examples/vllm.yaml, whose token would be asked for too
        "vllm": objects.as_yaml(
            {
                **_RAW,
                "spec": {
                    **spec,
                    "model": {"uri": "hf://a/b", "tokenSecretRef": {"name": "hugging-face"}},
                    "engine": {"type": "vllm"},
                },
            }
        ),
    }
    file = tmp_path / "model.yaml"
    if content is not None:
        file.write_text(contents.get(content, content))
    assert main(["local", "up", "-f", str(file), *arguments]) == code
    out, said = capsys.readouterr()
    assert message in said
    assert len(said.splitlines()) == 1
    assert not out, "nothing is said to start before all is checked"
    assert not list((tmp_path / "run").glob("*"))


def test_a_name_that_is_taken_is_told_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    file = tmp_path / "model.yaml"
    file.write_text(objects.as_yaml(_RAW))
    claim = state.claim(tmp_path / "kvferry", f"default-{INSTANCE}", "", tmp_path)
    try:
        assert main(["local", "up", "-f", str(file)]) == 1
    finally:
        claim.release()
    assert capsys.readouterr().err == (
        f"kvferry local: default-{INSTANCE} is already running (pid {os.getpid()}): "
        f"stop it with `kvferry local down {INSTANCE}`, or run a second one with --name NAME\n"
    )


@pytest.mark.parametrize("action", ["up", "ps", "logs", "down"])
def test_every_action_explains_itself(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["local", action, "--help"])
    assert stopped.value.code == 0
    assert f"examples:\n  kvferry local {action}" in capsys.readouterr().out


def test_changes_are_laid_on_a_copy_and_checked() -> None:
    before = objects.as_yaml(_RAW)
    changes = request.Changes(name="second", method="int8", prefill=3, decode=2, model=Path("/data/other"))
    model = parse(request.changed(_RAW, changes))
    assert (model.name, model.spec.transfer.compression.method) == ("second", "int8")
    assert model.spec.prefill is not None
    assert (model.spec.prefill.replicas, model.spec.decode.replicas) == (3, 2)
    assert (model.spec.model.uri, model.spec.model.cache.path) == ("file:///models/other", "/data")
    alone = parse(request.changed(_RAW, request.Changes(aggregated=True)))
    assert alone.spec.prefill is None and alone.spec.router.replicas == 0
    assert objects.as_yaml(_RAW) == before


def test_a_second_up_waits_for_the_janitor_of_a_killed_first(terminal: Terminal) -> None:
    terminal.start()
    assert terminal.up is not None
    terminal.up.kill()
    terminal.end()

    terminal.start()
    terminal.kvferry("down")
    terminal.end()
    assert terminal.clean
