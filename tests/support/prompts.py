"""Prompts as users write them: short, long, code, other scripts, chats."""

from __future__ import annotations

from tests.support.oracle import Question

_PLAIN = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "1, 1, 2, 3, 5, 8, 13,",
    "Q: What is 12 times 12?\nA:",
    "A",
    " ",
    "\n\n",
    "The quick brown fox jumps over the lazy dog. " * 3,
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "#include <stdio.h>\n\nint main(void) {\n\tprintf(",
    "SELECT name, COUNT(*) FROM users WHERE age > 30 GROUP BY",
    '{"name": "Alice", "tags": ["a", "b"], "next":',
    "<html>\n  <head>\n    <title>",
    "今日はとても良い天気ですね。明日は",
    "人工智能正在改变世界，因为",
    "오늘의 날씨는",
    "Příliš žluťoučký kůň úpěl ďábelské",
    "Съешь же ещё этих мягких французских",
    "مرحبا بالعالم، اليوم",
    "I love my 🦙 and my family 👨‍👩‍👧‍👦! Today we",
    "🎉🎉🎉 party time 🎉🎉🎉",
    "E = mc^2 and \\frac{a}{b} = \\int_0^1 x^2 dx, so",
    "Zażółć gęślą jaźń; naïve café — “quotes” … and",
    "\tTabs\tand   many    spaces     then",
    "Mixed 中文 and English и русский text:",
    "0x7f 0b1010 1e-9 3.14159 2,718",
    "What is the difference between a cat and",
)

_CHATS = (
    [{"role": "user", "content": "Hi!"}],
    [{"role": "user", "content": "Name three colours, separated by commas."}],
    [
        {"role": "system", "content": "You answer in one word."},
        {"role": "user", "content": "What is the opposite of hot?"},
    ],
    [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Nice to meet you, Ada!"},
        {"role": "user", "content": "What is my name? 🙂"},
    ],
    [{"role": "user", "content": "Write a haiku about 雪."}],
)

_STORY = (
    "In the year {year} the keeper of the lighthouse wrote in his log that the wind had turned to "
    "the north and that {ships} ships lay in the bay, waiting for the tide and for better news. "
)
# 650 to 850 tokens: three to four prefill chunks of 256.
_LONG = (
    "".join(_STORY.format(year=1800 + i, ships=i % 7 + 2) for i in range(15)) + "The next year",
    "Summarize:\n" + "\n".join(f"{i}. item {i} costs {i * 37 % 101} crowns" for i in range(1, 62)),
    "".join(f"def f{i}(x):\n    return x * {i} + {i * i}\n\n\n" for i in range(32)) + "def f32(",
)


def questions(max_new_tokens: int) -> list[Question]:
    """Return all prompts, the long ones first."""
    plain = [Question(prompt=p, max_new_tokens=max_new_tokens) for p in (*_LONG, *_PLAIN)]
    chats = [Question(messages=m, max_new_tokens=max_new_tokens) for m in _CHATS]
    long_chat = [{"role": "user", "content": _LONG[0] + " — what happened, in short?"}]
    return [*plain, *chats, Question(messages=long_chat, max_new_tokens=max_new_tokens)]
