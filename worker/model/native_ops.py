"""Call compiled functions from TorchScript as ops of torch, without Python in between.

torch's dispatcher can be told the address of a function (`aoti_torch_library_*` in
`torch/csrc/inductor/aoti_torch/c/shim.h`, C names that extensions are built on). An op here takes
the address of a compiled function and some tensors, puts the addresses of their numbers into a
table, and calls the function with it. That takes 0.2 us for three tensors; an op written in Python
takes 10.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

_NAMESPACE = "stageline_native"
_ADDRESS, _ENDED = "aoti_torch_get_data_ptr", "aoti_torch_delete_tensor_object"


class NoNativeOps(Exception):
    """Torch, the compiler or the processor is not as it has to be for them."""


@cache
def native_op(count: int) -> Any:
    """Return the op `(int function, Tensor t0, ...)` of so many tensors; the last is written to.

    For one thread at a time: it is made at the first call.

    Raises:
        NoNativeOps: torch or llvmlite is not as it has to be.
    """
    name = f"run{count}"
    try:
        address = ctypes.c_void_p(_trampoline_of(count).get_function_address(name))
        tensors = "".join(f", Tensor t{i}" for i in range(count - 1))
        schema = f"{name}(int function{tensors}, Tensor(a!) out) -> ()"
        library, fragment, implementation = _library()
        _checked(library.aoti_torch_library_def(fragment, schema.encode()))
        _checked(library.aoti_torch_library_impl(implementation, name.encode(), address))
        return getattr(getattr(torch.ops, _NAMESPACE), name).default
    except Exception as error:
        raise NoNativeOps(f"{type(error).__name__}: {error}") from error


@cache  # torch may call it as long as the process lives
def _trampoline_of(count: int) -> Any:
    return compiled(_trampoline(f"run{count}", count), _shim())


def compiled(text: str, symbols: dict[str, int], features: str = "") -> Any:
    """Compile LLVM assembly for the plainest processor of this kind.

    What the processor's name stands for may be more than its system lets a process use.

    Args:
        text: of a module.
        symbols: addresses of the functions that it calls.
        features: what the processor has beside, as LLVM writes them.

    Returns:
        What has `get_function_address(name)`; the code is there as long as this.
    """
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for name, address in symbols.items():
        llvm.add_symbol(name, address)
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu="", features=features, opt=2, jit=True
    )
    module.triple = llvm.get_process_triple()
    module.data_layout = str(machine.target_data)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


@cache
def _libtorch() -> ctypes.CDLL:
    folder = Path(torch.__file__).parent / "lib"
    paths = [p for p in folder.glob("libtorch_cpu.*") if p.suffix in (".so", ".dylib")]
    return ctypes.CDLL(str(paths[0]))


def _shim() -> dict[str, int]:
    library = _libtorch()
    return {
        name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        for name in (_ADDRESS, _ENDED)
    }


@cache
def _library() -> tuple[ctypes.CDLL, ctypes.c_void_p, ctypes.c_void_p]:
    """Return torch, and what ops of ours are defined in and what they do."""
    library, line = _libtorch(), ctypes.c_uint32(0)
    fragment, implementation = ctypes.c_void_p(), ctypes.c_void_p()
    space, place = _NAMESPACE.encode(), b"native_ops.py"
    _checked(library.aoti_torch_library_init_fragment(space, place, line, ctypes.byref(fragment)))
    _checked(
        library.aoti_torch_library_init_impl(
            space, b"CPU", place, line, ctypes.byref(implementation)
        )
    )
    return library, fragment, implementation


def _trampoline(name: str, count: int) -> str:
    """Write what the dispatcher calls: the arguments lie in a row, tensors as handles of ours."""
    lines = [
        f"declare i32 @{_ADDRESS}(i64, ptr)",
        f"declare i32 @{_ENDED}(i64)",
        f"define void @{name}(ptr %stack, i64 %given, i64 %wanted) {{",
        "  %function = load ptr, ptr %stack",
        f"  %table = alloca [{count} x i64]",
    ]
    for i in range(count):
        lines += [
            f"  %place{i} = getelementptr i64, ptr %stack, i64 {i + 1}",
            f"  %tensor{i} = load i64, ptr %place{i}",
            f"  %into{i} = getelementptr i64, ptr %table, i64 {i}",
            f"  %found{i} = call i32 @{_ADDRESS}(i64 %tensor{i}, ptr %into{i})",
        ]
    lines.append("  call void %function(ptr %table)")
    lines += [f"  %ended{i} = call i32 @{_ENDED}(i64 %tensor{i})" for i in range(count)]
    return "\n".join([*lines, "  ret void", "}", ""])


def _checked(code: int) -> None:
    if code:
        raise NoNativeOps(f"torch's dispatcher answers {code}")
