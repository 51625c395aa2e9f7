"""Timelines drawn with characters, and their figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from tools.bench.rounds import spread
from tools.bench.timeline_take import Take, covered, idle_in

COLUMNS = 84
_LEVELS = "·▁▂▃▄▅▆▇█"

Takes = Mapping[str, Sequence[Take]]


def middle(takes: Sequence[Take]) -> Take:
    """Return the take whose whole time is the median one (the lower of two)."""
    return sorted(takes, key=lambda take: take.whole_ms)[(len(takes) - 1) // 2]


def longest_ms(found: Takes) -> float:
    """Return the whole time of the longest take that is drawn."""
    return max(middle(takes).whole_ms for takes in found.values())


def close_up(found: Takes, tokens: int = 4) -> tuple[dict[str, float], float]:
    """Return where to look at decoding closely: a begin for each way, and one width, in ms."""
    takes = {name: middle(all_takes) for name, all_takes in found.items()}
    first = next(iter(takes.values()))
    width_ms = tokens * 1e3 / max(first.decode_tokens_per_s, 1e-6)
    begins = {
        name: max(take.prompts_end_ms, (take.prompts_end_ms + take.end_ms - width_ms) / 2)
        for name, take in takes.items()
    }
    return begins, width_ms


def picture(take: Take, begin_ms: float, column_ms: float, columns: int) -> list[str]:
    """Return a line for each stage: how much of each column's time it computed."""
    lines = []
    for stage in stages_of(take):
        busy = take.busy(stage)
        shares = [
            covered(busy, begin_ms + i * column_ms, begin_ms + (i + 1) * column_ms)
            for i in range(columns)
        ]
        lines.append(f"  stage {stage} {''.join(map(_block, shares))}")
    return lines


def _block(share: float) -> str:
    """Return a block that is as high as the share; anything above 0 shows."""
    return _LEVELS[0] if share <= 0 else _LEVELS[max(1, round(share * (len(_LEVELS) - 1)))]


def stages_of(take: Take) -> list[int]:
    """Return the stages that did anything."""
    return sorted({span.stage for span in take.spans})


def drawn(found: Takes) -> str:
    """Return the pictures of all ways: as a whole on one scale, then decoding closely."""
    column_ms = longest_ms(found) / COLUMNS
    lines = [f"One column is {column_ms:.1f} ms; | is where every request had its first token."]
    for name, takes in found.items():
        take = middle(takes)
        columns = max(1, round(take.whole_ms / column_ms))
        at = round(take.prompt_ms / column_ms)
        lines += ["", name, f"          {' ' * at}|"]
        lines += picture(take, take.begin_ms, column_ms, columns)
    begins, width_ms = close_up(found)
    lines += [
        "",
        f"Decoding closely: {width_ms:.0f} ms, one column is {width_ms / COLUMNS:.2f} ms.",
    ]
    for name, takes in found.items():
        lines += ["", name]
        lines += picture(middle(takes), begins[name], width_ms / COLUMNS, COLUMNS)
    return "\n".join(lines)


def table(found: Takes) -> str:
    """Return the figures: medians over the rounds, lowest and highest in brackets."""
    lines = ["| | until all first tokens, ms | then tokens/s | in all, ms | in all, tokens/s |"]
    lines.append("|---|---|---|---|---|")
    for name, takes in found.items():
        cells = (
            spread([take.prompt_ms for take in takes], 0),
            spread([take.decode_tokens_per_s for take in takes], 1),
            spread([take.whole_ms for take in takes], 0),
            spread([take.tokens_per_s for take in takes], 1),
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| | stage | prompts: busy | longest gap, ms | decoding: busy | median gap, ms |"]
    lines.append("|---|---|---|---|---|---|")
    for name, takes in found.items():
        for stage in stages_of(takes[0]):
            lines.append(f"| {name} | {stage} | {' | '.join(_idle_cells(takes, stage))} |")
    return "\n".join(lines)


def _idle_cells(takes: Sequence[Take], stage: int) -> tuple[str, ...]:
    prompts = [idle_in(t.busy(stage), t.begin_ms, t.prompts_end_ms) for t in takes]
    decoding = [idle_in(t.busy(stage), t.prompts_end_ms, t.end_ms) for t in takes]
    return (
        _percent([idle.busy_share for idle in prompts]),
        spread([idle.longest_gap_ms for idle in prompts], 0),
        _percent([idle.busy_share for idle in decoding]),
        spread([idle.median_gap_ms for idle in decoding], 1),
    )


def _percent(shares: Sequence[float]) -> str:
    return f"{median(shares):.0%} ({min(shares):.0%}-{max(shares):.0%})"
