"""Turn text and chat messages into token ids and back, with the model's own tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from worker.backends.base import TokenBytes
from worker.chat import chat_messages, check_unicode
from worker.model.chat_template import check_options, loops_over_parts, names_variable
from worker.model.vocabulary import token_bytes, tool_template
from worker.protocol.schema import ErrorCode, ProtocolError

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

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template has a place for tools."""
        template = None if self.tokenizer is None else tool_template(self.tokenizer)
        return template is not None and names_variable(template, "tools")

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

    def encode_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the ids of a chat, up to where the assistant's answer begins.

        The template alone writes special tokens: the tokenizer adds none (so there is exactly
        one beginning-of-text token where the template writes one), and what looks like one in
        a message is encoded as plain characters (so that no message can end its own turn).

        Args:
            messages: see `chat_messages`.
            tools: what the template tells the model of, as OpenAI's interface has them.
            template_options: more variables of the template.

        Raises:
            ProtocolError: no tokenizer or template, tools that it has no place for, a reserved
                option, or messages that the template refuses.
        """
        tokenizer = self._require_tokenizer()
        if not tokenizer.chat_template:
            raise ProtocolError(
                ErrorCode.BAD_FIELD,
                "this model has no chat template, so it cannot take 'messages'; send 'prompt' "
                "for plain completion",
            )
        if tools and not self.takes_tools:
            raise ProtocolError(
                ErrorCode.BAD_FIELD,
                "this model's chat template has no place for 'tools'; leave them away, or use a "
                "model that was trained to call tools",
            )
        check_options(template_options or {}, tokenizer)
        check_unicode(tools or (), "'tools'")
        parts_taken = loops_over_parts(tool_template(tokenizer) or "")
        chat = chat_messages(messages, keep_parts=parts_taken)
        try:
            ids = tokenizer.apply_chat_template(
                chat,
                tools=[dict(tool) for tool in tools] if tools else None,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                sanitize_control_tokens=True,
                **(template_options or {}),
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

    def decode(self, tokens: Sequence[int], *, show_special: bool = False) -> str:
        """Return the text of the ids exactly: no spaces tidied away.

        Special tokens are left out, unless they are asked for.

        Raises:
            ProtocolError: no tokenizer.
        """
        tokenizer = self._require_tokenizer()
        return str(
            tokenizer.decode(
                list(tokens),
                skip_special_tokens=not show_special,
                clean_up_tokenization_spaces=False,
            )
        )

    def token_bytes(self, vocab_size: int) -> TokenBytes:
        """Return what each id below `vocab_size` stands for; see `token_bytes`.

        Raises:
            ProtocolError: no tokenizer.
        """
        return token_bytes(self._require_tokenizer(), vocab_size)

    def _require_tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            raise ProtocolError(
                ErrorCode.UNKNOWN_OP,
                f"this worker has no tokenizer ({self.lacking}); put the model's tokenizer files "
                "beside its weights, or send token ids",
            )
        return self.tokenizer
