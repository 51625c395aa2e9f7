"""What a worker says of its flags, in the words of the hosts file that they came from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

# The key of a line -> the worker's flag for it, and what may stand behind that in a sentence.
_FLAGS = {
    "device": ("--device", r"auto|cpu|mps|cuda(?::\d+)?"),
    "quantization": ("--quantization", r"bfloat16|int8-weight|int4-weight|int8|nf4"),
    "engine": ("--engine", r"fast|stock|graphs"),
    "memory": ("--memory-limit", "(?!)"),
}


@dataclass(frozen=True, slots=True)
class LineWords:
    """What one line of a hosts file sets for its worker.

    Attributes:
        name: of the line, `hosts.txt:3`; "" where there is no hosts file.
        keys: `device`, `quantization`, `engine`, `memory` and `env.NAME`, each with the word that
            stands for it in messages.
    """

    name: str = ""
    keys: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def retold(self, sentence: str) -> str:
        """Return a worker's sentence with the keys of the line in place of the flags.

        A key wins over a flag, so a flag would be of no use there.
        """
        concerned: list[str] = []
        for key, word in self.keys.items():
            if key.startswith("env."):
                if re.search(rf"\b{re.escape(key[4:])}\b", sentence):
                    concerned.append(word)
                continue
            flag, values = _FLAGS[key]
            told = re.sub(rf"{flag}(?![\w-])(?: ({values})(?![\w-]))?", rf"{key}=\1", sentence)
            if told != sentence:
                sentence = told
                concerned.append(word)
        if not concerned:
            return sentence
        stand = "stands" if len(concerned) == 1 else "stand"
        words = " and ".join(concerned)
        return f"{sentence}; {words} {stand} in {self.name}, and the line wins: change it there"
