"""Small tokenizers, built in memory."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<s>", "</s>", "<|end|>", "<|user|>", "<|assistant|>")
CHATML = (
    "{{ bos_token }}{% for m in messages %}<|user|>{{ m['role'] }}: {{ m['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer(
    *,
    chat_template: str | None = None,
    adds_bos: bool = False,
    bos_token: str | None = "<s>",
) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one id per byte, after the special tokens of `SPECIAL`."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*SPECIAL, *letters])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", vocab["<s>"])]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=bos_token, eos_token="</s>"
    )
    tokenizer.chat_template = chat_template
    return tokenizer
