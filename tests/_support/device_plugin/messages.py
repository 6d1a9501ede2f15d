"""The few messages of the kubelet's device plugin interface (v1beta1) that a plugin needs, in protobuf's encoding.

Every field is text or a message, that is bytes with a length before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

VERSION = "v1beta1"
_LENGTH_DELIMITED = 2


def register_request(endpoint: str, resource: str) -> bytes:
    """endpoint: the name of the plugin's socket beside the kubelet's."""
    return _field(1, VERSION.encode()) + _field(2, endpoint.encode()) + _field(3, resource.encode())


def devices(identifiers: Sequence[str]) -> bytes:
    """ListAndWatchResponse: all devices, and all of them healthy."""
    return b"".join(_field(1, _field(1, name.encode()) + _field(2, b"Healthy")) for name in identifiers)


def requested(allocate_request: bytes) -> list[list[str]]:
    """The devices that AllocateRequest names for each container."""
    return [[name.decode() for name in _fields(container)] for container in _fields(allocate_request)]


def allocated(environments: Sequence[Mapping[str, str]]) -> bytes:
    """AllocateResponse: only an environment for each container, no mount and no device file."""
    return b"".join(_field(1, _environment(variables)) for variables in environments)


def _environment(variables: Mapping[str, str]) -> bytes:
    pairs = (_field(1, name.encode()) + _field(2, value.encode()) for name, value in variables.items())
    return b"".join(_field(1, pair) for pair in pairs)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(len(content)) + content


def _fields(message: bytes) -> Iterator[bytes]:
    """The values of field 1, the only one in the messages that are read.

    Raises:
        ValueError: another field.
    """
    position = 0
    while position < len(message):
        if message[position] != 1 << 3 | _LENGTH_DELIMITED:
            raise ValueError(f"unexpected field tag {message[position]:#x} at byte {position}")
        length, start = _read_varint(message, position + 1)
        position = start + length
        yield message[start:position]


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    """The value, and where it ends."""
    value = shift = 0
    while message[position] & 0x80:
        value |= (message[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
    return value | message[position] << shift, position + 1
