"""The thread pool's memory, and the LLVM IR of its workers.

Two structures, both plain memory outside the code:

* the page (`FIELDS`): one 64-bit control word, the job, and a record per worker. The word is
  ``epoch(32) | front(16) | back(16)``: it publishes a job, counts its claims, and its epoch
  half is the futex that workers sleep on. The caller claims `front`, workers claim
  ``back - 1``, by compare-and-swap on the whole word. A claim thus succeeds in its own
  epoch only, and a late worker cannot run a stale job; and as both sides keep to their
  end, a thread meets the same chunks, hence its own cache, in call after call.
* the settings: how many workers to start, and how many turns a waiting thread spins.

A job is finished when its claims are, not when the workers are: the caller takes part, so
a worker that never wakes costs nothing. The job's fields are written before the word and
read after a successful claim; they cannot change while a claim is unsettled in `pending`.
In the IR below a dollar sign marks what `symgrad.codegen.dispatch.ir_text` fills in.
Start reading at `WORKER`.
"""

from __future__ import annotations

# The caller wakes so many sleepers, and each of them as many more.
WAKE_COUNT = 4
# Only so many workers are moved off the caller's CPU before they are woken.
PLACED = 8

MAX_WORKERS = 63
RECORD_BYTES = 64
MASK_BYTES = 128

# Byte offsets in the page; what different threads write lies on different cache lines.
FIELDS = {
    "word": 0,
    "epoch": 4,
    "pending": 128,
    "waits": 132,
    "sleepers": 256,
    "busy": 384,
    "workers": 388,
    "stop": 392,
    "owed": 400,
    "until": 408,
    "fn": 512,
    "slots": 520,
    "args": 528,
    "share": 536,
    "extra": 544,
    "rounding": 552,
    "cpu": 560,
    "mask": 640,
    "records": 1024,
}
PAGE_BYTES = FIELDS["records"] + MAX_WORKERS * RECORD_BYTES

GETTID = {"x86_64": 186, "aarch64": 178}
FUTEX = {"x86_64": 202, "aarch64": 98}

PAUSE = {
    "x86_64": "call void @llvm.x86.sse2.pause()",
    "aarch64": "call void @llvm.aarch64.isb(i32 15)",
}

# The floating point control word (rounding, denormals) without the sticky flags.
ROUNDING = {
    "x86_64": """
declare void @llvm.x86.sse2.pause()
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

define internal i64 @sg_rounding() nounwind {
  %cell = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %cell)
  %word = load i32, ptr %cell, align 4
  %control = and i32 %word, 65472
  %wide = zext i32 %control to i64
  ret i64 %wide
}

define internal void @sg_adopt(i64 %wide) nounwind {
  %cell = alloca i32, align 4
  %word = trunc i64 %wide to i32
  store i32 %word, ptr %cell, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %cell)
  ret void
}
""",
    "aarch64": """
declare void @llvm.aarch64.isb(i32)
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)

define internal i64 @sg_rounding() nounwind {
  %wide = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %wide
}

define internal void @sg_adopt(i64 %wide) nounwind {
  call void @llvm.aarch64.set.fpcr(i64 %wide)
  ret void
}
""",
}

SYSTEM = """
declare i64 @syscall(i64, ...)
declare i32 @sched_getcpu()
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)

define internal void @sg_wait(ptr %at, i32 %seen) nounwind {
  %r = call i64 (i64, ...) @syscall(i64 $futex, ptr %at, i32 128, i32 %seen, ptr null)
  ret void
}

define internal void @sg_wake(ptr %at, i32 %count) nounwind {
  %r = call i64 (i64, ...) @syscall(i64 $futex, ptr %at, i32 129, i32 %count)
  ret void
}

; Spin while the word keeps its epoch, so many turns at most; the word last seen.
define i64 @sg_spin(i64 %seen, i64 %turns) nounwind {
entry:
  %epoch = lshr i64 %seen, 32
  br label %turn
turn:
  %left = phi i64 [ %turns, %entry ], [ %less, %more ]
  %now = load atomic i64, $word acquire, align 8
  %new = lshr i64 %now, 32
  %changed = icmp ne i64 %new, %epoch
  %over = icmp sle i64 %left, 0
  %out = or i1 %changed, %over
  br i1 %out, label %done, label %more
more:
  $pause
  %less = sub i64 %left, 1
  br label %turn
done:
  ret i64 %now
}
"""

# One claim of the current job: `share` chunks, and one more in each of the first `extra`.
CLAIM = """
define internal void @sg_claim(i64 %index) nounwind {
  %fn = load atomic ptr, $fn monotonic, align 8
  %slots = load atomic ptr, $slots monotonic, align 8
  %args = load atomic ptr, $args monotonic, align 8
  %share = load atomic i64, $share monotonic, align 8
  %extra = load atomic i64, $extra monotonic, align 8
  %before = call i64 @llvm.umin.i64(i64 %index, i64 %extra)
  %whole = mul i64 %index, %share
  %lo = add i64 %whole, %before
  %longer = icmp ult i64 %index, %extra
  %one = zext i1 %longer to i64
  %size = add i64 %share, %one
  %hi = add i64 %lo, %size
  call void %fn(ptr %slots, ptr %args, i64 %lo, i64 %hi)
  ret void
}
"""

WORKER = """
define internal ptr @sg_worker(ptr %me) nounwind {
entry:
  %tid.at = getelementptr i8, ptr %me, i64 4
  %tid.wide = call i64 (i64, ...) @syscall(i64 $gettid)
  %tid = trunc i64 %tid.wide to i32
  store atomic i32 %tid, ptr %tid.at release, align 4
  %first = load atomic i64, $word acquire, align 8
  br label %try
try:
  %word = phi i64 [ %first, %entry ], [ %seen, %claim ], [ %again, %work ],
                  [ %now, %spin ], [ %late, %woken ], [ %late, %spread ]
  %done = phi i32 [ 0, %entry ], [ %done, %claim ], [ %more, %work ],
                  [ 0, %spin ], [ 0, %woken ], [ 0, %spread ]
  %back = and i64 %word, 65535
  %shifted = lshr i64 %word, 16
  %front = and i64 %shifted, 65535
  %some = icmp ult i64 %front, %back
  br i1 %some, label %claim, label %none
claim:
  %less = sub i64 %word, 1
  %pair = cmpxchg $word, i64 %word, i64 %less acq_rel acquire
  %seen = extractvalue { i64, i1 } %pair, 0
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %mine, label %try
mine:
  %fresh = icmp eq i32 %done, 0
  br i1 %fresh, label %adopt, label %work
adopt:
  %rounding = load atomic i64, $rounding monotonic, align 8
  call void @sg_adopt(i64 %rounding)
  br label %work
work:
  %index = sub i64 %back, 1
  call void @sg_claim(i64 %index)
  %more = add i32 %done, 1
  %again = load atomic i64, $word acquire, align 8
  br label %try

none:
  %any = icmp ne i32 %done, 0
  br i1 %any, label %settle, label %idle
settle:
  %pending = atomicrmw sub $pending, i32 %done seq_cst
  %last = icmp eq i32 %pending, %done
  br i1 %last, label %tell, label %idle
tell:
  %waits = load atomic i32, $waits seq_cst, align 4
  %blocked = icmp ne i32 %waits, 0
  br i1 %blocked, label %notify, label %idle
notify:
  call void @sg_wake($pending, i32 1)
  br label %idle

idle:
  %stop = load atomic i32, $stop acquire, align 4
  %stopped = icmp ne i32 %stop, 0
  br i1 %stopped, label %exit, label %choose
choose:
  ; Spinning on the caller's own CPU would only keep the caller from it.
  %cpu = call i32 @sched_getcpu()
  %other = load atomic i32, $cpu monotonic, align 4
  %stacked = icmp eq i32 %cpu, %other
  br i1 %stacked, label %sleep, label %spin
spin:
  %turns = load atomic i64, $turns monotonic, align 8
  %now = call i64 @sg_spin(i64 %word, i64 %turns)
  %difference = xor i64 %now, %word
  %high = lshr i64 %difference, 32
  %changed = icmp ne i64 %high, 0
  br i1 %changed, label %try, label %sleep

sleep:
  %epoch.wide = lshr i64 %word, 32
  %epoch = trunc i64 %epoch.wide to i32
  store atomic i32 1, ptr %me seq_cst, align 4
  %up = atomicrmw add $sleepers, i32 1 seq_cst
  call void @sg_wait($epoch, i32 %epoch)
  %down = atomicrmw sub $sleepers, i32 1 seq_cst
  %state = atomicrmw xchg ptr %me, i32 0 seq_cst
  %moved = icmp eq i32 %state, 2
  br i1 %moved, label %restore, label %woken
restore:
  %r = call i32 @sched_setaffinity(i32 0, i64 $mask_bytes, $mask)
  br label %woken
woken:
  %late = load atomic i64, $word acquire, align 8
  %late.back = and i64 %late, 65535
  %late.shifted = lshr i64 %late, 16
  %late.front = and i64 %late.shifted, 65535
  %work.left = icmp ult i64 %late.front, %late.back
  %asleep = icmp sgt i32 %down, 1
  %wake.more = and i1 %work.left, %asleep
  br i1 %wake.more, label %spread, label %try
spread:
  call void @sg_wake($epoch, i32 $wake_count)
  br label %try

exit:
  ret ptr null
}
"""

# Starting and stopping, both with `busy` held.
LIFETIME = """
define internal i32 @sg_start() nounwind {
entry:
  %all = alloca [128 x i8], align 8
  %old = alloca [128 x i8], align 8
  call void @llvm.memset.p0.i64(ptr %all, i8 -1, i64 128, i1 false)
  %wanted = load atomic i32, $wanted monotonic, align 4
  %masked = call i32 @pthread_sigmask(i32 2, ptr %all, ptr %old)
  br label %test
test:
  %count = phi i32 [ 0, %entry ], [ %next, %create ]
  %enough = icmp sge i32 %count, %wanted
  br i1 %enough, label %done, label %create
create:
  %wide = zext i32 %count to i64
  %offset = mul i64 %wide, $record_bytes
  %record = getelementptr i8, $records, i64 %offset
  %handle = getelementptr i8, ptr %record, i64 8
  store atomic i32 0, ptr %record monotonic, align 4
  %r = call i32 @pthread_create(ptr %handle, ptr null, ptr @sg_worker, ptr %record)
  %next = add i32 %count, 1
  %good = icmp eq i32 %r, 0
  br i1 %good, label %test, label %failed
failed:
  ; Ask for no more than the system grants, or every long job would try again.
  store atomic i32 %count, $wanted monotonic, align 4
  br label %done
done:
  %unmasked = call i32 @pthread_sigmask(i32 2, ptr %old, ptr null)
  store atomic i32 %count, $workers release, align 4
  ret i32 %count
}

define void @sg_stop() nounwind {
entry:
  br label %take
take:
  %pair = cmpxchg $busy, i32 0, i32 1 acquire monotonic
  %won = extractvalue { i32, i1 } %pair, 1
  br i1 %won, label %stop, label %yield
yield:
  %y = call i32 @sched_yield()
  br label %take
stop:
  %workers = load atomic i32, $workers acquire, align 4
  store atomic i32 1, $stop release, align 4
  %old = load atomic i64, $word monotonic, align 8
  %epoch = lshr i64 %old, 32
  %next = add i64 %epoch, 1
  %word = shl i64 %next, 32
  %was = atomicrmw xchg $word, i64 %word seq_cst
  call void @sg_wake($epoch, i32 2147483647)
  br label %test
test:
  %count = phi i32 [ 0, %stop ], [ %more, %join ]
  %all = icmp sge i32 %count, %workers
  br i1 %all, label %done, label %join
join:
  %wide = zext i32 %count to i64
  %offset = mul i64 %wide, $record_bytes
  %record = getelementptr i8, $records, i64 %offset
  %handle.at = getelementptr i8, ptr %record, i64 8
  %handle = load i64, ptr %handle.at, align 8
  %r = call i32 @pthread_join(i64 %handle, ptr null)
  %more = add i32 %count, 1
  br label %test
done:
  store atomic i32 0, $workers monotonic, align 4
  store atomic i32 0, $stop monotonic, align 4
  store atomic i32 0, $busy release, align 4
  ret void
}
"""

# A woken thread tends to be put on the CPU of its waker, which is the one CPU that is busy.
# So each sleeper is barred from it before the wake, and takes its full set back afterwards.
# Record states: 0 awake, 1 asleep, 2 asleep and barred.
PLACE = """
define internal void @sg_place(i32 %workers, i32 %cpu) nounwind {
entry:
  %mask = alloca [$mask_bytes x i8], align 8
  %known = icmp ult i32 %cpu, $mask_bits
  br i1 %known, label %read, label %done
read:
  %r = call i32 @sched_getaffinity(i32 0, i64 $mask_bytes, $mask)
  %good = icmp eq i32 %r, 0
  br i1 %good, label %bar, label %done
bar:
  call void @llvm.memcpy.p0.p0.i64(ptr %mask, $mask, i64 $mask_bytes, i1 false)
  %cpu.wide = zext i32 %cpu to i64
  %word = lshr i64 %cpu.wide, 6
  %bit = and i64 %cpu.wide, 63
  %at = getelementptr i64, ptr %mask, i64 %word
  %old = load i64, ptr %at, align 8
  %one = shl i64 1, %bit
  %keep = xor i64 %one, -1
  %new = and i64 %old, %keep
  store i64 %new, ptr %at, align 8
  br label %scan
scan:
  %i = phi i64 [ 0, %bar ], [ %i.next, %scan ]
  %seen = phi i64 [ 0, %bar ], [ %any, %scan ]
  %i.at = getelementptr i64, ptr %mask, i64 %i
  %part = load i64, ptr %i.at, align 8
  %any = or i64 %seen, %part
  %i.next = add i64 %i, 1
  %end = icmp eq i64 %i.next, $mask_words
  br i1 %end, label %scanned, label %scan
scanned:
  %others = icmp ne i64 %any, 0
  %workers.wide = zext i32 %workers to i64
  %limit = call i64 @llvm.umin.i64(i64 %workers.wide, i64 $placed)
  br i1 %others, label %each, label %done
each:
  %n = phi i64 [ 0, %scanned ], [ %n.next, %next ]
  %offset = mul i64 %n, $record_bytes
  %record = getelementptr i8, $records, i64 %offset
  %state = load atomic i32, ptr %record acquire, align 4
  %asleep = icmp ne i32 %state, 0
  br i1 %asleep, label %move, label %next
move:
  %tid.at = getelementptr i8, ptr %record, i64 4
  %tid = load atomic i32, ptr %tid.at acquire, align 4
  %moved = call i32 @sched_setaffinity(i32 %tid, i64 $mask_bytes, ptr %mask)
  %pair = cmpxchg ptr %record, i32 %state, i32 2 seq_cst seq_cst
  %barred = extractvalue { i32, i1 } %pair, 1
  br i1 %barred, label %next, label %undo
undo:
  ; It woke meanwhile, and may have looked at its record before it was moved.
  %undone = call i32 @sched_setaffinity(i32 %tid, i64 $mask_bytes, $mask)
  br label %next
next:
  %n.next = add i64 %n, 1
  %end.each = icmp uge i64 %n.next, %limit
  br i1 %end.each, label %done, label %each
done:
  ret void
}
"""
