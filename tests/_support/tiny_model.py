"""A Llama, or a relative of it, with random weights and byte tokens, so small that an engine answers at once."""

from __future__ import annotations

import random
from pathlib import Path

VOCABULARY = 260
END_TOKEN = 257
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('unknown role') }}{% endif %}"
    "<s>{{ message['role'] }}:{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


def make(
    folder: Path,
    *,
    dtype: str = "float32",
    layers: int = 3,
    chat: bool = True,
    seed: int = 0,
    family: str = "llama",
    tied: bool = False,
) -> Path:
    """Save a model to `folder`: 3 layers of 6 heads over 2 KV heads of 16, contexts of 4096.

    family: as transformers names it. tied: one tensor is embedding and head.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        family,
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=200,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        initializer_range=0.2,
        bos_token_id=256,
        eos_token_id=END_TOKEN,
        pad_token_id=END_TOKEN,
        tie_word_embeddings=tied,
        sliding_window=None,
    )
    model = AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))
    model.save_pretrained(folder)
    tokenizer = _byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE if chat else None
    tokenizer.save_pretrained(folder)
    return folder


def prompt_of(length: int) -> list[int]:
    """Bytes as tokens, the same ones for the same length."""
    return random.Random(length).choices(range(256), k=length)


def _byte_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    characters = bytes_to_unicode()
    inner = Tokenizer(models.BPE(vocab={characters[value]: value for value in range(256)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<s>", "</s>", "<pad>", "<unk>"])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
