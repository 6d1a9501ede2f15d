"""What is asked of the API server, and what it answers, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from kvferry_operator.kube.kinds import Kind


@dataclass(frozen=True, slots=True)
class Call:
    """What is asked, for messages. verb: as people say it, such as `apply`."""

    verb: str
    kind: Kind
    namespace: str | None = None
    name: str = ""
    subresource: str = ""

    def __str__(self) -> str:
        what = f"{self.kind.kind}/{self.subresource}" if self.subresource else self.kind.kind
        where = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{self.verb} {what} {where}".rstrip()


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, read whole. retry_after, warnings: values of the headers of these names."""

    status: int
    body: bytes
    retry_after: str = ""
    warnings: tuple[str, ...] = ()
