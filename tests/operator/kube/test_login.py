from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kvferry_operator.errors import InputError
from kvferry_operator.kube.login import login

KUBECONFIG = {
    "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443", "insecure-skip-tls-verify": True}}],
    "users": [{"name": "u", "user": {"token": "secret"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}


def written(path: Path, server: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    cluster = {"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}
    path.write_text(yaml.safe_dump({**KUBECONFIG, "clusters": [cluster]}))
    return path


async def test_the_order_in_which_a_cluster_is_found(tmp_path: Path) -> None:
    flag = written(tmp_path / "flag", "https://flag")
    variable = written(tmp_path / "variable", "https://variable")
    written(tmp_path / ".kube" / "config", "https://home")
    environment = {"HOME": str(tmp_path), "KUBECONFIG": str(variable)}
    assert (await login(flag, environment)).access.server == "https://flag"
    assert (await login(None, environment)).access.server == "https://variable"
    assert (await login(None, {"HOME": str(tmp_path)})).access.server == "https://home"


async def test_a_pod_logs_in_with_its_account_before_it_looks_for_a_home(tmp_path: Path) -> None:
    written(tmp_path / ".kube" / "config", "https://home")
    environment = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(InputError, match="service account of this pod: no way to log in"):
        await login(None, environment)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "a: b", "{", "clusters: {}\ncurrent-context: x", yaml.safe_dump({**KUBECONFIG, "users": 3})],
)
async def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    with pytest.raises(InputError, match=str(path)):
        await login(path, {})


async def test_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such kubeconfig; give --kubeconfig or set KUBECONFIG"):
        await login(tmp_path / "missing", {})
    with pytest.raises(InputError, match=r"\.kube/config: no such kubeconfig"):
        await login(None, {"HOME": str(tmp_path)})


async def test_proxies_of_the_environment_are_used_unless_excepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "kubeconfig", "https://api.example:6443")
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "")
    assert (await login(path, {})).access.proxy == "http://proxy:3128"
    monkeypatch.setenv("no_proxy", "api.example")
    assert (await login(path, {})).access.proxy is None
