"""From paths inside a container to folders on this machine. Pure.

A mount path is replaced where a path starts: at the beginning of a text, after `=`, `,`, `:`, quotes or spaces, or
after `file://`; never in the middle of a longer path or of a URL (`http://host/models/x` stays).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Translation:
    """Mount path in the container to folder on this machine. The longest mount path wins."""

    folders: Mapping[str, str]
    _pattern: re.Pattern[str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        paths = sorted((path.rstrip("/") for path in self.folders), key=len, reverse=True)
        choice = "|".join(re.escape(path) for path in paths)
        pattern = re.compile(rf"(?:(?<=file://)|(?<![\w./\-]))(?:{choice})(?![\w.\-])") if paths else None
        object.__setattr__(self, "_pattern", pattern)

    def text(self, text: str) -> str:
        """`text` with every mount path in it replaced."""
        if self._pattern is None:
            return text
        plain = {path.rstrip("/"): folder for path, folder in self.folders.items()}

        def translated(match: re.Match[str]) -> str:
            folder = plain[match[0]]
            return folder.rstrip("/") if text.startswith("/", match.end()) else folder  # of the root, one slash

        return self._pattern.sub(translated, text)

    def document(self, text: str) -> str:
        """A file's text: the strings of a JSON document are translated, anything else is left as it is."""
        try:
            document = json.loads(text)
        except ValueError:
            return text
        translated = self._value(document)
        return text if translated == document else json.dumps(translated, sort_keys=True, separators=(",", ":"))

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._value(item) for item in value]
        if isinstance(value, dict):
            return {key: self._value(item) for key, item in value.items()}
        return value
