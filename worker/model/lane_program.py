"""Compile the products by rounded weights for this processor, and call them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from worker.model import team_text
from worker.model.errors import UnsupportedModel
from worker.model.lane_inputs import prepare
from worker.model.lane_products import SHAPES, dot_any, dot_vnni, rows
from worker.model.lane_shares import shares
from worker.model.lane_text import (
    BLOCK,
    DECLARATIONS,
    GROUP,
    LANES,
    RECORD_BYTES,
    TILES,
    VNNI_DECLARATION,
    Form,
)
from worker.model.lane_weights import unpack

_VNNI = ("avx512f", "avx512bw", "avx512vnni")
_MAPS = Path("/proc/self/maps")


class LaneProgram:
    """The products by weights of one form, as code of this processor.

    Attributes:
        form: of the weights.
        step_address: of what `lane_op.op_of_step` calls.
    """

    def __init__(self, form: Form, features: Sequence[str] | None = None) -> None:
        """Compile; a quarter of a second of processor time.

        Args:
            form: of the weights.
            features: what the processor is taken to have, by names of LLVM; None: all it has.
        """
        self.form = form
        self._engine = _compiled(form, features)
        address = self._engine.get_function_address
        self.step_address: int = address("step")
        self._run_steps, self._run_weights = (
            ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * count)(address(name))
            for name, count in (("run_steps", 10), ("run_weights", 6))
        )

    def step(
        self, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, threads: int
    ) -> torch.Tensor:
        """Return `[rows, outputs]` for rows `[rows, inputs]`, bfloat16, each as if it were alone.

        `weight` is as `lane_packing` makes it; `scales` float32 `[outputs]`, where the
        form has none.
        """
        count, inputs = x.shape
        blocks = len(weight) // TILES
        records = torch.empty(records_bytes(count, inputs), dtype=torch.uint8)
        y = torch.empty(count, blocks * BLOCK, dtype=torch.bfloat16)
        self._run_steps(
            weight.data_ptr(),
            scales.data_ptr(),
            x.data_ptr(),
            records.data_ptr(),
            y.data_ptr(),
            inputs // GROUP,
            count,
            2 * BLOCK * blocks,
            blocks,
            threads,
        )
        return y

    def weights(self, weight: torch.Tensor, out: torch.Tensor, first: int, threads: int) -> None:
        """Fill `out`, bfloat16 `[inputs, outputs]`, with the weights from output `first` on.

        Both are whole blocks. Levels of 8 bits are left unscaled.
        """
        groups, blocks = len(out) // GROUP, out.shape[1] // BLOCK
        skipped = first // LANES * groups * self.form.group_bytes
        start = weight.data_ptr() + skipped
        self._run_weights(start, out.data_ptr(), groups, 2 * out.stride(0), blocks, threads)


def records_bytes(rows: int, inputs: int) -> int:
    """Return the bytes of what is kept of some rows while they are multiplied."""
    return rows * inputs // GROUP * RECORD_BYTES


@cache  # compiled once for all the layers of a process
def program(form: Form) -> LaneProgram:
    """Return the program of this processor.

    Raises:
        UnsupportedModel: llvmlite is of another version, or cannot compile here.
    """
    try:
        return LaneProgram(form)
    except Exception as error:
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise UnsupportedModel(
            f"llvmlite {version('llvmlite')} cannot compile the kernels of int8-weight and "
            f"int4-weight here ({reason[0]}); run `pip install 'llvmlite~=0.50.0'` or use "
            "--quantization bfloat16"
        ) from error


def _compiled(form: Form, features: Sequence[str] | None) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    known = _features(llvm)
    has = {name for name, is_there in known.items() if is_there}
    lacking = known.keys() - has
    if features is not None:
        has &= set(features)
    team = team_addresses()
    for name, address in team.items():
        llvm.add_symbol(name, address)
    module = llvm.parse_assembly(_text(form, has.issuperset(_VNNI), bool(team)))
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu="" if features is not None else llvm.get_host_cpu_name(),
        # By its name alone a processor may be taken to have what its system keeps from processes.
        features=",".join([*(f"+{n}" for n in sorted(has)), *(f"-{n}" for n in sorted(lacking))]),
        opt=2,
        jit=True,
    )
    module.triple = llvm.get_process_triple()
    module.data_layout = str(machine.target_data)
    # what is repeated is written out already
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_unrolling = tuning.loop_vectorization = tuning.slp_vectorization = False
    passes = llvm.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


def _text(form: Form, has_vnni: bool, has_team: bool) -> str:
    dot = dot_vnni if has_vnni else dot_any
    return "\n".join(
        (
            DECLARATIONS,
            VNNI_DECLARATION * has_vnni,
            prepare(form, is_split=has_vnni),
            *(rows(form, dot, count, tiles) for count, tiles in SHAPES),
            unpack(form),
            shares(form, has_team=has_team),
        )
    )


def _features(llvm: Any) -> dict[str, bool]:
    try:
        found: dict[str, bool] = llvm.get_host_cpu_features()
    except RuntimeError:  # Not known of this processor: then none that may lack is used.
        return {}
    return found


def team_addresses() -> dict[str, int]:
    """Return where the functions of torch's own OpenMP threads are; nothing where not found."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return {}
    paths = {line.split(maxsplit=5)[-1] for line in lines if "/libgomp" in line}
    site = str(Path(torch.__file__).parent.parent)
    for path in sorted(paths, key=lambda path: (not path.startswith(site), path)):
        try:
            library = ctypes.CDLL(path)
        except OSError:  # Such as one that was replaced while this process runs.
            continue
        if all(hasattr(library, name) for name in team_text.SYMBOLS):
            return {name: _address(getattr(library, name)) for name in team_text.SYMBOLS}
    return {}


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
