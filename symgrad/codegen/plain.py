"""Loops of a nest that reduces nothing, and of a cumulative one.

One structure, `PlainLoops`. Where whole vectors need no masks they have a loop of their own. Where
lanes go to lines apart, several steps of the axis along these lines are done together, and what
they store is transposed in registers. Start reading at `PlainLoops.emit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from symgrad.codegen.filling import Filler
from symgrad.codegen.ir import Val, constant, i64, lanes
from symgrad.codegen.reduction import Reduction
from symgrad.codegen.transposition import SIZES

if TYPE_CHECKING:
    from symgrad.codegen.loops import Loop, LoopEmitter


class PlainLoops:
    """Emits the loops of a nest in mode "plain", "running" or "scatter", inside a `LoopEmitter`."""

    def __init__(self, emitter: LoopEmitter) -> None:
        self.e = emitter
        self.f = emitter.f
        self.layout = emitter.layout

    def emit(self) -> None:
        """The loops, outermost first, and what they do."""
        e, layout = self.e, self.layout
        if self._clears():
            self._clear()
            return
        if layout.row:
            # Outside of the loops, so that what all rows share is there once.
            e.enter(layout.vector, i64(0))
            if layout.row < e.width:
                e.set_lane_mask(i64(layout.row), masked=True)
                e.lane_mask = lanes("i1", [k < layout.row for k in range(e.width)])
        axes = [a for a in layout.order if not (layout.row and a == layout.vector)]
        if layout.across in axes:
            self._blocks(axes)
        else:
            self._nested(axes)

    def _range(self, axis: int) -> tuple[Val, Val]:
        """The part of an axis that is to be done."""
        end = self.e.parameter(("size", axis))
        if axis == self.layout.chunked and self.layout.mode != "scatter":
            return self.e.chunk_range(end)
        return i64(0), end

    def _nested(self, axes: list[int]) -> None:
        e, layout = self.e, self.layout
        filler = Filler(e) if e.nest.filled is not None else None
        opened: list[Loop] = []
        filled: list[Val] = []
        for axis in axes:
            if layout.mode == "running" and axis == e.nest.axis:
                break
            start, end = self._range(axis)
            if layout.peeled and axis == layout.vector:
                self._peeled(start, end)
                break
            step = e.width if axis == layout.vector else 1
            first = [filler.begin()] if filler is not None and not opened else []
            loop = e.open(axis, start, end, step, first)
            if filler is not None and not opened:
                filled = [filler.advance(loop.carried[0], loop.iv)]
            opened.append(loop)
            if axis == layout.vector:
                e.set_lane_mask(end)
        if layout.mode == "running":
            Reduction(e).run_along()
        elif not layout.peeled:
            self._body()
        for loop in reversed(opened):
            e.close(loop, filled if loop is opened[0] else [])
        if filler is not None:
            filler.finish(filled[0])

    def _body(self) -> None:
        self.e.instructions()
        self.e.stores.store_all()

    def _peeled(self, start: Val, end: Val) -> None:
        """Whole vectors in a loop without masks, then what is left."""
        e, axis = self.e, self.layout.vector
        middle = self._whole(start, end, e.width)
        for first, stop in ((start, middle), (middle, end)):
            loop = e.open(axis, first, stop, e.width, guarded=True)
            e.set_lane_mask(None if stop is middle else end, masked=True)
            self._body()
            e.close(loop)

    def _whole(self, start: Val, end: Val, step: int) -> Val:
        """Where the last whole step of a range ends."""
        return self.f.add(start, self.f.and_(self.f.sub(end, start), i64(-step)))

    # -- blocks -----------------------------------------------------------------------

    def _blocks(self, axes: list[int]) -> None:
        """Loops whose innermost one, along the axis `across`, does several steps at a time."""
        e, axis, inner = self.e, axes[0], axes[1:]
        start, end = self._range(axis)
        if axis == self.layout.vector:
            middle = self._whole(start, end, e.width)
            for first, stop in ((start, middle), (middle, end)):
                loop = e.open(axis, first, stop, e.width, guarded=True)
                e.set_lane_mask(None if stop is middle else end, masked=True)
                self._blocks(inner)
                e.close(loop)
                e.forget(axis)
        elif inner:
            loop = e.open(axis, start, end, 1)
            self._blocks(inner)
            e.close(loop)
        elif e.lane_mask is not None and not self.layout.row:
            loop = e.open(axis, start, end, 1)
            self._body()
            e.close(loop)
        else:
            for size in (*SIZES, 1):
                stop = self._whole(start, end, size)
                loop = e.open(axis, start, stop, size, guarded=True)
                self._block(axis, size)
                e.close(loop)
                e.forget(axis)
                start = stop

    def _block(self, axis: int, size: int) -> None:
        """Some steps along an axis, and what they store together."""
        e, stores = self.e, self.e.stores
        places = [place for places in self.layout.columns for place in places]
        values: dict[int, list[Val]] = {place: [] for place in places}
        for step in range(size):
            e.go_ahead(axis, step)
            e.instructions()
            stores.store_near()
            for place in places:
                values[place].append(stores.value_apart(place))
        e.go_ahead(axis, 0)
        for place in places:
            stores.store_block(values[place], place)

    # -- zeros ------------------------------------------------------------------------

    def _clears(self) -> bool:
        """Whether the nest only fills consecutive memory with zeros."""
        nest = self.e.nest
        if self.layout.mode != "plain" or len(nest.sizes) != 1:
            return False
        for output in nest.outputs:
            inst = nest.insts[output.insts[0]]
            # By its bits: -0.0 is none.
            zero = inst.kind == "constant" and not any(
                np.array(inst.value, inst.dtype.numpy).tobytes()
            )
            if not zero or output.scattered or output.offset.coefficient(0) != 1:
                return False
        return True

    def _clear(self) -> None:
        """Zeros by the C library, which knows how to align its stores."""
        e, f = self.e, self.f
        start, end = self._range(self.layout.order[0])
        f.module.declare("llvm.memset.p0.i64", "void", ["ptr", "i8", "i64", "i1"])
        for output in e.nest.outputs:
            dtype = output.target.dtype
            memory = "i8" if dtype.kind == "i1" else dtype.kind
            offset, _ = e.scalar_offset(output.offset)
            row = f.gep(e.base(output.target), f.add(offset, start), memory)
            size = f.mul(f.sub(end, start), constant("i64", dtype.itemsize))
            f.do(f"call void @llvm.memset.p0.i64({row}, i8 0, {size}, i1 false)")
