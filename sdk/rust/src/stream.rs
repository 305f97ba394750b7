//! The poll form of a generation: `core::task` and nothing else, so that it
//! works under any executor. The reader thread calls the waker.

use std::future::poll_fn;
use std::task::{Context, Poll};

use crate::error::Error;
use crate::generation::{Event, Generation};

impl Generation {
    /// The shape of `Stream::poll_next`: the next event, or `None` after the end.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Event, Error>>> {
        if self.over {
            return Poll::Ready(None);
        }
        match self.mailbox.poll(context.waker()) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(message)) => Poll::Ready(Some(self.event(message))),
            Poll::Ready(Err(error)) => {
                self.over = true;
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    /// The next event, or `None` after the end. Dropping the future loses
    /// nothing.
    pub async fn next_event(&mut self) -> Option<Result<Event, Error>> {
        poll_fn(|context| self.poll_next(context)).await
    }
}
