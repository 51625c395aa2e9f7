"""Which parts of a stage are quantized, and which are left alone and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

# Of weights alone, on CPUs; beside bitsandbytes' int8 and nf4.
WEIGHT_ONLY = ("int8-weight", "int4-weight")


@dataclass(frozen=True, slots=True)
class QuantizationChoice:
    """Which parts of a stage are quantized; the same for every cut of a model.

    Attributes:
        quantization: `int8` or `nf4`, `int8-weight` or `int4-weight`.
        linears: module names.
        experts: names of fused expert parameters `[experts, rows, columns]`.
        left: modules or parameters that stay bfloat16 although they would be worth it, and why.
    """

    quantization: str
    linears: tuple[str, ...]
    experts: tuple[str, ...]
    left: tuple[tuple[str, str], ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence for each reason to leave something in bfloat16."""
        reasons = Counter(reason for _, reason in self.left)
        return tuple(
            f"{count} of the weights stay bfloat16 instead of {self.quantization}: {reason} "
            f"({_shown([name for name, why in self.left if why == reason])})."
            for reason, count in reasons.items()
        )

    @property
    def numerics(self) -> dict[str, str]:
        """What decides the bits, for the ready line."""
        if self.quantization in WEIGHT_ONLY:
            library, kernels = "stageline", ", steps in whole numbers, prefill in bfloat16"
        else:
            library, kernels = "bitsandbytes", ""
        found = {"linear": f"{library} {self.quantization}{kernels}"}
        if self.quantization == "int8":
            found["linear"] += ", outlier columns chosen over all rows of an op"
        if self.experts:
            found["experts"] = f"eager, {self.quantization} dequantized one expert at a time"
        return found


def _shown(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
