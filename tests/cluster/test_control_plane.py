"""The control plane tests stand on: it can be broken and mended, it remembers who asked what, and it goes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import control_plane as planes
import external_cluster
from cluster_api import Access, Api, Refused
from eventually import eventually
from external_cluster import WrongChoice

_HOLDER = """
import signal, sys
import control_plane
with control_plane.start() as plane:
    print(plane.url, plane.folder, flush=True)
    signal.pause()
"""


def test_the_audit_log_counts_each_request_once_and_by_whom(control_plane: planes.ControlPlane) -> None:
    namespace = control_plane.namespace()
    api = Api(Access.of(control_plane.service_account_kubeconfig(namespace, "asks")))
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    control_plane.kubectl("create", "rolebinding", "asks", "-n", namespace, "--clusterrole=edit",
                          f"--serviceaccount={namespace}:asks")  # fmt: skip
    eventually(lambda: _allowed(api, maps), "the rights are in force")
    since = control_plane.audit_position()

    api.create(maps, {"metadata": {"name": "one"}})
    api.request("GET", f"{maps}?watch=1&timeoutSeconds=1", accept="application/json;stream=watch")
    with pytest.raises(Refused):
        api.get("/api/v1/nodes")

    user = f"system:serviceaccount:{namespace}:asks"
    seen = [(each.verb, each.resource, each.code, each.writes) for each in control_plane.audit(since, user)]
    assert seen == [
        ("create", "configmaps", 201, True),
        ("watch", "configmaps", 200, False),
        ("list", "nodes", 403, False),
    ]


def _allowed(api: Api, path: str) -> bool:
    try:
        api.get(path)
    except Refused:
        return False
    return True


def test_an_api_server_that_was_killed_comes_back_with_all_it_knew(control_plane: planes.ControlPlane) -> None:
    namespace = control_plane.namespace()
    control_plane.kill_api_server()
    with pytest.raises(OSError):
        control_plane.api.get("/version")
    control_plane.start_api_server()
    assert control_plane.api.get(f"/api/v1/namespaces/{namespace}")["status"]["phase"] == "Active"


def test_nothing_is_stored_while_etcd_is_paused(control_plane: planes.ControlPlane) -> None:
    maps = f"/api/v1/namespaces/{control_plane.namespace()}/configmaps"
    control_plane.pause_etcd()
    try:
        with pytest.raises((OSError, Refused)):
            control_plane.api.create(maps, {"metadata": {"name": "late"}}, "?timeout=1s")
    finally:
        control_plane.resume_etcd()
    eventually(control_plane.api.ready, "it works again")


def test_nothing_is_left_of_a_test_run_that_was_killed() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER], stdout=subprocess.PIPE, text=True, cwd=Path(planes.__file__).parent
    )
    with holder:
        assert holder.stdout is not None
        url, folder = holder.stdout.readline().split()
        assert Api(Access(url, (Path(folder) / "certificates" / "apiserver.crt").read_text())).ready()
        holder.send_signal(signal.SIGKILL)
    eventually(lambda: not Path(folder).exists(), "the scratch folder is gone")
    eventually(lambda: folder not in _running(), "and so are its processes")


def _running() -> str:
    """Command lines of all processes; one that was killed has its own until it is gone."""
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("environment", "mistake"),
    [
        ({"KVFERRY_TEST_CLUSTER": "kind"}, "the one value it may have is kubeconfig"),
        ({"KVFERRY_TEST_CLUSTER": "kubeconfig"}, "names no file"),
        ({"KVFERRY_TEST_CLUSTER": "kubeconfig", "KUBECONFIG": "/nowhere"}, "KUBECONFIG=/nowhere names no file"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(environment: dict[str, str], mistake: str) -> None:
    with pytest.raises(WrongChoice, match=mistake):
        external_cluster.chosen(environment)


def test_a_kubeconfig_alone_is_not_a_choice(tmp_path: Path) -> None:
    assert external_cluster.chosen({"KUBECONFIG": str(tmp_path)}) is None


def test_what_tests_made_in_somebody_elses_cluster_goes_again(control_plane: planes.ControlPlane) -> None:
    with external_cluster.attached(control_plane.kubeconfig) as cluster:
        name = cluster.namespace("guest")
        assert name in cluster.kubectl("get", "namespaces")
        account = cluster.service_account_kubeconfig(name, "asks")
        with pytest.raises(Refused, match="forbidden"):
            Api(Access.of(account)).get("/api/v1/nodes")
    found = control_plane.api.get("/api/v1/namespaces")["items"]
    left = {item["metadata"]["name"]: item["status"]["phase"] for item in found}
    assert left.get(name, "Terminating") == "Terminating"
