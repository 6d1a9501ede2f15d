"""Command lines of the components of a control plane: pure, from where things lie to flags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SERVICE_RANGE = "10.96.0.0/16"


@dataclass(frozen=True)
class Network:
    """Where the API server listens.

    identity: certificate and key that it shows to kubelets. With it real nodes reach the API server at `address`,
    which then must be no loopback address.
    """

    address: str = "127.0.0.1"
    identity: tuple[Path, Path] | None = None


@dataclass(frozen=True)
class Places:
    """The files of one control plane below `folder`, and its ports: etcd's for clients and for peers, the API server's.

    The API server makes `certificate`, which vouches for itself, and `key`. switched_off: APIs that it does not serve,
    such as `policy/v1`.
    """

    folder: Path
    network: Network
    storage_port: int
    peer_port: int
    port: int
    switched_off: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"https://{self.network.address}:{self.port}"

    @property
    def certificate(self) -> Path:
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def key(self) -> Path:
        return self.certificate.with_suffix(".key")

    @property
    def tokens(self) -> Path:
        return self.folder / "tokens.csv"

    @property
    def audit_policy(self) -> Path:
        return self.folder / "audit-policy.json"

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"

    @property
    def kubeconfig(self) -> Path:
        """Of the administrator."""
        return self.folder / "admin.kubeconfig"

    @property
    def manager_kubeconfig(self) -> Path:
        """Of the controller manager and the scheduler."""
        return self.folder / "manager.kubeconfig"


def etcd(places: Places) -> list[str]:
    clients, peers = (f"http://127.0.0.1:{port}" for port in (places.storage_port, places.peer_port))
    return [
        "--data-dir=etcd",
        "--unsafe-no-fsync",
        "--socket-reuse-port=true",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--log-level=warn",
    ]


def api_server(places: Places) -> list[str]:
    return [
        f"--etcd-servers=http://127.0.0.1:{places.storage_port}",
        f"--bind-address={places.network.address}",
        f"--secure-port={places.port}",
        "--permit-port-sharing=true",
        *_for_nodes(places.network),
        f"--cert-dir={places.certificate.parent}",
        f"--token-auth-file={places.tokens}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-signing-key-file={places.key}",  # it makes its key before it reads this
        f"--service-account-key-file={places.key}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--audit-policy-file={places.audit_policy}",
        f"--audit-log-path={places.audit_log}",
        "--audit-log-maxsize=4096",  # MiB: one file, so that a position in it stays true
        "--shutdown-delay-duration=0s",
        f"--runtime-config={','.join(f'{api}=false' for api in places.switched_off)}",
    ]


def _for_nodes(network: Network) -> list[str]:
    if network.identity is None:
        return ["--endpoint-reconciler-type=none"]
    certificate, key = network.identity
    return [
        f"--advertise-address={network.address}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={certificate}",
        f"--kubelet-client-key={key}",
    ]


def manager(places: Places) -> list[str]:
    return [f"--root-ca-file={places.certificate}", *scheduler(places)]


def scheduler(places: Places) -> list[str]:
    return [
        f"--kubeconfig={places.manager_kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=1000",  # hundreds of pods in seconds
        "--kube-api-burst=2000",
    ]
