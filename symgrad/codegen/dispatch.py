"""The LLVM IR of the thread pool's callers, and the text of the whole pool.

Two structures:

* ``sg_dispatch``: decides whether a kernel is worth a second thread, publishes it as the
  job, wakes sleepers where that pays, takes claims itself, and waits for the rest. A pool
  that is busy with another thread's job, or with the very job that calls, makes the caller
  run its kernel alone.
* ``sg_parallel``: the same for a single kernel.

`symgrad.codegen.workers` tells the protocol. Start reading at `DISPATCH`.
"""

from __future__ import annotations

from string import Template

from symgrad.codegen import workers

# Launches with a shorter estimated serial time never leave the calling thread.
HOT_NS = 5_000
# Waking a sleeping thread costs the caller some 20 us, and the thread comes 60-100 us later.
COLD_NS = 200_000

# Jobs too short to wake for count together when they follow each other within this time,
# about what a worker spins: such a stream keeps a worker awake once it is.
GAP_NS = 50_000

FEW_CLAIMS, MANY_CLAIMS = 8, 32
MANY_NS = 1_000_000

DISPATCH_HEAD = """
define void @sg_dispatch(
  ptr %fn, ptr %slots, ptr %args, i64 %extent, i64 %cost, i64 %ahead
) nounwind {"""

RUN_ALONE = """
  %nonempty = icmp sgt i64 %extent, 0
  br i1 %nonempty, label %whole, label %out
whole:
  call void %fn(ptr %slots, ptr %args, i64 0, i64 %extent)
  br label %out
out:
  ret void
}
"""

DISPATCH = (
    DISPATCH_HEAD
    + """
entry:
  %clock = alloca [2 x i64], align 8
  %workers.now = load atomic i32, $workers monotonic, align 4
  %wanted = load atomic i32, $wanted monotonic, align 4
  %sleepers = load atomic i32, $sleepers monotonic, align 4
  %several = icmp sgt i64 %extent, 1
  %long = icmp sge i64 %cost, $hot_ns
  %allowed = icmp sgt i32 %wanted, 0
  %awake = icmp slt i32 %sleepers, %workers.now
  %worth = icmp sge i64 %ahead, $cold_ns
  %company = or i1 %awake, %worth
  %split = and i1 %several, %long
  %may = and i1 %split, %allowed
  br i1 %may, label %consider, label %alone
consider:
  br i1 %company, label %take, label %account
account:
  %r = call i32 @clock_gettime(i32 1, ptr %clock)
  %seconds = load i64, ptr %clock, align 8
  %rest.at = getelementptr i64, ptr %clock, i64 1
  %rest = load i64, ptr %rest.at, align 8
  %billions = mul i64 %seconds, 1000000000
  %now = add i64 %billions, %rest
  %until = load atomic i64, $until monotonic, align 8
  %idle = sub i64 %now, %until
  %apart = icmp sgt i64 %idle, $gap_ns
  %owed = load atomic i64, $owed monotonic, align 8
  %carried = select i1 %apart, i64 0, i64 %owed
  %due = add i64 %carried, %cost
  %end = add i64 %now, %cost
  store atomic i64 %end, $until monotonic, align 8
  %enough.due = icmp sge i64 %due, $cold_ns
  %due.next = select i1 %enough.due, i64 0, i64 %due
  store atomic i64 %due.next, $owed monotonic, align 8
  br i1 %enough.due, label %take, label %alone
take:
  %rousing = phi i1 [ %worth, %consider ], [ true, %account ]
  %pair = cmpxchg $busy, i32 0, i32 1 acquire monotonic
  %got = extractvalue { i32, i1 } %pair, 1
  br i1 %got, label %taken, label %alone
taken:
  %started = load atomic i32, $workers monotonic, align 4
  %any = icmp ne i32 %started, 0
  br i1 %any, label %publish, label %start
start:
  %fresh = call i32 @sg_start()
  %some = icmp ne i32 %fresh, 0
  br i1 %some, label %publish, label %give.up
give.up:
  store atomic i32 0, $busy release, align 4
  br label %alone

publish:
  %workers = phi i32 [ %started, %taken ], [ %fresh, %start ]
  %much = icmp sge i64 %cost, $many_ns
  %base = select i1 %much, i64 $many_claims, i64 $few_claims
  %threads = zext i32 %workers to i64
  %twice = mul i64 %threads, 2
  %enough = call i64 @llvm.smax.i64(i64 %base, i64 %twice)
  %claims = call i64 @llvm.smin.i64(i64 %enough, i64 %extent)
  %share = udiv i64 %extent, %claims
  %extra = urem i64 %extent, %claims
  %rounding = call i64 @sg_rounding()
  %cpu = call i32 @sched_getcpu()
  store atomic ptr %fn, $fn monotonic, align 8
  store atomic ptr %slots, $slots monotonic, align 8
  store atomic ptr %args, $args monotonic, align 8
  store atomic i64 %share, $share monotonic, align 8
  store atomic i64 %extra, $extra monotonic, align 8
  store atomic i64 %rounding, $rounding monotonic, align 8
  store atomic i32 %cpu, $cpu monotonic, align 4
  %claims.narrow = trunc i64 %claims to i32
  store atomic i32 %claims.narrow, $pending monotonic, align 4
  %old = load atomic i64, $word monotonic, align 8
  %epoch = lshr i64 %old, 32
  %epoch.next = add i64 %epoch, 1
  %high = shl i64 %epoch.next, 32
  %word.new = or i64 %high, %claims
  ; Ordered with a worker's count of itself as asleep and its last look at the epoch: one
  ; of the two sees the other.
  %was = atomicrmw xchg $word, i64 %word.new seq_cst
  br i1 %rousing, label %rouse, label %look
rouse:
  %asleep = load atomic i32, $sleepers seq_cst, align 4
  %none = icmp sle i32 %asleep, 0
  br i1 %none, label %look, label %wake
wake:
  call void @sg_place(i32 %workers, i32 %cpu)
  call void @sg_wake($epoch, i32 $wake_count)
  br label %look

look:
  %first = load atomic i64, $word acquire, align 8
  br label %try
try:
  %word = phi i64 [ %first, %look ], [ %seen, %claim ], [ %again, %mine ]
  %done = phi i32 [ 0, %look ], [ %done, %claim ], [ %more, %mine ]
  %back = and i64 %word, 65535
  %shifted = lshr i64 %word, 16
  %front = and i64 %shifted, 65535
  %left = icmp ult i64 %front, %back
  br i1 %left, label %claim, label %settle
claim:
  %bumped = add i64 %word, 65536
  %claimed = cmpxchg $word, i64 %word, i64 %bumped acq_rel acquire
  %seen = extractvalue { i64, i1 } %claimed, 0
  %won = extractvalue { i64, i1 } %claimed, 1
  br i1 %won, label %mine, label %try
mine:
  call void @sg_claim(i64 %front)
  %more = add i32 %done, 1
  %again = load atomic i64, $word acquire, align 8
  br label %try

settle:
  %before = atomicrmw sub $pending, i32 %done seq_cst
  %last = icmp eq i32 %before, %done
  br i1 %last, label %release, label %hold
hold:
  %turns = load atomic i64, $turns monotonic, align 8
  br label %turn
turn:
  %turns.left = phi i64 [ %turns, %hold ], [ %turns.less, %pause ]
  %open = load atomic i32, $pending acquire, align 4
  %finished = icmp eq i32 %open, 0
  br i1 %finished, label %release, label %patience
patience:
  %over = icmp sle i64 %turns.left, 0
  br i1 %over, label %block, label %pause
pause:
  $pause
  %turns.less = sub i64 %turns.left, 1
  br label %turn
block:
  store atomic i32 1, $waits seq_cst, align 4
  br label %check
check:
  %still = load atomic i32, $pending seq_cst, align 4
  %through = icmp eq i32 %still, 0
  br i1 %through, label %unblock, label %doze
doze:
  call void @sg_wait($pending, i32 %still)
  br label %check
unblock:
  store atomic i32 0, $waits monotonic, align 4
  br label %release
release:
  store atomic i32 0, $busy release, align 4
  ret void

alone:"""
    + RUN_ALONE
)

PARALLEL = """
define void @sg_parallel(ptr %fn, ptr %slots, ptr %args, i64 %extent, i64 %cost) nounwind {
  call void @sg_dispatch(ptr %fn, ptr %slots, ptr %args, i64 %extent, i64 %cost, i64 %cost)
  ret void
}
"""

# Where threads are not supported: the same symbols, every kernel run by its caller.
ALONE = (
    DISPATCH_HEAD
    + RUN_ALONE
    + """
define void @sg_stop() nounwind {
  ret void
}
"""
)


def ir_text(name: str | None) -> str:
    """The pool's IR, the same in every process.

    Parameters
    ----------
    name : str or None
        ``x86_64`` or ``aarch64`` on Linux; None for code without threads.
    """
    if name is None:
        return ALONE + PARALLEL
    places = {
        field: f"ptr getelementptr (i8, ptr @sg_page, i64 {offset})"
        for field, offset in workers.FIELDS.items()
    }
    places["wanted"] = "ptr @sg_settings"
    places["turns"] = "ptr getelementptr (i8, ptr @sg_settings, i64 8)"
    numbers = {
        "futex": workers.FUTEX[name],
        "gettid": workers.GETTID[name],
        "hot_ns": HOT_NS,
        "cold_ns": COLD_NS,
        "gap_ns": GAP_NS,
        "many_ns": MANY_NS,
        "few_claims": FEW_CLAIMS,
        "many_claims": MANY_CLAIMS,
        "wake_count": workers.WAKE_COUNT,
        "placed": workers.PLACED,
        "record_bytes": workers.RECORD_BYTES,
        "mask_bytes": workers.MASK_BYTES,
        "mask_bits": 8 * workers.MASK_BYTES,
        "mask_words": workers.MASK_BYTES // 8,
    }
    parts = [
        workers.SYSTEM,
        workers.ROUNDING[name],
        workers.CLAIM,
        workers.WORKER,
        workers.LIFETIME,
        workers.PLACE,
        DISPATCH,
        PARALLEL,
    ]
    return Template("".join(parts)).substitute(places, pause=workers.PAUSE[name], **numbers)
