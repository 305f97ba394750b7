//! A small pool of threads that share out the items of one job at a time.
//!
//! The thread that submits works too. Items are claimed one by one from one atomic word, and
//! whatever else describes the job is read after a claim succeeded, when the job cannot end
//! before the claimed item is done. So a late thread can neither take an item twice nor one
//! of a job that is over:
//!
//! ```text
//! word:  │ job number (40 bits) │ items not yet claimed (24 bits) │
//! ```
//!
//! Waiting is a short spin, then sleep: a neighbour that needs the core gets it, and an idle
//! device costs nothing. A job is over when all its items are done, whether or not every
//! thread woke up for it.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Spins before sleeping: a few tens of microseconds, longer than the gap between two ops
/// and much shorter than a scheduler's slice.
const SPINS: u32 = 2_000;

/// Bits of the word that count items.
const ITEM_BITS: u32 = 24;
const ITEM_MASK: u64 = (1 << ITEM_BITS) - 1;

/// What threads run: `(worker, item)`.
type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

struct Shared {
    word: AtomicU64,
    items: AtomicU32,
    /// The task, a pointer to a `&Task` on the submitter's stack.
    task: AtomicPtr<()>,
    done: AtomicU32,
    /// Workers asleep or about to be.
    asleep: AtomicUsize,
    /// The submitter is asleep or about to be.
    waiting: AtomicBool,
    panicked: AtomicBool,
    stop: AtomicBool,
    lock: Mutex<()>,
    work: Condvar,
    finished: Condvar,
}

/// See the module.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// One submitter at a time, and none from inside a task: not `Sync`.
    _submitter: PhantomData<Cell<()>>,
}

impl Pool {
    /// A pool in which `threads` threads work, the submitter among them.
    pub(crate) fn new(threads: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            word: AtomicU64::new(0),
            items: AtomicU32::new(0),
            task: AtomicPtr::new(std::ptr::null_mut()),
            done: AtomicU32::new(0),
            asleep: AtomicUsize::new(0),
            waiting: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            lock: Mutex::new(()),
            work: Condvar::new(),
            finished: Condvar::new(),
        });
        let mut pool = Pool { shared, threads: Vec::new(), _submitter: PhantomData };
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new()
                .name(format!("tandem-cpu-{worker}"))
                .spawn(move || shared.serve(worker))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Threads that work, the submitter included.
    pub(crate) fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `task(worker, item)` for every item below `items`, in any order, on any threads;
    /// returns when all are done. `worker` is below [`Pool::threads`] and no two calls at
    /// once share it.
    pub(crate) fn run(&self, items: usize, task: &Task<'_>) {
        assert!(items as u64 <= ITEM_MASK, "{items} items in a job");
        if items <= 1 || self.threads.is_empty() {
            (0..items).for_each(|item| task(0, item));
            return;
        }
        let shared = &*self.shared;
        let count = items as u32;
        let task: *const &Task<'_> = &task;
        shared.task.store(task.cast_mut().cast(), Ordering::Relaxed);
        shared.items.store(count, Ordering::Relaxed);
        shared.done.store(0, Ordering::Relaxed);
        let job = (shared.word.load(Ordering::Relaxed) >> ITEM_BITS).wrapping_add(1);
        let word = (job << ITEM_BITS) | u64::from(count);
        shared.word.store(word, Ordering::SeqCst);
        if shared.asleep.load(Ordering::SeqCst) > 0 {
            let _guard = shared.lock.lock().unwrap_or_else(PoisonError::into_inner);
            shared.work.notify_all();
        }
        while shared.claim_and_run(0) {}
        shared.await_items(count);
        if shared.panicked.swap(false, Ordering::Relaxed) {
            resume_unwind(Box::new("a kernel panicked on a worker thread"));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        {
            let _guard = self.shared.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.work.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A worker catches the panics of its tasks, so there is nothing to learn here.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Claims one item and runs it; false where none is left.
    fn claim_and_run(&self, worker: usize) -> bool {
        let mut word = self.word.load(Ordering::Acquire);
        while word & ITEM_MASK != 0 {
            match self.word.compare_exchange_weak(word, word - 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.run_item(worker, (word & ITEM_MASK) as u32);
                    return true;
                }
                Err(now) => word = now,
            }
        }
        false
    }

    /// Runs the item that was claimed when `left` were left, itself included.
    fn run_item(&self, worker: usize, left: u32) {
        let items = self.items.load(Ordering::Relaxed);
        let item = (items - left) as usize;
        let task = self.task.load(Ordering::Relaxed);
        // SAFETY: `run` stored a pointer to a `&Task` before it published the word, and
        // returns only when all items are done. This one was claimed from that word and is
        // not done, so `run` is still there and its `&Task` with it.
        let task: &Task<'_> = unsafe { *task.cast::<&Task<'_>>() };
        if catch_unwind(AssertUnwindSafe(|| task(worker, item))).is_err() {
            self.panicked.store(true, Ordering::Relaxed);
        }
        if self.done.fetch_add(1, Ordering::SeqCst) + 1 == items && self.waiting.load(Ordering::SeqCst) {
            let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.finished.notify_all();
        }
    }

    fn await_items(&self, items: u32) {
        let over = || self.done.load(Ordering::SeqCst) == items;
        for _ in 0..SPINS {
            if over() {
                return;
            }
            std::hint::spin_loop();
        }
        self.waiting.store(true, Ordering::SeqCst);
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !over() {
            guard = self.finished.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.waiting.store(false, Ordering::SeqCst);
    }

    fn serve(&self, worker: usize) {
        loop {
            let mut spins = 0;
            while spins < SPINS {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                if self.claim_and_run(worker) {
                    spins = 0;
                } else {
                    spins += 1;
                    std::hint::spin_loop();
                }
            }
            let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.asleep.fetch_add(1, Ordering::SeqCst);
            while self.word.load(Ordering::SeqCst) & ITEM_MASK == 0 && !self.stop.load(Ordering::SeqCst) {
                guard = self.work.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.asleep.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_runs_once_and_sees_the_job_that_it_belongs_to() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            for job in 0..3_000usize {
                let items = job % 37;
                let counts: Vec<AtomicU32> = (0..items).map(|_| AtomicU32::new(0)).collect();
                pool.run(items, &|worker, item| {
                    assert!(worker < threads);
                    counts[item].fetch_add(1 + job as u32, Ordering::Relaxed);
                });
                for count in &counts {
                    assert_eq!(count.load(Ordering::Relaxed), 1 + job as u32);
                }
            }
        }
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_submitter_and_leaves_the_pool_usable() {
        let pool = Pool::new(3).unwrap();
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(64, &|_, item| assert!(item != 40, "item 40"));
        }));
        assert!(result.is_err());
        let count = AtomicU32::new(0);
        pool.run(64, &|_, _| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), 64);
    }

    #[test]
    fn workers_that_sleep_wake_for_the_next_job() {
        let pool = Pool::new(2).unwrap();
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(3));
            let seen = Mutex::new(std::collections::HashSet::new());
            pool.run(8, &|worker, _| {
                seen.lock().unwrap().insert(worker);
                std::thread::sleep(std::time::Duration::from_millis(2));
            });
            assert_eq!(seen.lock().unwrap().len(), 2);
        }
    }
}
