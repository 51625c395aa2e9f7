"""The subcommand `orchestrator chat`."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.chat.options import ChatOptions, add_options, read_options
from orchestrator.subcommand import Subcommand


def _chat(options: ChatOptions, command: Sequence[str]) -> int:
    from orchestrator.chat.chat import chat

    return chat(options, command)


CHAT = Subcommand(
    name="chat",
    short="chat in the terminal",
    about="""\
Start one worker for each stage, keep them warm and chat: at a terminal, or with a question on each
line of stdin. stdout gets the answers and nothing else; /help tells the commands of a chat.""",
    usage="%(prog)s (--hosts FILE | --local N | --slurm) (--model-id ID | --stub) [options]",
    add_options=add_options,
    read_options=read_options,
    run=_chat,
)
