"""What a model costs by layer and by role, as a survey tells it and a plan reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


class CostsUnreadable(ValueError):
    """The costs in an event are not of the form that this version knows; one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCost:
    """What a stage of one role needs besides its layers, in bytes.

    Attributes:
        weights_bytes: what is held: embedding, final norm, head.
        read_bytes: what of that one decode step reads.
        running_bytes: most live temporaries of a forward of one prefill chunk.
        loading_bytes: most temporaries while weights stream in.
        process_bytes: libraries and tokenizer that are not resident before loading.
    """

    weights_bytes: int
    read_bytes: int
    running_bytes: int
    loading_bytes: int
    process_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedCost:
    """A model at one quantization; `whole` is the role of a stage that is first and last.

    Attributes:
        layer_weights_bytes: by layer, what is held.
        layer_read_bytes: by layer, what one decode step reads: of experts, the chosen ones.
    """

    layer_weights_bytes: tuple[int, ...]
    layer_read_bytes: tuple[int, ...]
    first: RoleCost
    middle: RoleCost
    last: RoleCost
    whole: RoleCost


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSize:
    """Tensors that are fetched and kept together: their bytes and the files that hold them."""

    size_bytes: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCosts:
    """Everything about a model that a plan needs.

    Attributes:
        layer_kv_bytes: by layer, the cache of one request at the surveyed context.
        layer_groups: by layer, the names of the groups that hold its tensors.
        first_groups, last_groups: the same for what the first and the last stage hold besides.
        groups: the groups by name.
        quantizations: by quantization that this host can load.
        unavailable: the others, each with the reason.
        cuts: the layers that a stage after the first may start at; None is any.
    """

    layer_kv_bytes: tuple[int, ...]
    layer_groups: tuple[tuple[str, ...], ...]
    first_groups: tuple[str, ...]
    last_groups: tuple[str, ...]
    groups: Mapping[str, GroupSize]
    quantizations: Mapping[str, QuantizedCost]
    unavailable: Mapping[str, str]
    cuts: tuple[int, ...] | None = None

    @property
    def num_layers(self) -> int:
        """How many layers the model has."""
        return len(self.layer_kv_bytes)

    def to_fields(self) -> dict[str, Any]:
        """Return the costs as decoded JSON."""
        fields: dict[str, Any] = asdict(self)
        return fields

    @staticmethod
    def from_fields(fields: Any) -> ModelCosts:
        """Read decoded JSON; fields of later versions are ignored.

        Raises:
            CostsUnreadable: something is missing, or is no size.
        """
        try:
            costs = ModelCosts(
                layer_kv_bytes=_sizes(fields["layer_kv_bytes"]),
                layer_groups=tuple(_names(names) for names in fields["layer_groups"]),
                first_groups=_names(fields["first_groups"]),
                last_groups=_names(fields["last_groups"]),
                groups={
                    _name(name): GroupSize(
                        size_bytes=_size(group["size_bytes"]), files=_names(group["files"])
                    )
                    for name, group in fields["groups"].items()
                },
                quantizations={
                    _name(name): _quantized(cost) for name, cost in fields["quantizations"].items()
                },
                unavailable={
                    _name(name): _name(reason) for name, reason in fields["unavailable"].items()
                },
                cuts=None if fields.get("cuts") is None else _sizes(fields["cuts"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise CostsUnreadable(f"the costs of a survey cannot be read ({error!r})") from None
        costs._check()
        return costs

    def _check(self) -> None:
        count = self.num_layers
        lengths = {len(self.layer_groups)}
        for cost in self.quantizations.values():
            lengths |= {len(cost.layer_weights_bytes), len(cost.layer_read_bytes)}
        used = {*self.first_groups, *self.last_groups}.union(*self.layer_groups)
        if count == 0 or lengths != {count}:
            raise CostsUnreadable(
                f"the costs of a survey name {count} layers by their cache and "
                f"{sorted(lengths)} by their weights"
            )
        if not used <= set(self.groups):
            raise CostsUnreadable(
                f"the costs of a survey give no size for {min(used - set(self.groups))}"
            )


def _quantized(fields: Any) -> QuantizedCost:
    return QuantizedCost(
        layer_weights_bytes=_sizes(fields["layer_weights_bytes"]),
        layer_read_bytes=_sizes(fields["layer_read_bytes"]),
        **{role: _role(fields[role]) for role in ("first", "middle", "last", "whole")},
    )


def _role(fields: Any) -> RoleCost:
    return RoleCost(**{name: _size(fields[name]) for name in RoleCost.__dataclass_fields__})


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no size in bytes")
    return value


def _sizes(values: Any) -> tuple[int, ...]:
    return tuple(_size(value) for value in values)


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _names(values: Any) -> tuple[str, ...]:
    return tuple(_name(value) for value in values)
