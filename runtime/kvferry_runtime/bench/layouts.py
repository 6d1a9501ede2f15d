"""KV layouts of real models, which transfers over limited links are measured with."""

from __future__ import annotations

from kvferry_contract.split import Split
from kvferry_runtime.errors import SettingsError
from kvferry_runtime.layout import KvDtype, KvLayout, LayerShape

LAYOUTS = {
    "smollm2-135m": KvLayout(30, 0, (LayerShape(2, 3, 64, KvDtype.BF16),) * 30),
    "llama3-8b": KvLayout(32, 0, (LayerShape(2, 8, 128, KvDtype.BF16),) * 32),
}
"""22.5 KiB a token, the least of any model here, hence the hardest for short prompts; 128 KiB, as common 8B models."""

SMALL, COMMON = "smollm2-135m", "llama3-8b"


def layout(name: str, split: Split, stage: int) -> KvLayout:
    """What one stage holds of it.

    Raises:
        SettingsError: none has this name.
        SplitError: it cannot be split so.
    """
    try:
        whole = LAYOUTS[name]
    except KeyError:
        raise SettingsError(f"layout {name!r}: choose one of {', '.join(LAYOUTS)}") from None
    return KvLayout.stage(whole.shapes, split.ranges(whole.total_layers)[stage])
