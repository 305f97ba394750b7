//! What the driver's threads tell: that the DSP's process has ended, that a queue is broken.
//!
//! They are given a number, never a pointer, since nothing says when the last call has been
//! made: a number whose notice is gone is ignored.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

static NEXT: AtomicUsize = AtomicUsize::new(1);

static NOTICES: Mutex<Option<HashMap<usize, Weak<Notice>>>> = Mutex::new(None);

/// What one session has been told.
#[derive(Debug, Default)]
pub(super) struct Notice {
    number: usize,
    /// 0: nothing; else one more than the driver's status, or [`QUEUE`].
    told: AtomicU32,
}

const QUEUE: u32 = 1 << 16;

impl Notice {
    /// A notice that told nothing yet.
    pub(super) fn new() -> Arc<Notice> {
        let mut notices = NOTICES.lock().unwrap_or_else(PoisonError::into_inner);
        let notices = notices.get_or_insert_default();
        notices.retain(|_, notice| notice.strong_count() > 0);
        // Never one that was given out before: the driver may still tell of the session that had it.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let notice = Arc::new(Notice { number, told: AtomicU32::new(0) });
        notices.insert(number, Arc::downgrade(&notice));
        notice
    }

    /// What the driver is given.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Why the session is over, if it is.
    pub(super) fn end(&self) -> Option<&'static str> {
        match self.told.load(Ordering::Acquire) {
            // The first status says that the process is up.
            0 | 1 => None,
            2 => Some("the DSP's process has exited"),
            3 => Some("the DSP's process was killed to free the DSP's memory"),
            4 => Some("the DSP's process has crashed"),
            5 => Some("the whole DSP was restarted"),
            QUEUE => Some("the queue to the DSP is broken"),
            _ => Some("the DSP's process has ended"),
        }
    }
}

fn tell(context: *mut c_void, what: u32) {
    let notices = NOTICES.lock().unwrap_or_else(PoisonError::into_inner);
    let notice = notices.as_ref().and_then(|all| all.get(&context.addr())).and_then(Weak::upgrade);
    if let Some(notice) = notice {
        notice.told.store(what, Ordering::Release);
    }
}

/// FastRPC's status notification: the DSP's process is up (0) or has ended in some way.
pub(super) unsafe extern "C" fn told(
    context: *mut c_void,
    _domain: c_int,
    _session: c_int,
    status: u32,
) -> c_int {
    tell(context, status.saturating_add(1).min(QUEUE - 1));
    0
}

/// A queue's error that nothing repairs.
pub(super) unsafe extern "C" fn queue_failed(_queue: *mut c_void, _code: c_int, context: *mut c_void) {
    tell(context, QUEUE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_hears_of_its_own_session_and_only_while_it_lives() {
        let (one, two) = (Notice::new(), Notice::new());
        assert_ne!(one.number(), two.number());
        let context = std::ptr::without_provenance_mut(one.number());
        // SAFETY: the context is a number.
        unsafe { told(context, 3, 0, 0) };
        assert_eq!(one.end(), None, "the process is up");
        // SAFETY: as above.
        unsafe { told(context, 3, 0, 3) };
        assert_eq!(one.end(), Some("the DSP's process has crashed"));
        assert_eq!(two.end(), None);
        drop(one);
        // SAFETY: as above.
        unsafe { queue_failed(std::ptr::null_mut(), 1, context) };
        assert_eq!(two.end(), None);
    }
}
