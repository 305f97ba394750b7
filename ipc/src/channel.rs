//! Messages over rings and doorbells: what both ends of a connection have in
//! common.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::doorbell::Ringer;
use crate::message::{DecodeError, Message};
use crate::region::{OwnRegion, Region};
use crate::ring::{Consumer, Corrupt, Peer, Producer, PushError};
use crate::spin::Spin;

/// A frame buffer larger than this is given back after use, so that one long
/// prompt does not stay resident for the life of the connection.
const KEPT_BUFFER: usize = 64 * 1024;

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No room, too large, or the peer's memory is corrupt.
    #[error(transparent)]
    Ring(#[from] PushError),
    /// The message has no postcard form.
    #[error("encoding a {what}: {reason}")]
    Encode {
        /// The message's type.
        what: &'static str,
        /// postcard's reason.
        reason: postcard::Error,
    },
    /// The doorbell could not be rung; the peer may sleep on.
    #[error("ringing the doorbell: {0}")]
    Doorbell(std::io::Error),
}

impl SendError {
    /// Whether the ring was only full: wait for the doorbell and send again.
    pub fn is_full(&self) -> bool {
        matches!(self, SendError::Ring(PushError::Full { .. }))
    }

    /// Whether the message itself is too large: the connection is fine.
    pub fn is_too_large(&self) -> bool {
        matches!(self, SendError::Ring(PushError::Size { .. }))
    }
}

/// Why no message was received. Each of these ends the connection.
#[derive(Debug, thiserror::Error)]
pub enum RecvError {
    /// The peer's indices or lengths are impossible.
    #[error(transparent)]
    Ring(#[from] Corrupt),
    /// A frame that is no message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The doorbell could not be rung for a producer that waits for room.
    #[error("ringing the doorbell: {0}")]
    Doorbell(std::io::Error),
}

/// Sends messages of type `M`.
#[derive(Debug)]
pub struct Sender<M> {
    producer: Producer<OwnRegion, Region>,
    ringer: Arc<Ringer>,
    frame: Vec<u8>,
    message: PhantomData<fn(M)>,
}

impl<M: Message> Sender<M> {
    pub(crate) fn new(producer: Producer<OwnRegion, Region>, ringer: Arc<Ringer>) -> Self {
        Sender { producer, ringer, frame: Vec::new(), message: PhantomData }
    }

    /// Largest encoded message, bytes.
    pub fn frame_cap(&self) -> usize {
        self.producer.frame_cap()
    }

    /// Sends one message; never blocks.
    ///
    /// # Errors
    /// When [`SendError::is_full`], nothing was sent and this side's doorbell
    /// rings as soon as half the ring is free.
    pub fn send(&mut self, message: &M) -> Result<(), SendError> {
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        message.encode(&mut frame).map_err(|reason| SendError::Encode { what: M::NAME, reason })?;
        let sent = self.send_frame(&frame);
        if frame.capacity() <= KEPT_BUFFER {
            self.frame = frame;
        }
        sent
    }

    /// Sends the bytes of a message that is encoded already.
    pub fn send_frame(&mut self, frame: &[u8]) -> Result<(), SendError> {
        match self.producer.push(frame)? {
            Peer::Awake => Ok(()),
            Peer::Asleep => self.ringer.ring().map_err(|errno| SendError::Doorbell(errno.into())),
        }
    }
}

/// Receives messages of type `M`.
#[derive(Debug)]
pub struct Receiver<M> {
    consumer: Consumer<OwnRegion, Region>,
    ringer: Arc<Ringer>,
    spin: Spin,
    frame: Vec<u8>,
    message: PhantomData<fn() -> M>,
}

impl<M: Message> Receiver<M> {
    pub(crate) fn new(consumer: Consumer<OwnRegion, Region>, ringer: Arc<Ringer>) -> Self {
        Receiver { consumer, ringer, spin: Spin::default(), frame: Vec::new(), message: PhantomData }
    }

    /// The next message, or `None` with the promise that this side's doorbell
    /// rings for the next one. Call it until `None` whenever the doorbell rang.
    pub fn recv(&mut self) -> Result<Option<M>, RecvError> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            if self.consumer.sleep() {
                return Ok(None);
            }
        }
    }

    /// As [`recv`](Receiver::recv), but `None` promises nothing: for a caller
    /// that looks again by itself.
    pub fn take(&mut self) -> Result<Option<M>, RecvError> {
        let Some(producer) = self.consumer.pop(&mut self.frame)? else {
            return Ok(None);
        };
        let message = M::decode(&self.frame);
        if self.frame.capacity() > KEPT_BUFFER {
            self.frame = Vec::new();
        }
        if producer == Peer::Asleep {
            self.ringer.ring().map_err(|errno| RecvError::Doorbell(errno.into()))?;
        }
        Ok(Some(message?))
    }

    /// Looks for news, briefly by itself and then once more with the sleep
    /// announced. Returns false when the caller may sleep until the doorbell.
    pub(crate) fn settle(&mut self) -> bool {
        self.consumer.wake();
        let consumer = &mut self.consumer;
        self.spin.until(|| consumer.has_news()) || !self.consumer.sleep()
    }
}
