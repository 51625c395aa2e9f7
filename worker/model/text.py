"""Turn text and chat messages into token ids and back, with the model's own tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from worker.protocol.schema import ErrorCode, ProtocolError

# Some templates build their markers from the role, so a role must not be able to hold one.
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
# Any of these says that the folder was meant to have a tokenizer.
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "spiece.model", "vocab.json",
    "vocab.txt", "merges.txt", "tekken.json",
)  # fmt: skip


class TextCodec:
    """A model's tokenizer and chat template; without tokenizer files, a clear refusal.

    Args:
        tokenizer: None where there is none.
        lacking: why there is none, one clause.
        bos_token_id: what an empty prompt becomes where the tokenizer names no id of its own.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        *,
        lacking: str = "",
        bos_token_id: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.lacking = lacking
        self._bos_token_id = bos_token_id

    @staticmethod
    def load(
        folder: Path, *, trust_remote_code: bool = False, bos_token_id: int | None = None
    ) -> TextCodec:
        """Read the tokenizer files in `folder`; their absence is no error."""
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                folder, trust_remote_code=trust_remote_code, local_files_only=True
            )
        except Exception as error:  # noqa: BLE001 - tokenizer classes raise anything; text is optional
            if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
                return TextCodec(None, lacking=f"there are no tokenizer files in {folder}")
            first_line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            return TextCodec(
                None, lacking=f"the tokenizer files in {folder} cannot be read: {first_line}"
            )
        # Some classes make an empty vocabulary of nothing; some (bytes) need no file but a config.
        files = set(tokenizer.vocab_files_names.values()) or {"tokenizer_config.json"}
        if not any((folder / file).is_file() for file in files | {"tokenizer.json"}):
            return TextCodec(None, lacking=f"none of {', '.join(sorted(files))} is in {folder}")
        return TextCodec(tokenizer, bos_token_id=bos_token_id)

    @property
    def has_chat_template(self) -> bool:
        """Whether `messages` can be rendered."""
        return self.tokenizer is not None and bool(self.tokenizer.chat_template)

    def encode_prompt(self, prompt: str) -> list[int]:
        """Return the ids of a plain prompt, with what the tokenizer puts around any text.

        Whoever writes a plain prompt may spell special tokens in it, as in transformers.

        Raises:
            ProtocolError: no tokenizer, or an empty prompt for a model without a first token.
        """
        tokenizer = self._require_tokenizer()
        ids = list(tokenizer(prompt).input_ids)
        if ids:
            return ids
        first = tokenizer.bos_token_id
        if first is None:
            first = self._bos_token_id
        if first is None:
            raise ProtocolError(
                ErrorCode.BAD_FIELD,
                f"'prompt' {prompt!r} gives no tokens and this model has no beginning-of-text "
                "token to start from; send at least one character",
            )
        return [first]

    def encode_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the ids of a chat, up to where the assistant's answer begins.

        The template alone writes special tokens: the tokenizer adds none (so there is exactly
        one beginning-of-text token where the template writes one), and what looks like one in
        a message is encoded as plain characters (so that no message can end its own turn).

        Raises:
            ProtocolError: no tokenizer or template, or messages that the template refuses.
        """
        tokenizer = self._require_tokenizer()
        if not tokenizer.chat_template:
            raise ProtocolError(
                ErrorCode.BAD_FIELD,
                "this model has no chat template, so it cannot take 'messages'; send 'prompt' "
                "for plain completion",
            )
        _check_messages(messages)
        try:
            ids = tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                sanitize_control_tokens=True,
            )
        except Exception as error:
            # The template is a program of the model's: it refuses in its own words
            # (raise_exception), or trips over a shape of message it does not know.
            raise ProtocolError(
                ErrorCode.BAD_FIELD,
                f"the model's chat template refuses the messages: {error or type(error).__name__}; "
                "change their roles or contents to what this model takes",
            ) from error
        return list(ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of the ids exactly: no special tokens, no spaces tidied away.

        Raises:
            ProtocolError: no tokenizer.
        """
        tokenizer = self._require_tokenizer()
        return str(
            tokenizer.decode(
                list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def _require_tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            raise ProtocolError(
                ErrorCode.UNKNOWN_OP,
                f"this worker has no tokenizer ({self.lacking}); put the model's tokenizer files "
                "beside its weights, or send token ids",
            )
        return self.tokenizer


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    if not messages:
        raise ProtocolError(ErrorCode.BAD_FIELD, "'messages' is empty; send at least one message")
    for index, message in enumerate(messages):
        role = message.get("role")
        if not (isinstance(role, str) and _ROLE.fullmatch(role)):
            raise ProtocolError(
                ErrorCode.BAD_FIELD,
                f"'messages'[{index}] has role {role!r:.80}, it must be a word such as 'user', "
                "'assistant' or 'system'",
            )
        if not isinstance(message.get("content"), str | list | None):
            raise ProtocolError(
                ErrorCode.BAD_FIELD,
                f"'messages'[{index}] must have a 'content' that is a string or a list of parts",
            )
        _check_unicode(message, f"'messages'[{index}]")


def _check_unicode(value: Any, where: str) -> None:
    """Refuse half surrogate pairs anywhere in a message: no tokenizer can encode them."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ProtocolError(
                ErrorCode.BAD_FIELD,
                f"{where} must be valid Unicode; character {error.start} is half of a surrogate "
                "pair",
            ) from None
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _check_unicode(key, where)
            _check_unicode(inner, where)
    elif isinstance(value, list):
        for inner in value:
            _check_unicode(inner, where)
