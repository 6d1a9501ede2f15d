"""Names by which pods find each other in a cluster, and the addresses that stand for them here. Pure.

A cluster's DNS knows a pod of a headless Service as `<pod>.<service>`. This machine has no such names, so wherever a
container is told one, it is told the address instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvferry_operator.local.errors import Unsupported
from kvferry_operator.local.pods import Pod


def addresses_of(pods: Iterable[Pod], addresses: Mapping[str, str]) -> dict[str, str]:
    """Host name to address. addresses: by the name of the pod."""
    return {pod.host: addresses[pod.name] for pod in pods if pod.host}


def in_place_of_names(text: str, known: Mapping[str, str], where: str) -> str:
    """`text`, host names with commas between them, as addresses. where: pod, container and variable, for the message.

    Raises:
        Unsupported: a name that no pod here has.
    """
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in known:
            raise Unsupported(f"{where} names the host {name}, which is no pod of this model")
    return ",".join(known[name] for name in names)
