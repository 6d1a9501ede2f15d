"""What two neighbours must agree on before a message passes between them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kvferry_runtime.engine.stages.ring import in_flight
from kvferry_runtime.engine.stages.settings import RingSettings
from kvferry_runtime.wire.handshake import Party

VERSION = 1
"""Of the messages between stages."""
_CODEC = "none"


def party(
    settings: RingSettings, marks: Mapping[str, str], max_activation_bytes: int, boot_id: bytes, *, dialling: bool
) -> Party:
    """One end of a link: to the next stage if `dialling`, else from the stage before.

    Both ends name the link itself, so a stage that dials another one than its next is refused like one of another
    group. marks: what else has to be the same in all stages, e.g. model, revision and dtype.
    """
    ends = (settings.stage, settings.next) if dialling else (settings.previous, settings.stage)
    return Party(
        boot_id=boot_id,
        group=f"stage {settings.stage}",
        fingerprint={
            **marks,
            "group": settings.group,
            "link": f"stage {ends[0]} to stage {ends[1]}",
            "stages": str(settings.stages),
            "stages.version": str(VERSION),
            "stages.activation_bytes": str(max_activation_bytes),
        },
        codecs=(_CODEC,),
        chunk_bytes=max_activation_bytes,
        slots=in_flight(settings.stages),
        layerwise=True,
    )
