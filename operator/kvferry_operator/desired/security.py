"""Security contexts: the `restricted` pod security standard, plus what a container names."""

from __future__ import annotations

from kvferry_operator.desired.stage import Manifest

USER = 65532
"""Any numeric user but root; the volumes that we mount are made writable for it by `fsGroup`."""


def pod_spec() -> Manifest:
    """What every pod of ours starts from: no API token, no variables of foreign Services, no root."""
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def container(*capabilities: str) -> Manifest:
    """Nothing but the named capabilities, and a root file system that cannot be written."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], **({"add": list(capabilities)} if capabilities else {})},
    }
