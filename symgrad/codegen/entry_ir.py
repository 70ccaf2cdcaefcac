"""The one compiled function behind every call from Python, as LLVM IR.

``ptr sg_call(ptr descriptor, ptr args, i64 nargs, ptr kwnames)`` has the calling convention of
a CPython vectorcall and is compiled once for all programs. What to check, to allocate, to run
and to return is data, laid out as `symgrad.codegen.entry_body` says.

Three structures:

* the *descriptor*: counts, and addresses of tables of records.
* a *record*: one step. Input records check an object and put its address into the slot table,
  output records allocate, build records make the objects that the call returns.
* the *frame*: slots, scalar cells, the objects met in the arguments, and the results; on the
  stack when small. Objects are numbered so that a container's children are neighbours, hence
  nested containers need neither recursion nor a stack.

An argument that does not match calls the Python fallback with the same arguments.
Only public symbols of the Python process are called; ``ob_type`` and NumPy's documented
array fields are read in place. Start reading at `_build_call`.
"""

from __future__ import annotations

from symgrad.codegen import blocks
from symgrad.codegen import entry_body as lay
from symgrad.codegen.entry_body import NO, NULL, ONE, YES, ZERO, Body
from symgrad.codegen.entry_walk import build_apart, build_walk
from symgrad.codegen.ir import Module, Val, constant

NEW_FROM_DESCR = "sg_PyArray_NewFromDescr"
SET_HANDLER = "sg_PyDataMem_SetHandler"
DEFAULT_HANDLER = "sg_PyDataMem_DefaultHandler"
OWN_HANDLER = "sg_handler"
PASSES = ("always_inliner", "sroa", "simplify_cfg", "instruction_combine", "simplify_cfg")

_ARENA_ALIGN = 64


def build(head_bytes: int) -> Module:
    """The module that defines `sg_call`, `sg_entry`, `sg_execute`, `sg_trim` and blocks.

    Parameters
    ----------
    head_bytes : int
        ``object.__basicsize__`` of the running Python.

    Returns
    -------
    Module
        Ready to be compiled; the same text for every program and process.
    """
    module = Module()
    module.globals["sg_arenas"] = (
        f"@sg_arenas = internal global [{lay.ARENA_CLASSES} x ptr] zeroinitializer, align 64"
    )
    build_walk(module, head_bytes)
    build_apart(module, head_bytes)
    blocks.build(module, head_bytes)
    _build_arena(module, head_bytes)
    _build_allocate(module, head_bytes)
    _build_results(module, head_bytes)
    _build_launch(module, head_bytes)
    _build_call(module, head_bytes)
    _build_entry(module, head_bytes)
    _build_execute(module, head_bytes)
    return module


def build_vectorcall(head_bytes: int, offset: int) -> Module:
    """The vectorcall of objects that hold the tuple of a built-in function at a byte offset.

    Parameters
    ----------
    head_bytes : int
        ``object.__basicsize__`` of the running Python.
    offset : int
        Where the tuple's address lies in the object.

    Returns
    -------
    Module
        Defines `sg_vectorcall`; needs the symbol `sg_call`.
    """
    module = Module()
    kinds = ["ptr", "ptr", "i64", "ptr"]
    f = Body(module, "sg_vectorcall", kinds, "ptr", head_bytes, "nounwind", "")
    this, args, nargsf, kwnames = f.arguments
    own = f.load(f.gep(this, f.index(offset), "i8"), "ptr")
    # A collected object has no tuple any more, and yet a last finaliser might call it.
    gone, ready = f.label("gone"), f.label("ready")
    f.branch_if(f.icmp("eq", own, NULL), gone, ready)
    f.start(gone)
    f.invoke("PyErr_BadArgument", "i32", [])
    f.ret(NULL)
    f.start(ready)
    # The object may be bound to another program while this one runs.
    f.call("Py_IncRef", None, [own])
    memory = f.invoke("PyTuple_GetItem", "ptr", [own, ZERO])
    descriptor = f.array_field(memory, 0, "ptr")
    # The top bit says that args[-1] may be written: of no use here.
    nargs = f.and_(nargsf, f.index(2**63 - 1))
    result = f.invoke("sg_call", "ptr", [descriptor, args, nargs, kwnames])
    f.call("Py_DecRef", None, [own])
    f.ret(result)
    f.finish()
    return module


def _build_arena(module: Module, head_bytes: int) -> None:
    """Scratch memory, kept in one free list per size class; callers hold the GIL."""
    f = Body(module, "sg_arena_take", ["i64", "i64"], "ptr", head_bytes)
    head = f.at(Val("@sg_arenas", "ptr"), f.arguments[0])
    first = f.load(head, "ptr")

    def make() -> None:
        room = f.add(f.arguments[1], f.index(2 * _ARENA_ALIGN))
        raw = f.invoke("PyMem_RawMalloc", "ptr", [room])
        f.leave_if(f.icmp("eq", raw, NULL), NULL)
        # The word before the arena links idle ones; the one before that is what malloc gave.
        up = f.add(f.cast("ptrtoint", raw, "i64"), f.index(_ARENA_ALIGN + 16))
        fresh = f.cast("inttoptr", f.and_(up, f.index(-_ARENA_ALIGN)), "ptr")
        f.store(raw, f.at(fresh, -2))
        f.ret(fresh)

    made, reused = f.label("made"), f.label("reused")
    f.branch_if(f.icmp("eq", first, NULL), made, reused)
    f.start(made)
    make()
    f.start(reused)
    f.store(f.word(first, -1, "ptr"), head)
    f.ret(first)
    f.finish()

    f = Body(module, "sg_arena_give", ["i64", "ptr"], None, head_bytes)
    number, arena = f.arguments
    head = f.at(Val("@sg_arenas", "ptr"), number)
    f.store(f.load(head, "ptr"), f.at(arena, -1))
    f.store(arena, head)
    f.ret()
    f.finish()

    f = Body(module, "sg_trim", [], "i64", head_bytes, "nounwind", "")
    freed = f.alloca("i64", align=8)
    f.store(ZERO, freed)

    def empty(i: Val) -> None:
        head = f.at(Val("@sg_arenas", "ptr"), i)
        again, some, done = f.label("again"), f.label("some"), f.label("done")
        f.branch(again)
        f.start(again)
        first = f.load(head, "ptr")
        f.branch_if(f.icmp("eq", first, NULL), done, some)
        f.start(some)
        f.store(f.word(first, -1, "ptr"), head)
        f.call("PyMem_RawFree", None, [f.word(first, -2, "ptr")])
        f.store(f.add(f.load(freed, "i64"), ONE), freed)
        f.branch(again)
        f.start(done)

    f.repeat(f.index(lay.ARENA_CLASSES), empty)
    blocks_freed = f.invoke("sg_blocks_trim", "i64", [])
    f.ret(f.add(f.load(freed, "i64"), blocks_freed))
    f.finish()


def _build_allocate(module: Module, head_bytes: int) -> None:
    """`i1 sg_allocate(d, frame, results)`: new arrays for the outputs, cells for scalars."""
    for name in (DEFAULT_HANDLER, OWN_HANDLER):
        module.declarations[name] = f"@{name} = external global ptr"
    f = Body(module, "sg_allocate", ["ptr", "ptr", "ptr"], "i1", head_bytes)
    descriptor, frame, results = f.arguments

    def made(record: Val) -> Val:
        descr = f.word(record, lay.R_A, "ptr")
        f.call("Py_IncRef", None, [descr])
        rank = f.cast("trunc", f.word(record, lay.R_B), "i32")
        kind, dims = f.word(record, lay.R_TYPE, "ptr"), f.word(record, lay.R_C, "ptr")
        flags = constant("i32", 0)
        arguments = [kind, descr, rank, dims, NULL, NULL, flags, NULL]
        return f.invoke(NEW_FROM_DESCR, "ptr", arguments)

    def keep(record: Val, array: Val) -> None:
        f.leave_if(f.icmp("eq", array, NULL), NO)
        f.store(array, f.at(results, f.word(record, lay.R_OBJECT)))
        f.store(f.array_field(array, 0, "ptr"), f.at(frame, f.word(record, lay.R_SLOT)))

    def large_array(record: Val) -> None:
        """A new array in a block of our own, unless the user told NumPy where memory comes from."""
        own = f.load(Val(f"@{OWN_HANDLER}", "ptr"), "ptr")
        before = f.invoke(SET_HANDLER, "ptr", [own])
        f.leave_if(f.icmp("eq", before, NULL), NO)
        default = f.load(Val(f"@{DEFAULT_HANDLER}", "ptr"), "ptr")
        users = f.icmp("ne", before, default)
        f.when(users, lambda: f.call("Py_DecRef", None, [f.invoke(SET_HANDLER, "ptr", [before])]))
        array = made(record)
        f.call("Py_DecRef", None, [f.invoke(SET_HANDLER, "ptr", [before])])
        f.call("Py_DecRef", None, [before])
        keep(record, array)

    def cell(record: Val) -> None:
        place = f.at(frame, f.word(record, lay.R_A))
        f.store(ZERO, place)
        f.store(place, f.at(frame, f.word(record, lay.R_SLOT)))

    def one(record: Val) -> None:
        f.choose(
            f.word(record, lay.R_CODE),
            {
                lay.OUT_ARRAY: lambda: keep(record, made(record)),
                lay.OUT_LARGE: lambda: large_array(record),
                lay.OUT_CELL: lambda: cell(record),
            },
        )

    f.records(descriptor, lay.D_NOUT, lay.D_OUT, one)
    f.ret(YES)
    f.finish()


def _build_results(module: Module, head_bytes: int) -> None:
    """`i1 sg_results(d, frame, values, results)`: leaves first, then containers, inmost first."""
    f = Body(module, "sg_results", ["ptr", "ptr", "ptr", "ptr"], "i1", head_bytes)
    descriptor, frame, values, results = f.arguments

    def keep(record: Val, thing: Val) -> None:
        f.leave_if(f.icmp("eq", thing, NULL), NO)
        f.store(thing, f.at(results, f.word(record, lay.R_OBJECT)))

    def share(record: Val, thing: Val) -> None:
        f.call("Py_IncRef", None, [thing])
        f.store(thing, f.at(results, f.word(record, lay.R_OBJECT)))

    def float64(record: Val) -> None:
        number = f.load(f.at(frame, f.word(record, lay.R_A)), "double")
        keep(record, f.invoke("PyFloat_FromDouble", "ptr", [number]))

    def float32(record: Val) -> None:
        number = f.load(f.at(frame, f.word(record, lay.R_A)), "float")
        keep(record, f.invoke("PyFloat_FromDouble", "ptr", [f.cast("fpext", number, "double")]))

    def int64(record: Val) -> None:
        number = f.word(frame, f.word(record, lay.R_A))
        keep(record, f.invoke("PyLong_FromLongLong", "ptr", [number]))

    def truth(record: Val) -> None:
        byte = f.load(f.at(frame, f.word(record, lay.R_A)), "i8")
        # A C long has 32 bits on some systems; what is passed fits either way.
        keep(record, f.invoke("PyBool_FromLong", "ptr", [f.cast("zext", byte, "i64")]))

    def sequence(record: Val, family: str) -> None:
        count = f.word(record, lay.R_A)
        first = f.at(results, f.word(record, lay.R_B))
        whole = f.invoke(f"{family}_New", "ptr", [count])
        keep(record, whole)

        def move(i: Val) -> None:
            item = f.word(first, i, "ptr")
            f.store(NULL, f.at(first, i))
            f.invoke(f"{family}_SetItem", "i32", [whole, i, item])

        f.repeat(count, move)

    def mapping(record: Val) -> None:
        first, keys = f.at(results, f.word(record, lay.R_B)), f.word(record, lay.R_C, "ptr")
        whole = f.invoke("PyDict_New", "ptr", [])
        keep(record, whole)

        def put(i: Val) -> None:
            item = f.word(first, i, "ptr")
            failed = f.invoke("PyDict_SetItem", "i32", [whole, f.word(keys, i, "ptr"), item])
            f.leave_if(f.icmp("ne", failed, constant("i32", 0)), NO)
            f.store(NULL, f.at(first, i))
            f.call("Py_DecRef", None, [item])

        f.repeat(f.word(record, lay.R_A), put)

    def one(record: Val) -> None:
        f.choose(
            f.word(record, lay.R_CODE),
            {
                lay.BUILD_FLOAT64: lambda: float64(record),
                lay.BUILD_FLOAT32: lambda: float32(record),
                lay.BUILD_INT64: lambda: int64(record),
                lay.BUILD_BOOL: lambda: truth(record),
                lay.BUILD_INPUT: lambda: share(
                    record, f.word(values, f.word(record, lay.R_A), "ptr")
                ),
                lay.BUILD_SAME: lambda: share(
                    record, f.word(results, f.word(record, lay.R_A), "ptr")
                ),
                lay.BUILD_OBJECT: lambda: share(record, f.word(record, lay.R_A, "ptr")),
                lay.BUILD_TUPLE: lambda: sequence(record, "PyTuple"),
                lay.BUILD_LIST: lambda: sequence(record, "PyList"),
                lay.BUILD_DICT: lambda: mapping(record),
            },
        )

    f.records(descriptor, lay.D_NBUILD, lay.D_BUILD, one)
    f.ret(YES)
    f.finish()


def _build_launch(module: Module, head_bytes: int) -> None:
    """`sg_launch(d, frame)`: run the plan, without the GIL if the descriptor says so."""
    f = Body(module, "sg_launch", ["ptr", "ptr"], None, head_bytes)
    descriptor, frame = f.arguments
    plan = f.word(descriptor, lay.D_PLAN, "ptr")
    run = f.word(descriptor, lay.D_RUN, "ptr")
    released, kept, look, single = (f.label(n) for n in ("released", "kept", "look", "single"))
    many, done = f.label("many"), f.label("done")
    f.branch_if(f.icmp("ne", f.word(descriptor, lay.D_RELEASE), ZERO), released, kept)

    f.start(released)
    state = f.invoke("PyEval_SaveThread", "ptr", [])
    f.invoke_at(run, [plan, frame])
    f.call("PyEval_RestoreThread", None, [state])
    f.branch(done)

    f.start(kept)
    launch = f.word(plan, 1, "ptr")
    f.branch_if(f.icmp("eq", f.word(plan, 0), ONE), look, many)
    f.start(look)
    f.branch_if(f.icmp("eq", f.word(launch, 2), ONE), single, many)
    f.start(single)
    f.invoke_at(f.word(launch, 0, "ptr"), [frame, f.word(launch, 1, "ptr"), ZERO, ONE])
    f.branch(done)
    f.start(many)
    f.invoke_at(run, [plan, frame])
    f.branch(done)

    f.start(done)
    f.ret()
    f.finish()


def _build_call(module: Module, head_bytes: int) -> None:
    """`ptr sg_call(d, args, nargs, kwnames)`: the whole of a call."""
    kinds = ["ptr", "ptr", "i64", "ptr"]
    f = Body(module, "sg_call", kinds, "ptr", head_bytes, "nounwind", "")
    descriptor, args, nargs, kwnames = f.arguments
    stack = f.alloca("i64", count=lay.STACK_WORDS)
    heap, arena, frame_place, values_place = (f.alloca("ptr", align=8) for _ in range(4))
    fallback, give_up, failed = (f.label(name) for name in ("fallback", "give_up", "failed"))
    f.store(NULL, heap)
    f.store(NULL, arena)
    releases = f.icmp("ne", f.word(descriptor, lay.D_RELEASE), ZERO)

    f.jump_if(f.icmp("ne", kwnames, NULL), fallback)
    f.jump_if(f.icmp("ne", nargs, f.word(descriptor, lay.D_NARGS)), fallback)

    frame_words = f.word(descriptor, lay.D_FRAME_WORDS)
    f.store(stack, frame_place)

    def large_frame() -> None:
        raw = f.invoke("PyMem_RawMalloc", "ptr", [f.shl(frame_words, constant("i64", 3))])
        f.store(raw, heap)
        f.store(raw, frame_place)

    f.when(f.icmp("ugt", frame_words, f.index(lay.STACK_WORDS)), large_frame)
    frame = f.load(frame_place, "ptr")
    no_memory = f.label("no_memory")
    f.jump_if(f.icmp("eq", frame, NULL), no_memory)

    # Without containers the arguments are the objects.
    f.store(args, values_place)
    first_value = f.word(descriptor, lay.D_VALUES)

    def copy_arguments() -> None:
        own = f.at(frame, first_value)
        f.store(own, values_place)
        f.repeat(nargs, lambda i: f.store(f.word(args, i, "ptr"), f.at(own, i)))

    f.when(f.icmp("ne", first_value, ZERO), copy_arguments)
    values = f.load(values_place, "ptr")
    results = f.at(frame, f.word(descriptor, lay.D_RESULTS))
    count = f.word(descriptor, lay.D_NRESULTS)

    matched = f.invoke("sg_walk", "i1", [descriptor, frame, values])
    f.jump_if(f.icmp("eq", matched, NO), give_up)
    f.pairs(descriptor, lay.D_NFIXED, lay.D_FIXED, lambda slot, to: f.store(to, f.at(frame, slot)))
    check, checked = f.label("check"), f.label("checked")
    f.branch_if(f.icmp("ne", f.word(descriptor, lay.D_NWRITTEN), ZERO), check, checked)
    f.start(check)
    apart = f.invoke("sg_apart", "i1", [descriptor, frame])
    f.branch_if(apart, checked, give_up)
    f.start(checked)

    def hold(name: str) -> None:
        def one(record: Val) -> None:
            f.call(name, None, [f.word(values, f.word(record, lay.R_OBJECT), "ptr")])

        f.records(descriptor, lay.D_NIN, lay.D_IN, one)

    # While the GIL is released another thread may empty the list that an array came in.
    f.when(releases, lambda: hold("Py_IncRef"))
    f.repeat(count, lambda i: f.store(NULL, f.at(results, i)))
    allocated = f.invoke("sg_allocate", "i1", [descriptor, frame, results])
    f.jump_if(f.icmp("eq", allocated, NO), failed)

    arena_bytes, number = (
        f.word(descriptor, lay.D_ARENA_BYTES),
        f.word(descriptor, lay.D_ARENA_CLASS),
    )
    without_arena = f.icmp("eq", arena_bytes, ZERO)
    take, taken, filled = f.label("take"), f.label("taken"), f.label("filled")
    f.branch_if(without_arena, filled, take)
    f.start(take)
    scratch = f.invoke("sg_arena_take", "ptr", [number, arena_bytes])
    f.store(scratch, arena)
    out_of_arena = f.label("out_of_arena")
    f.branch_if(f.icmp("eq", scratch, NULL), out_of_arena, taken)
    f.start(out_of_arena)
    f.invoke("PyErr_NoMemory", "ptr", [])
    f.branch(failed)
    f.start(taken)
    base = f.cast("ptrtoint", scratch, "i64")
    f.pairs(
        descriptor,
        lay.D_NARENA,
        lay.D_ARENA,
        lambda slot, offset: f.store(f.add(base, offset), f.at(frame, slot)),
    )
    f.branch(filled)
    f.start(filled)

    f.call("sg_launch", None, [descriptor, frame])

    def give_arena() -> None:
        f.call("sg_arena_give", None, [number, f.load(arena, "ptr")])

    f.when(f.icmp("eq", without_arena, NO), give_arena)
    # Only a program that ran without the GIL listened for signals.
    asked, calm = f.label("asked"), f.label("calm")
    f.branch_if(releases, asked, calm)
    f.start(asked)
    interrupted = f.icmp("ne", f.invoke("PyErr_Occurred", "ptr", []), NULL)
    f.branch_if(interrupted, failed, calm)
    f.start(calm)
    status = f.word(descriptor, lay.D_STATUS)
    built, look, bad = f.label("built"), f.label("look"), f.label("bad")
    f.branch_if(f.icmp("slt", status, ZERO), built, look)
    f.start(look)
    f.branch_if(f.icmp("eq", f.word(frame, status), ZERO), built, bad)
    f.start(built)
    complete = f.invoke("sg_results", "i1", [descriptor, frame, values, results])
    f.jump_if(f.icmp("eq", complete, NO), failed)
    f.when(releases, lambda: hold("Py_DecRef"))
    result = f.word(results, 0, "ptr")
    f.when(
        f.icmp("ne", f.load(heap, "ptr"), NULL),
        lambda: f.call("PyMem_RawFree", None, [f.load(heap, "ptr")]),
    )
    f.ret(result)

    def drop_results() -> None:
        def drop(i: Val) -> None:
            thing = f.word(results, i, "ptr")
            present = f.icmp("ne", thing, NULL)
            f.when(present, lambda: f.call("Py_DecRef", None, [thing]))

        f.repeat(count, drop)
        f.when(releases, lambda: hold("Py_DecRef"))

    f.start(failed)
    drop_results()
    f.call("PyMem_RawFree", None, [f.load(heap, "ptr")])
    f.ret(NULL)

    f.start(no_memory)
    f.ret(f.invoke("PyErr_NoMemory", "ptr", []))

    # The plan found its numbers wanting: unless it raised an error itself, the fallback says
    # what is wrong with them.
    f.start(bad)
    raised = f.icmp("ne", f.invoke("PyErr_Occurred", "ptr", []), NULL)
    wanting = f.label("wanting")
    f.branch_if(raised, failed, wanting)
    f.start(wanting)
    drop_results()
    f.branch(give_up)

    f.start(give_up)
    f.call("PyMem_RawFree", None, [f.load(heap, "ptr")])
    f.branch(fallback)

    f.start(fallback)
    python = f.word(descriptor, lay.D_FALLBACK, "ptr")
    f.ret(f.invoke("PyObject_Vectorcall", "ptr", [python, args, nargs, kwnames]))
    f.finish()


def _build_entry(module: Module, head_bytes: int) -> None:
    """`sg_entry(self, args, nargs, kwnames)`: `self` is a tuple whose first item, an array,
    holds the descriptor."""
    kinds = ["ptr", "ptr", "i64", "ptr"]
    f = Body(module, "sg_entry", kinds, "ptr", head_bytes, "nounwind", "")
    own, args, nargs, kwnames = f.arguments
    memory = f.invoke("PyTuple_GetItem", "ptr", [own, ZERO])
    descriptor = f.array_field(memory, 0, "ptr")
    f.ret(f.invoke("sg_call", "ptr", [descriptor, args, nargs, kwnames]))
    f.finish()


def _build_execute(module: Module, head_bytes: int) -> None:
    """`sg_execute(self, args, nargs)`: the first argument is a descriptor's address."""
    f = Body(module, "sg_execute", ["ptr", "ptr", "i64"], "ptr", head_bytes, "nounwind", "")
    _, args, nargs = f.arguments
    refuse, ready = f.label("refuse"), f.label("ready")
    f.branch_if(f.icmp("eq", nargs, constant("i64", 2)), ready, refuse)
    f.start(refuse)
    f.invoke("PyErr_BadArgument", "i32", [])
    f.ret(NULL)
    f.start(ready)
    descriptor = f.invoke("PyLong_AsVoidPtr", "ptr", [f.word(args, 0, "ptr")])
    f.leave_if(f.icmp("eq", descriptor, NULL), NULL)
    f.ret(f.invoke("sg_call", "ptr", [descriptor, f.at(args, 1), ONE, NULL]))
    f.finish()
