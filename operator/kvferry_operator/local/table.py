"""Tables for people: pods of an instance, recent transfers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvferry_contract.config import Role
from kvferry_operator.local.record import Phase, PodRecord, Record
from kvferry_operator.local.transfers import Transfer
from kvferry_operator.local.usage import Usage, total

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def columns(rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Lines with aligned columns, two spaces apart. right: numbers of the columns that are flush right."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def pods(record: Record, usage: Mapping[int, Usage]) -> list[str]:
    """usage: by the pid of a container. Where any role has several stages, it tells which group and stage a pod is."""
    rows: list[tuple[str, ...]] = [("POD", "ROLE", "ADDRESS", "READY", "STATE", "RESTARTS", "CPU", "MEMORY")]
    rows += [_pod(pod, usage) for pod in record.pods]
    if any(pod.stages > 1 for pod in record.pods):
        places = [("GROUP", "STAGE"), *map(_place, record.pods)]
        rows = [(*row[:2], *place, *row[2:]) for row, place in zip(rows, places, strict=True)]
    return columns(rows, right=frozenset(range(len(rows[0]) - 3, len(rows[0]))))


def groups(record: Record) -> str:
    """`groups ready: prefill 1 of 2, decode 2 of 2`; empty where each pod is a group of its own."""
    if all(pod.stages == 1 for pod in record.pods):
        return ""
    ready: dict[str, dict[int, bool]] = {}
    for pod in record.pods:
        if pod.role in (Role.PREFILL, Role.DECODE):
            found = ready.setdefault(pod.role, {})
            found[pod.group] = found.get(pod.group, True) and pod.ready
    return "groups ready: " + ", ".join(
        f"{role} {sum(found.values())} of {len(found)}" for role, found in ready.items()
    )


def progress(found: Sequence[PodRecord]) -> str:
    """How far the start of these pods is."""
    return f"{sum(pod.ready for pod in found)} of {len(found)} pods are ready, the engines load the model"


def transfers(found: Iterable[Transfer]) -> list[str]:
    """One line each, newest first; empty when there are none."""
    rows: list[tuple[str, ...]] = [("TRANSFER", "STATE", "CODEC", "TOKENS", "RAW", "WIRE", "GOODPUT", "HIDDEN", "LANE")]
    rows += [_transfer(transfer) for transfer in found]
    return columns(rows, right=frozenset({3, 4, 5, 6, 7})) if len(rows) > 1 else []


def size(count: float) -> str:
    """`1.5 MiB`."""
    for unit in _UNITS[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"


def rate(bytes_per_second: float) -> str:
    """`0.98 GB/s`, as transfer speeds are usually given."""
    return f"{bytes_per_second / 1e9:.2f} GB/s"


def share(value: float | None) -> str:
    """`93 %`; a dash when it is not known."""
    return "-" if value is None else f"{100 * value:.0f} %"


def _pod(pod: PodRecord, usage: Mapping[int, Usage]) -> tuple[str, ...]:
    used = total([usage[item.pid] for item in pod.containers if item.pid in usage])
    ready = sum(container.ready for container in pod.containers)
    return (
        pod.name,
        pod.role or "-",
        pod.address,
        f"{ready}/{len(pod.containers)}",
        _state(pod),
        str(pod.restarts),
        f"{100 * used.cpu:.0f} %",
        size(used.memory_bytes),
    )


def _place(pod: PodRecord) -> tuple[str, str]:
    if pod.role not in (Role.PREFILL, Role.DECODE):
        return "-", "-"
    return str(pod.group), f"{pod.stage} of {pod.stages}" if pod.stages > 1 else "-"


def _state(pod: PodRecord) -> str:
    """What a person should know first: what is wrong, else what is awaited, else that it runs."""
    for phase in (Phase.BACKOFF, Phase.STARTING, Phase.WAITING):
        for container in pod.containers:
            if container.phase is phase:
                return f"{container.name}: {container.note}" if phase is Phase.BACKOFF else f"{container.name} {phase}"
    return "ready" if pod.ready else "not ready"


def _codec(transfer: Transfer) -> str:
    """What the bytes were compressed with, which is nothing where that saved nothing."""
    raw, wire = transfer.get("bytes_raw", 0), transfer.get("bytes_wire", 0)
    return "none" if 0 < raw <= wire else str(transfer.get("codec") or "-")


def _transfer(transfer: Transfer) -> tuple[str, ...]:
    failed = transfer.get("reason") or ""
    state = str(transfer.get("state", "?"))
    return (
        str(transfer.get("id", "?"))[:8],
        f"{state} ({failed})" if failed else state,
        _codec(transfer),
        str(transfer.get("tokens", "-")),
        size(transfer.get("bytes_raw", 0)),
        size(transfer.get("bytes_wire", 0)),
        rate(transfer.get("goodput_bytes_per_s") or 0.0),
        share(transfer.get("hidden_share")),
        ",".join(transfer.get("lanes") or ()) or "-",
    )
