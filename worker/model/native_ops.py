"""Call compiled functions from TorchScript as ops of torch, without Python in between.

torch's dispatcher can be told the address of a function (`aoti_torch_library_*` in
`torch/csrc/inductor/aoti_torch/c/shim.h`, C names that extensions are built on). An op here takes
the address of a compiled function and some tensors, puts the addresses of their numbers into a
table, with sizes and strides that the function asks for, and calls the function with it. That takes
0.2 us for three tensors; an op written in Python takes 10.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

_NAMESPACE = "stageline_native"
_ADDRESS, _ENDED = "aoti_torch_get_data_ptr", "aoti_torch_delete_tensor_object"
_SIZE, _STRIDE = "aoti_torch_get_size", "aoti_torch_get_stride"
# Of a tensor, by its number: what of it, and of which dimension.
Form = tuple[int, Literal["size", "stride"], int]


class NoNativeOps(Exception):
    """Torch, the compiler or the processor is not as it has to be for them."""


@cache
def native_op(count: int, forms: tuple[Form, ...] = (), numbers: int = 0) -> Any:
    """Return the op `(int function, Tensor t0, ..., int n0, ...)`; the last tensor is written to.

    The table of the function holds the addresses of the tensors, then `forms`, then the numbers.
    For one thread at a time: it is made at the first call.

    Args:
        count: of tensors.
        forms: sizes and strides that the function needs.
        numbers: how many whole numbers it takes beside.

    Raises:
        NoNativeOps: torch or llvmlite is not as it has to be.
    """
    name = "_".join(["run", str(count), *(f"{t}{what}{dim}" for t, what, dim in forms)])
    name += f"_{numbers}"
    try:
        code = _trampoline_of(name, count, forms, numbers)
        address = ctypes.c_void_p(code.get_function_address(name))
        tensors = "".join(f", Tensor t{i}" for i in range(count - 1))
        more = "".join(f", int n{i}" for i in range(numbers))
        schema = f"{name}(int function{tensors}, Tensor(a!) out{more}) -> ()"
        library, fragment, implementation = _library()
        _checked(library.aoti_torch_library_def(fragment, schema.encode()))
        _checked(library.aoti_torch_library_impl(implementation, name.encode(), address))
        return getattr(getattr(torch.ops, _NAMESPACE), name).default
    except Exception as error:
        raise NoNativeOps(f"{type(error).__name__}: {error}") from error


@cache  # torch may call it as long as the process lives
def _trampoline_of(name: str, count: int, forms: tuple[Form, ...], numbers: int) -> Any:
    return compiled(_trampoline(name, count, forms, numbers), _shim())


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
        for name in (_ADDRESS, _ENDED, _SIZE, _STRIDE)
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


def _trampoline(name: str, count: int, forms: tuple[Form, ...], numbers: int) -> str:
    """Write what the dispatcher calls: the arguments lie in a row, tensors as handles of ours."""
    lines = [
        f"declare i32 @{_ADDRESS}(i64, ptr)",
        f"declare i32 @{_ENDED}(i64)",
        f"declare i32 @{_SIZE}(i64, i64, ptr)",
        f"declare i32 @{_STRIDE}(i64, i64, ptr)",
        f"define void @{name}(ptr %stack, i64 %given, i64 %wanted) {{",
        "  %function = load ptr, ptr %stack",
        f"  %table = alloca [{count + len(forms) + numbers} x i64]",
    ]
    for i in range(count):
        lines += [
            f"  %place{i} = getelementptr i64, ptr %stack, i64 {i + 1}",
            f"  %tensor{i} = load i64, ptr %place{i}",
            f"  %into{i} = getelementptr i64, ptr %table, i64 {i}",
            f"  %found{i} = call i32 @{_ADDRESS}(i64 %tensor{i}, ptr %into{i})",
        ]
    for i, (tensor, what, dim) in enumerate(forms):
        asked = f"i64 %tensor{tensor}, i64 {dim}, ptr %form_at{i}"
        lines += [
            f"  %form_at{i} = getelementptr i64, ptr %table, i64 {count + i}",
            f"  %form{i} = call i32 @{_SIZE if what == 'size' else _STRIDE}({asked})",
        ]
    for i in range(numbers):
        lines += [
            f"  %number_place{i} = getelementptr i64, ptr %stack, i64 {count + 1 + i}",
            f"  %number{i} = load i64, ptr %number_place{i}",
            f"  %number_at{i} = getelementptr i64, ptr %table, i64 {count + len(forms) + i}",
            f"  store i64 %number{i}, ptr %number_at{i}",
        ]
    lines.append("  call void %function(ptr %table)")
    lines += [f"  %ended{i} = call i32 @{_ENDED}(i64 %tensor{i})" for i in range(count)]
    return "\n".join([*lines, "  ret void", "}", ""])


def _checked(code: int) -> None:
    if code:
        raise NoNativeOps(f"torch's dispatcher answers {code}")
