"""The text on which quality is measured, and the windows cut from its tokens."""

from __future__ import annotations

import platform
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvferry_runtime.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Text:
    """origin: what it is, for people."""

    origin: str
    content: str


def load(path: Path | None) -> Text:
    """The text in `path`, else the language reference that every Python carries (465,000 characters of English prose
    with code, the help topics of `pydoc_data`).

    Raises:
        SettingsError: the file cannot be read as UTF-8.
    """
    if path is None:
        from pydoc_data import topics

        content = "\n".join(topics.topics[name] for name in sorted(topics.topics))
        return Text(f"the language reference in Python {platform.python_version()} (pydoc_data.topics)", content)
    try:
        return Text(str(path), path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--text {path}: {error}") from error


def windows(tokens: Sequence[int], count: int, size: int, seed: int) -> list[Sequence[int]]:
    """`count` pieces of `size` tokens that do not overlap, drawn by `seed`, in the order of the text.

    Raises:
        SettingsError: the text is too short.
    """
    places = len(tokens) // size
    if places < count:
        raise SettingsError(
            f"{len(tokens)} tokens of text hold {places} windows of {size}, {count} were asked for: "
            "give a longer --text, or fewer --windows, --context or --next"
        )
    chosen = sorted(random.Random(seed).sample(range(places), count))  # noqa: S311 - no secret is drawn
    return [tokens[place * size : (place + 1) * size] for place in chosen]
