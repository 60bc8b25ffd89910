// SPDX-License-Identifier: GPL-2.0-or-later
//! What a run costs: the CPU time of its thread, since others work on this machine, and the memory that it holds at most.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

/// The system's allocator, which counts.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    // Neither allocates nor drops anything itself: an allocator may use them.
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

fn took(bytes: usize) {
    let held = HELD.get().saturating_add(bytes);
    HELD.set(held);
    MOST.set(MOST.get().max(held));
}

fn gave_back(bytes: usize) {
    // What was taken before the count began, or by another thread, may come back here.
    HELD.set(HELD.get().saturating_sub(bytes));
}

// SAFETY: the system's own allocator does all of it; counting touches nothing of its.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        gave_back(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        took(size);
        gave_back(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// What a run has cost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    pub cpu: Duration,
    pub bytes: usize,
}

/// Runs it and says what it has cost.
pub fn measured<T>(body: impl FnOnce() -> T) -> (T, Cost) {
    HELD.set(0);
    MOST.set(0);
    let began = cpu_time();
    let result = body();
    let cpu = cpu_time().saturating_sub(began);
    (result, Cost { cpu, bytes: MOST.get() })
}

/// The CPU time of this thread.
pub fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock that every thread has, and a place for its answer.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(code, 0, "this thread has no clock");
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
