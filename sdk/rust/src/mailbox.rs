//! The queue of one request: the reader thread puts messages in, one caller
//! takes them out, blocking or by polling.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};

use tandem_ipc::message::ServerMessage;

use crate::error::{Ending, Error};

#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<ServerMessage>,
    ending: Option<Ending>,
    waker: Option<Waker>,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|held| held.into_inner())
    }

    pub(crate) fn put(&self, message: ServerMessage) {
        self.change(|state| state.queue.push_back(message));
    }

    /// Tells the caller, after the messages that are there, that no more come.
    pub(crate) fn end(&self, ending: Ending) {
        self.change(|state| state.ending = Some(ending));
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let waker = {
            let mut state = self.lock();
            change(&mut state);
            state.waker.take()
        };
        self.news.notify_one();
        // Outside the lock: a waker may run the caller's code at once.
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next message; `None` when `timeout` is over.
    pub(crate) fn take(&self, timeout: Option<Duration>) -> Result<Option<ServerMessage>, Error> {
        let start = Instant::now();
        let mut state = self.lock();
        loop {
            if let Some(message) = state.queue.pop_front() {
                return Ok(Some(message));
            }
            if let Some(ending) = &state.ending {
                return Err(ending.clone().into());
            }
            state = match timeout {
                None => self.news.wait(state).unwrap_or_else(|held| held.into_inner()),
                Some(timeout) => {
                    let Some(left) = timeout.checked_sub(start.elapsed()) else {
                        return Ok(None);
                    };
                    let waited = self.news.wait_timeout(state, left);
                    waited.unwrap_or_else(|held| held.into_inner()).0
                }
            };
        }
    }

    /// The next message if there is one; otherwise `waker` is called once
    /// there is.
    #[cfg(feature = "async")]
    pub(crate) fn poll(&self, waker: &Waker) -> std::task::Poll<Result<ServerMessage, Error>> {
        use std::task::Poll;
        let mut state = self.lock();
        if let Some(message) = state.queue.pop_front() {
            return Poll::Ready(Ok(message));
        }
        if let Some(ending) = &state.ending {
            return Poll::Ready(Err(ending.clone().into()));
        }
        match &mut state.waker {
            Some(kept) => kept.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        Poll::Pending
    }
}
