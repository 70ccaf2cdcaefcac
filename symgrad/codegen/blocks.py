"""Memory of large results: blocks that are kept when an array dies, for the next array like it.

A C library gives large pieces of memory back to the system when they are freed, and the system
gives them out again page by page, each page cleared and mapped at its first touch. For a program
whose results are some megabytes that takes longer than to compute them (derivatives of nine
orders at 100,000 points: 0.3 ms of work, 1.7 ms of page faults). So arrays that compiled programs
return allocate from here, through NumPy's own interface for that (NEP 49): they own their memory
as any array does, and know what frees it.

Two structures, in compiled code, under the GIL:

* a block: 64-aligned memory with a header before it (the words `_LINK`, `_RAW`, `_ROOM`). Each starts
  elsewhere in its page than the last: a loop that reads and writes many arrays at the same distance
  from the start of a page takes up to 5 % longer;
* the list of idle blocks, and the sum of their room, at most `MOST_IDLE` bytes. Beyond, large blocks
  are kept on loan: the system may take their pages back until they are used again.

Start reading at `build`, then `handler`.
"""

from __future__ import annotations

import ctypes
import os
import sys

from symgrad.codegen.arena import ALIGN, PAGE, STAGGER
from symgrad.codegen.entry_body import NULL, ONE, ZERO, Body
from symgrad.codegen.ir import Module, Val, constant

LARGE = 1 << 17
"""Bytes from which a result's memory is kept: what C libraries give back to the system at once."""

MOST_IDLE = 1 << 28
"""Bytes kept idle at most; a freed block that does not fit makes all others go."""


def most_lent() -> int:
    """Bytes kept idle at most where the system may take back what it needs of those beyond `MOST_IDLE`.

    A quarter of the machine's memory, on Linux; elsewhere nothing is kept beyond.
    """
    if sys.platform != "linux":
        return MOST_IDLE
    return max(MOST_IDLE, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)


EXPORTS = ("sg_block_malloc", "sg_block_calloc", "sg_block_realloc", "sg_block_free")

_LINK, _RAW, _ROOM = -1, -2, -3
_HEAD = 2 * ALIGN
_IDLE, _HELD = Val("@sg_blocks_idle", "ptr"), Val("@sg_blocks_held", "ptr")
_STAGGERED = Val("@sg_blocks_staggered", "ptr")

# Linux: the advice to back memory by large pages, which NumPy gives from this size too, and that the
# system may take pages until they are written again.
_HUGE_PAGES, _LEND, _HUGE = 14, 8, 1 << 22
_HUGE_PAGE = 1 << 21


class _Allocator(ctypes.Structure):
    _fields_ = [
        ("context", ctypes.c_void_p),
        *[(name, ctypes.c_void_p) for name in ("malloc", "calloc", "realloc", "free")],
    ]


class _Handler(ctypes.Structure):
    """NumPy's ``PyDataMem_Handler``."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("allocator", _Allocator),
    ]


_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))


def handler(addresses: dict[str, int]) -> tuple[object, object]:
    """NumPy's handle of the functions at these addresses, and the memory it reads.

    Parameters
    ----------
    addresses : dict of str to int
        Of `EXPORTS`; must stay valid for ever, as arrays may outlive all else.
    """
    functions = [addresses[name] for name in EXPORTS]
    memory = _Handler(b"symgrad", 1, _Allocator(None, *functions))
    return _new_capsule(ctypes.addressof(memory), b"mem_handler", None), memory


def build(module: Module, head_bytes: int) -> None:
    """Define the functions that NumPy calls, and `sg_blocks_trim`."""
    module.globals["sg_blocks"] = (
        "@sg_blocks_idle = internal global ptr null, align 8\n"
        "@sg_blocks_held = internal global i64 0, align 8\n"
        "@sg_blocks_staggered = internal global i64 0, align 8"
    )
    _build_malloc(module, head_bytes)
    _build_trim(module, head_bytes)
    _build_free(module, head_bytes)
    _build_others(module, head_bytes)


def _function(
    module: Module, name: str, arguments: list[str], result: str | None, head: int
) -> Body:
    return Body(module, name, arguments, result, head, "nounwind", "")


def _build_malloc(module: Module, head_bytes: int) -> None:
    """An idle block that fits and is not much too large, else a new one."""
    f = _function(module, "sg_block_malloc", ["ptr", "i64"], "ptr", head_bytes)
    size = f.arguments[1]
    most = f.add(size, f.lshr(size, f.index(2)))
    # Where the address of the block looked at is stored: in the list's head, or a block's link.
    place = f.alloca("ptr", align=8)
    f.store(_IDLE, place)
    look, one, fits, onwards, make = [
        f.label(x) for x in ("look", "one", "fits", "onwards", "make")
    ]
    f.branch(look)
    f.start(look)
    holder = f.load(place, "ptr")
    block = f.load(holder, "ptr")
    f.branch_if(f.icmp("eq", block, NULL), make, one)
    f.start(one)
    room = f.word(block, _ROOM)
    enough, close = f.icmp("uge", room, size), f.icmp("ule", room, most)
    f.branch_if(f.and_(enough, close), fits, onwards)
    f.start(onwards)
    f.store(f.at(block, _LINK), place)
    f.branch(look)
    f.start(fits)
    f.store(f.word(block, _LINK, "ptr"), holder)
    f.store(f.sub(f.load(_HELD, "i64"), room), _HELD)
    f.ret(block)
    f.start(make)
    whole = f.and_(f.add(size, f.index(PAGE - 1)), f.index(-PAGE))
    f.leave_if(f.icmp("ugt", size, f.index(2**62)), NULL)
    raw = f.invoke("malloc", "ptr", [f.add(whole, f.index(_HEAD + 2 * PAGE))])
    f.leave_if(f.icmp("eq", raw, NULL), NULL)
    staggered = f.and_(f.add(f.load(_STAGGERED, "i64"), f.index(STAGGER)), f.index(PAGE - 1))
    f.store(staggered, _STAGGERED)
    up = f.add(f.cast("ptrtoint", raw, "i64"), f.index(_HEAD + PAGE - 1))
    fresh = f.cast("inttoptr", f.add(f.and_(up, f.index(-PAGE)), staggered), "ptr")
    f.store(raw, f.at(fresh, _RAW))
    f.store(whole, f.at(fresh, _ROOM))
    if sys.platform == "linux":
        _advise(f, fresh, whole)
    f.ret(fresh)
    f.finish()


def _advise(f: Body, block: Val, room: Val) -> None:
    """Ask for large pages under a very large block; a refusal does no harm."""
    asked = f.icmp("uge", room, f.index(_HUGE))
    f.when(asked, lambda: _tell(f, block, room, _HUGE_PAGES, PAGE))


def _tell(f: Body, block: Val, room: Val, advice: int, page: int) -> Val:
    """Advise the system on the whole pages of a block; zero if it takes the advice."""
    start = f.cast("ptrtoint", block, "i64")
    first = f.and_(f.add(start, f.index(page - 1)), f.index(-page))
    last = f.and_(f.add(start, room), f.index(-page))
    place = f.cast("inttoptr", first, "ptr")
    return f.invoke("madvise", "i32", [place, f.sub(last, first), constant("i32", advice)])


def _build_trim(module: Module, head_bytes: int) -> None:
    """`i64 sg_blocks_trim()` frees the idle blocks and says how many there were."""
    f = _function(module, "sg_blocks_trim", [], "i64", head_bytes)
    freed = f.alloca("i64", align=8)
    f.store(ZERO, freed)
    again, some, done = f.label("again"), f.label("some"), f.label("done")
    f.branch(again)
    f.start(again)
    block = f.load(_IDLE, "ptr")
    f.branch_if(f.icmp("eq", block, NULL), done, some)
    f.start(some)
    f.store(f.word(block, _LINK, "ptr"), _IDLE)
    f.call("free", None, [f.word(block, _RAW, "ptr")])
    f.store(f.add(f.load(freed, "i64"), ONE), freed)
    f.branch(again)
    f.start(done)
    f.store(ZERO, _HELD)
    f.ret(f.load(freed, "i64"))
    f.finish()


def _build_free(module: Module, head_bytes: int) -> None:
    """Put a block first in the list, so that the next array gets memory that is still in the cache."""
    f = _function(module, "sg_block_free", ["ptr", "ptr", "i64"], None, head_bytes)
    block = f.arguments[1]
    most = most_lent()
    some, fits, beyond, lend, make_room, keep, let_go, done = [
        f.label(x)
        for x in ("some", "fits", "beyond", "lend", "make_room", "keep", "let_go", "done")
    ]
    f.branch_if(f.icmp("eq", block, NULL), done, some)
    f.start(some)
    room = f.word(block, _ROOM)
    f.branch_if(f.icmp("ugt", room, f.index(most // 2)), let_go, fits)
    f.start(let_go)
    f.call("free", None, [f.word(block, _RAW, "ptr")])
    f.branch(done)
    f.start(fits)
    held = f.add(f.load(_HELD, "i64"), room)
    f.branch_if(f.icmp("ugt", held, f.index(MOST_IDLE)), beyond, keep)
    f.start(beyond)
    large, little = f.icmp("uge", room, f.index(_HUGE)), f.icmp("ule", held, f.index(most))
    f.branch_if(f.and_(large, little), lend, make_room)
    f.start(lend)
    if sys.platform == "linux":
        # A large page of which a part is lent would be cut into small ones.
        refused = _tell(f, block, room, _LEND, _HUGE_PAGE)
        f.branch_if(f.icmp("eq", refused, constant("i32", 0)), keep, make_room)
    else:
        f.branch(make_room)
    f.start(make_room)
    f.invoke("sg_blocks_trim", "i64", [])
    f.branch(keep)
    f.start(keep)
    f.store(f.load(_IDLE, "ptr"), f.at(block, _LINK))
    f.store(block, _IDLE)
    f.store(f.add(f.load(_HELD, "i64"), room), _HELD)
    f.branch(done)
    f.start(done)
    f.ret()
    f.finish()


def _build_others(module: Module, head_bytes: int) -> None:
    """What NumPy asks for besides: cleared memory, and another size for an array that owns a block."""
    f = _function(module, "sg_block_calloc", ["ptr", "i64", "i64"], "ptr", head_bytes)
    context, count, each = f.arguments
    # NumPy has checked that the product does not overflow.
    size = f.mul(count, each)
    block = f.invoke("sg_block_malloc", "ptr", [context, size])
    f.leave_if(f.icmp("eq", block, NULL), NULL)
    f.invoke("memset", "ptr", [block, constant("i32", 0), size])
    f.ret(block)
    f.finish()

    f = _function(module, "sg_block_realloc", ["ptr", "ptr", "i64"], "ptr", head_bytes)
    context, old, size = f.arguments
    room = f.word(old, _ROOM)
    f.leave_if(f.icmp("ule", size, room), old)
    block = f.invoke("sg_block_malloc", "ptr", [context, size])
    f.leave_if(f.icmp("eq", block, NULL), NULL)
    f.invoke("memcpy", "ptr", [block, old, room])
    f.call("sg_block_free", None, [context, old, room])
    f.ret(block)
    f.finish()
