"""Zeros written ahead of the stores of a nest, cache line by cache line.

One structure, `Filler`. The first and the last vector of the buffer are written before anything
else, wherever they lie; between them whole lines are, as far ahead as the next stores reach.
Start reading at `Filler.advance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from symgrad.codegen.gemm_tile import least
from symgrad.codegen.ir import Val, constant, i64

if TYPE_CHECKING:
    from symgrad.codegen.loops import LoopEmitter

LINE = 64


class Filler:
    """Emits the zeros of a nest that fills a buffer (`Nest.filled`)."""

    def __init__(self, emitter: LoopEmitter) -> None:
        self.emitter = emitter
        self.f = emitter.f
        target = emitter.nest.filled
        assert target is not None
        self.size = target.dtype.itemsize
        self.base = emitter.base(target)
        self.total = emitter.parameter("filled bytes")
        self.zeros = constant("i64", 0, LINE // 8)
        self.end: Val | None = None

    def begin(self) -> Val:
        """Write the ends of the buffer; how many bytes are filled from its start on."""
        f = self.f
        address = f.cast("ptrtoint", self.base, "i64")
        inside = i64(LINE - 1)
        last = f.gep(self.base, f.sub(self.total, i64(LINE)), "i8")
        for place in (self.base, last):
            f.store(self.zeros, place, align=1)
        self.end = f.sub(self.total, f.and_(f.add(address, self.total), inside))
        return f.sub(i64(LINE), f.and_(address, inside))

    def advance(self, filled: Val, position: Val) -> Val:
        """Fill as far as the stores at a position of the outermost loop reach."""
        f, emitter = self.f, self.emitter
        reach: Val | None = None
        for place in range(len(emitter.nest.outputs)):
            ahead = f.mul(position, emitter.parameter(("ahead step", place)))
            ahead = f.add(ahead, emitter.parameter(("ahead", place)))
            reach = ahead if reach is None else f.intrinsic("smax", "i64", 1, [reach, ahead])
        assert reach is not None and self.end is not None
        return self._fill(filled, least(f, f.mul(reach, i64(self.size)), self.end))

    def finish(self, filled: Val) -> None:
        """Fill what is left."""
        assert self.end is not None
        self._fill(filled, self.end)

    def _fill(self, filled: Val, end: Val) -> Val:
        f = self.f
        body, done = f.label("fill"), f.label("filled")
        origin = f.here()
        f.branch_if(f.icmp("slt", filled, end), body, done)
        f.start(body)
        at = f.phi("i64")
        f.store(self.zeros, f.gep(self.base, at[0], "i8"), align=LINE)
        following = f.add(at[0], i64(LINE))
        f.set_phi(at, [(filled, origin), (following, body)])
        f.branch_if(f.icmp("slt", following, end), body, done)
        f.start(done)
        reached = f.phi("i64")
        f.set_phi(reached, [(filled, origin), (following, body)])
        return reached[0]
