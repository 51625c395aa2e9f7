"""Write matrix products by rounded weights in LLVM's language, sixteen outputs side by side.

An input of 32 bfloat16 numbers is taken as whole numbers of 15 bits times one power of two: it
loses what is below 2**-14 of the largest of the 32, and nothing where none is less than 1/64 of
it. Products with the levels of weights are then whole numbers, whose sums no order and no
processor rounds; only what follows, once for each group of 32, is floating point, in an order
written down here.
"""

from __future__ import annotations

from dataclasses import dataclass

LANES, TILES = 16, 4
# Outputs that are worked on at a time; fewer are filled up with zeros.
BLOCK = LANES * TILES
# Inputs that share a power of two and, at 4 bits, a scale and a middle: 5 bits a weight. Groups of
# 64 take 4.5, but on SmolLM2 the divergence from bfloat16 was half as large again.
GROUP = 32
# What is kept of a group of inputs: its numbers, then minus the sum that is to be taken away from
# unsigned levels, the power of two, and the sum itself as a float.
RECORD_BYTES = 80
SUM_AT, POWER_AT, TOTAL_AT = 64, 68, 72
VECTOR_BYTES = 64
# Types: floats, words, bytes and halves of 16 lanes.
F, I32 = f"<{LANES} x float>", f"<{LANES} x i32>"
I8, I16 = f"<{4 * LANES} x i8>", f"<{2 * LANES} x i16>"
_NAN_HALF = 0x7FC0
VNNI_DECLARATION = f"declare {I32} @llvm.x86.avx512.vpdpbusd.512({I32}, {I8}, {I8})"
DECLARATIONS = f"""
declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)
declare {F} @llvm.fma.v{LANES}f32({F}, {F}, {F})
declare i16 @llvm.vector.reduce.umax.v{GROUP}i16(<{GROUP} x i16>)
declare i32 @llvm.vector.reduce.add.v{GROUP}i32(<{GROUP} x i32>)
declare i32 @llvm.umax.i32(i32, i32)
declare <{GROUP} x float> @llvm.rint.v{GROUP}f32(<{GROUP} x float>)
"""


@dataclass(frozen=True, slots=True)
class Form:
    """How weights of a kind lie in memory: of 16 outputs, group after group.

    Attributes:
        bits: 4 or 8. Levels are kept as unsigned numbers, four inputs of an output in each word;
            those of 4 bits in low halves first.
        middle: the level that stands for nothing.
        has_scales: whether each group begins with a bfloat16 middle and scale of each output.
    """

    bits: int
    middle: int
    has_scales: bool

    @property
    def vectors(self) -> int:
        """Vectors of levels in a group."""
        return GROUP * self.bits // 32

    @property
    def group_bytes(self) -> int:
        """Bytes of a group of 16 outputs."""
        return VECTOR_BYTES * (self.vectors + self.has_scales)

    def places(self, body: Body, group: str) -> list[str]:
        """Return the addresses of the vectors of levels of a group."""
        return [body.at(group, VECTOR_BYTES * (v + self.has_scales)) for v in range(self.vectors)]


INT4, INT8 = Form(4, 8, True), Form(8, 128, False)


class Body:
    """Lines of a function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0

    def do(self, line: str) -> None:
        """Add a line that names no value of its own."""
        self.lines.append(line)

    def let(self, line: str) -> str:
        """Add a line, and return the name of its value."""
        self._count += 1
        self.lines.append(f"%v{self._count} = {line}")
        return f"%v{self._count}"

    def at(self, base: str, offset: int | str) -> str:
        """Return the address so many bytes on."""
        return self.let(f"getelementptr i8, ptr {base}, i64 {offset}")

    def spread(self, kind: str, value: str, lanes: int = LANES) -> str:
        """Return a vector of one value."""
        vector = f"<{lanes} x {kind}>"
        one = self.let(f"insertelement {vector} poison, {kind} {value}, i32 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.let(f"shufflevector {vector} {one}, {vector} poison, {zeros}")

    def spread_at(self, kind: str, base: str, offset: int) -> str:
        """Return a vector of the one value in memory."""
        return self.spread(kind, self.let(f"load {kind}, ptr {self.at(base, offset)}, align 4"))

    def fma(self, a: str, b: str, c: str) -> str:
        """Return `a * b + c`, rounded once."""
        return self.let(f"call {F} @llvm.fma.v{LANES}f32({F} {a}, {F} {b}, {F} {c})")

    def scale_and_middle(self, base: str) -> tuple[str, str]:
        """Return those of 16 outputs, float32."""
        both = self.let(f"load {I32}, ptr {base}, align 4")
        scale = self.let(f"and {I32} {both}, {same(-65536)}")
        middle = self.let(f"shl {I32} {both}, {same(16)}")
        return tuple(self.let(f"bitcast {I32} {bits} to {F}") for bits in (scale, middle))  # type: ignore[return-value]

    def store_bfloat16(self, value: str, address: str) -> None:
        """Round to bfloat16, ties to even."""
        bits = self.let(f"bitcast {F} {value} to {I32}")
        odd = self.let(f"and {I32} {self.let(f'lshr {I32} {bits}, {same(16)}')}, {same(1)}")
        raised = self.let(f"add {I32} {self.let(f'add {I32} {bits}, {same(32767)}')}, {odd}")
        high = self.let(f"lshr {I32} {raised}, {same(16)}")
        is_nan = self.let(f"fcmp uno {F} {value}, {value}")
        chosen = f"select <{LANES} x i1> {is_nan}, {I32} {same(_NAN_HALF)}, {I32} {high}"
        half = self.let(f"trunc {I32} {self.let(chosen)} to <{LANES} x i16>")
        self.do(f"store <{LANES} x i16> {half}, ptr {address}, align 2")

    def function(self, name: str, arguments: str) -> str:
        """Return the text of a function that gives nothing."""
        return f"define void @{name}({arguments}) {{\n" + "\n".join(self.lines) + "\n}\n"


def same(value: int, kind: str = "i32", lanes: int = LANES) -> str:
    """Write a vector of one number."""
    return "<" + ", ".join([f"{kind} {value}"] * lanes) + ">"
