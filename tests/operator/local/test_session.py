"""Local mode with real processes: what a user sees when pods start, die and stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import local_objects as objects
from kvferry_contract import endpoints
from kvferry_operator.local import proc, session, state
from kvferry_operator.local.errors import AlreadyRunning, CannotStart, LocalError, StartFailed
from kvferry_operator.local.supervisor import Supervisor
from local_objects import INSTANCE

SECONDS = 120.0
"""Against hanging; a slow machine takes a good part of it."""

_ADVICE = session.Advice(name="end the other one", port="free the port")


@pytest.fixture
def options(tmp_path: Path) -> session.Options:
    memory = tmp_path / "shm"
    memory.mkdir()
    return session.Options(models=None, advice=_ADVICE, base=tmp_path / "run" / "kvferry", memory=memory)


def silent(_: str) -> None:
    pass


async def until(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (other processes set no event)
            await asyncio.sleep(0.02)


def fetch(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=SECONDS) as response:
        return str(response.read().decode())


def container_of(supervisor: Supervisor, pod: str, name: str) -> proc.Identity:
    for found in supervisor.record.pods:
        for item in found.containers:
            if pod in found.name and item.name == name:
                identity = proc.identity(item.pid)
                assert identity is not None
                return identity
    raise AssertionError((pod, name))


async def test_pods_start_in_order_serve_and_leave_nothing(tmp_path: Path, options: session.Options) -> None:
    journal = tmp_path / "journal"
    said: list[str] = []
    manifests = objects.deployment(tmp_path)
    async with session.running("default", INSTANCE, manifests, options, said.append) as supervisor:
        await asyncio.wait_for(supervisor.wait_ready(), SECONDS)
        record = supervisor.record
        groups = endpoints.load((options.base / f"default-{INSTANCE}" / "endpoints.json").read_text())
        environment = await asyncio.to_thread(fetch, record.url + "/env")
    notes = journal.read_text().splitlines()
    addresses = {pod.role: pod.address for pod in record.pods}
    assert len(set(addresses.values())) == 3
    assert record.url == f"http://{addresses['router']}:8080"
    assert {(group.role, group.ready, group.engine, group.sidecars) for group in groups} == {
        (role, True, f"{addresses[role]}:8000", (f"{addresses[role]}:7400",)) for role in ("prefill", "decode")
    }
    assert f"KVFERRY_ENDPOINTS=file://{options.base}/default-{INSTANCE}/endpoints.json" in environment
    for role in ("prefill", "decode"):
        mine = [note.split(" ", 1)[1] for note in notes if role in note]
        assert mine == ["kvferry-sidecar starts", "engine starts", "engine stops", "kvferry-sidecar stops"]
    stops = [note for note in notes if note.endswith("stops")]
    assert stops[0] == "m-router-0 router stops"
    assert any(line.startswith("m-router-0: ready") for line in said)
    assert not options.base.exists()
    assert not list(options.memory.iterdir())


async def test_a_container_that_dies_is_restarted_alone(options: session.Options) -> None:
    async with session.running("default", INSTANCE, objects.deployment(), options, silent) as supervisor:
        await asyncio.wait_for(supervisor.wait_ready(), SECONDS)
        engine = container_of(supervisor, "decode", "engine")
        sidecar = container_of(supervisor, "decode", "kvferry-sidecar")
        proc.kill(engine, signal.SIGKILL)

        def told() -> dict[str, bool]:
            text = (options.base / f"default-{INSTANCE}" / "endpoints.json").read_text()
            return {group.role: group.ready for group in endpoints.load(text)}

        await until(lambda: told() == {"prefill": True, "decode": False})
        await asyncio.wait_for(supervisor.wait_ready(), SECONDS)
        assert container_of(supervisor, "decode", "engine") != engine
        assert container_of(supervisor, "decode", "kvferry-sidecar") == sidecar
        decode = next(pod for pod in supervisor.record.pods if pod.role == "decode")
        assert decode.restarts == 1
        assert decode.containers[1].note == "killed by SIGKILL"


async def test_children_of_a_container_end_with_it(options: session.Options) -> None:
    async with session.running("default", INSTANCE, objects.deployment(), options, silent) as supervisor:
        await asyncio.wait_for(supervisor.wait_ready(), SECONDS)
        child = proc.identity(int(await asyncio.to_thread(fetch, supervisor.record.url + "/fork")))
        assert child is not None
        proc.kill(container_of(supervisor, "router", "router"), signal.SIGKILL)
        await until(lambda: not proc.alive(child))


async def test_readiness_goes_and_comes_back(options: session.Options) -> None:
    manifests = objects.deployment()
    async with session.running("default", INSTANCE, manifests, options, silent) as supervisor:
        await asyncio.wait_for(supervisor.wait_ready(), SECONDS)
        pod = next(pod.name for pod in supervisor.record.pods if pod.role == "prefill")
        mark = options.base / f"default-{INSTANCE}" / "pods" / pod / "volumes" / "tmp" / "unready"
        mark.touch()
        await until(lambda: not supervisor.record.ready)
        mark.unlink()
        await asyncio.wait_for(supervisor.wait_ready(), SECONDS)
        assert all(pod.restarts == 0 for pod in supervisor.record.pods)


async def test_a_hanging_container_is_restarted_by_its_liveness_probe(options: session.Options) -> None:
    unless_marked = {"exec": {"command": ["test", "!", "-e", "/scratch/unready"]}}
    probe = {**unless_marked, "periodSeconds": 0.1, "timeoutSeconds": SECONDS, "failureThreshold": 2}
    engine = objects.container("engine", port=8000, livenessProbe=probe)
    manifests = [objects.stateful_set("m-decode", [engine])]
    async with session.running("default", INSTANCE, manifests, options, silent) as supervisor:
        await asyncio.wait_for(supervisor.wait_ready(), SECONDS)
        mark = options.base / f"default-{INSTANCE}" / "pods" / "m-decode-0" / "volumes" / "tmp" / "unready"
        mark.touch()
        await until(lambda: supervisor.record.pods[0].restarts > 0)
        mark.unlink()
        await asyncio.wait_for(supervisor.wait_ready(), SECONDS)


async def test_init_containers_run_to_their_end_first(tmp_path: Path, options: session.Options) -> None:
    journal = tmp_path / "journal"
    first = objects.container("first", arguments=["--exit", "0"])
    engine = objects.container("engine", port=8000)
    manifests = [objects.stateful_set("m-decode", [engine], [first], journal=tmp_path)]
    async with session.running("default", INSTANCE, manifests, options, silent) as supervisor:
        await asyncio.wait_for(supervisor.wait_ready(), SECONDS)
    assert [line.split(" ", 1)[1] for line in journal.read_text().splitlines()][:2] == ["first starts", "engine starts"]


async def test_the_second_of_two_with_the_same_name_is_refused(options: session.Options) -> None:
    manifests = objects.deployment()
    async with session.running("default", INSTANCE, manifests, options, silent) as supervisor:
        with pytest.raises(AlreadyRunning, match=rf"\(pid {os.getpid()}\): end the other one"):
            async with session.running("default", INSTANCE, manifests, options, silent):
                pass
        await asyncio.wait_for(supervisor.wait_ready(), SECONDS)
    assert not options.base.exists()


def _no_command() -> list[objects.Manifest]:
    engine = objects.container("engine", port=8000)
    del engine["command"]
    return [objects.stateful_set("m-decode", [engine])]


def _too_much_memory() -> list[objects.Manifest]:
    volume = {"name": "ring", "emptyDir": {"medium": "Memory", "sizeLimit": "900Ti"}}
    return [objects.stateful_set("m-decode", [objects.container("engine", port=8000)], volumes=[volume])]


def _missing_secret() -> list[objects.Manifest]:
    source = {"name": "NO_SUCH_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    return [objects.stateful_set("m-decode", [objects.container("engine", port=8000, env=[source])])]


def _claim() -> list[objects.Manifest]:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    engine = objects.container("engine", port=8000, volumeMounts=[{"name": "data", "mountPath": "/data"}])
    return [objects.stateful_set("m-decode", [engine], volumes=[volume])]


def _job() -> list[objects.Manifest]:
    return [{"kind": "Job", "metadata": {"name": "once"}, "spec": {}}]


@pytest.mark.parametrize(
    ("manifests", "message"),
    [
        (_no_command, "m-decode-0, container engine: no command; local mode runs processes, not images"),
        (_too_much_memory, "need 943718400 MiB of shared memory.*--shm-size.*bufferBytes"),
        (_missing_secret, "env NO_SUCH_TOKEN: Secret hub, key token, exists only in a cluster: set NO_SUCH_TOKEN"),
        (_claim, "volume data: a persistentVolumeClaim volume exists only in a cluster"),
        (_job, "Job once: local mode runs StatefulSets and Deployments only"),
        (lambda: [objects.stateful_set("m-decode", [objects.container("e", port=8000)], replicas=300)], "has 300 pods"),
    ],
)
async def test_what_cannot_run_here_is_refused_in_one_message(
    manifests: Callable[[], list[objects.Manifest]], message: str, options: session.Options
) -> None:
    with pytest.raises(LocalError, match=message) as caught:
        async with session.running("default", INSTANCE, manifests(), options, silent):
            pass
    assert "\n" not in str(caught.value)
    assert not options.base.exists()
    assert not list(options.memory.iterdir())


async def test_a_port_in_use_is_named_with_the_way_out(options: session.Options) -> None:
    async with session.running("default", INSTANCE, objects.deployment(), options, silent) as supervisor:
        await asyncio.wait_for(supervisor.wait_ready(), SECONDS)
        other = session.Options(models=None, advice=_ADVICE, base=options.base / "other", memory=options.memory)
        with pytest.raises(
            CannotStart, match=r"needs 127\.\d+\.\d+\.1:7401: another program has this port.*: free the port"
        ):
            async with session.running("default", INSTANCE, objects.deployment(), other, silent):
                pass


async def test_a_settings_error_of_the_runtime_ends_the_start(tmp_path: Path, options: session.Options) -> None:
    program = tmp_path / "kvferry-runtime"
    probe = '{"transports": {"tcp": {"usable": true}}}'
    refuse = "echo 'model: no such thing' >&2; exit 2"
    program.write_text(f"#!/bin/sh\nif [ $1 = probe ]; then echo '{probe}'; else {refuse}; fi\n")
    program.chmod(0o755)
    engine = objects.container("engine", port=8000, command=[str(program)], args=["engine"])
    with pytest.raises(StartFailed, match="pod m-decode-0, container engine cannot start: model: no such thing"):
        async with session.running(
            "default", INSTANCE, [objects.stateful_set("m-decode", [engine])], options, silent
        ) as up:
            await asyncio.wait_for(up.wait_ready(), SECONDS)
    assert not options.base.exists()


_REFUSES_LATE = f"""#!{sys.executable}
import http.server, os, sys
if sys.argv[1] == "probe":
    print('{{"transports": {{"tcp": {{"usable": true}}}}}}')
    sys.exit()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/readyz":
            print("model: its weights are damaged", file=sys.stderr, flush=True)
            os._exit(2)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer((os.environ["KVFERRY_POD_IP"], 8000), Handler).serve_forever()
"""


async def test_a_settings_error_found_after_the_startup_probe_ends_the_start_too(
    tmp_path: Path, options: session.Options
) -> None:
    """An engine answers /healthz while it loads its model."""
    program = tmp_path / "kvferry-runtime"
    program.write_text(_REFUSES_LATE)
    program.chmod(0o755)
    engine = objects.container("engine", port=8000, command=[str(program)], args=["engine"])
    with pytest.raises(StartFailed, match="container engine cannot start: model: its weights are damaged"):
        async with session.running(
            "default", INSTANCE, [objects.stateful_set("m-decode", [engine])], options, silent
        ) as up:
            await asyncio.wait_for(up.wait_ready(), SECONDS)
    assert not options.base.exists()


async def test_a_crash_is_tried_again_and_its_last_words_are_shown(options: session.Options) -> None:
    engine = objects.container("engine", port=8000, arguments=["--exit", "2", "--say", "not today"])
    said: list[str] = []
    async with session.running("default", INSTANCE, [objects.stateful_set("m-decode", [engine])], options, said.append):
        await until(lambda: sum("starts again in" in line for line in said) >= 2)
    assert said[0] == "m-decode-0 engine: ended (exit status 2), starts again in 1 s\n    not today"
    assert "starts again in 2 s" in said[1]
    assert said[1].count("not today") == 1


async def test_logs_can_be_kept(tmp_path: Path, options: session.Options) -> None:
    engine = objects.container("engine", port=8000, arguments=["--say", "hello"])
    kept = session.Options(models=None, logs=tmp_path / "logs", base=options.base, memory=options.memory)
    async with session.running("default", INSTANCE, [objects.stateful_set("m-decode", [engine])], kept, silent) as up:
        await asyncio.wait_for(up.wait_ready(), SECONDS)
    assert "hello" in (tmp_path / "logs" / INSTANCE / "m-decode-0" / "engine.log").read_text()
    assert not options.base.exists()


_SUPERVISOR = """
import asyncio, sys
from pathlib import Path
import local_objects
from kvferry_operator.local import session
async def main():
    options = session.Options(models=None, base=Path(sys.argv[1]), memory=Path(sys.argv[2]))
    async with session.running("default", sys.argv[3], local_objects.deployment(), options, print) as supervisor:
        await supervisor.wait_ready()
        print(supervisor.record.to_json().replace("\\n", ""), flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_sigkill_of_the_supervisor_leaves_no_process_and_no_file(options: session.Options) -> None:
    support = str(Path(objects.__file__).parent)
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _SUPERVISOR,
        str(options.base),
        str(options.memory),
        INSTANCE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": support},
    )
    assert child.stdout is not None
    folder = options.base / f"default-{INSTANCE}"
    try:
        async with asyncio.timeout(SECONDS):
            while not (line := await child.stdout.readline()).startswith(b"{"):
                assert line, "the supervisor ended"
        record = state.read_record(folder)
        assert record is not None
        # one that left its session and whose parent is gone, so that only its mark tells whose it is
        stray = proc.identity(int(await asyncio.to_thread(fetch, record.url + "/fork")))
        pids = [item.pid for pod in record.pods for item in pod.containers]
        processes = [proc.identity(pid) for pid in pids] + [stray]
    finally:
        child.kill()
        await child.wait()
    await until(lambda: not options.base.exists())
    assert len(processes) == 6
    assert not any(process is not None and proc.alive(process) for process in processes)
    assert not list(options.memory.iterdir())
    async with session.running("default", INSTANCE, objects.deployment(), options, silent) as supervisor:
        await asyncio.wait_for(supervisor.wait_ready(), SECONDS)
