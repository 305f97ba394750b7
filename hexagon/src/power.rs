//! Power votes on their way to the DSP: past the queue of batches, so that they are answered
//! whatever it does.

use crate::abi::{self, POWER_MESSAGE, PowerReply, PowerRequest};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use tandem_program::{Corner, DeviceError, Power, Votes};

fn corner(corner: Corner) -> u32 {
    match corner {
        Corner::Off => abi::CORNER_OFF,
        Corner::Low => abi::CORNER_LOW,
        Corner::Nominal => abi::CORNER_NOMINAL,
        Corner::Max => abi::CORNER_MAX,
    }
}

impl From<&Votes> for PowerRequest {
    fn from(votes: &Votes) -> PowerRequest {
        PowerRequest {
            magic: abi::MAGIC,
            version: abi::VERSION,
            clock: corner(votes.clock),
            bus: corner(votes.bus),
            ddr: votes.ddr.into(),
            hmx: votes.hmx.into(),
            sleep: votes.sleep.into(),
            unused: 0,
        }
    }
}

impl PowerReply {
    /// Whether the votes hold.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Votes`] where they were refused and the session goes on;
    /// [`DeviceError::Lost`] where the other side is not our program.
    pub fn verdict(&self) -> Result<(), DeviceError> {
        match self.status {
            _ if self.magic != abi::MAGIC => Err(DeviceError::Lost(format!(
                "the answer to power votes begins with {:#x}: the DSP's program is not ours",
                self.magic
            ))),
            abi::OK => Ok(()),
            abi::E_BUSY | abi::E_POWER => Err(DeviceError::Votes(abi::explain_power(self))),
            _ => Err(DeviceError::Lost(abi::explain_power(self))),
        }
    }
}

/// The emulated DSP's power handler: a socket of its own, which a thread of its own answers.
#[derive(Debug)]
pub(crate) struct PowerSocket {
    /// `None` once the session is known to be gone.
    socket: Mutex<Option<UnixStream>>,
}

impl PowerSocket {
    /// The socket's read timeout is how long an answer may take.
    pub(crate) fn new(socket: UnixStream) -> PowerSocket {
        PowerSocket { socket: Mutex::new(Some(socket)) }
    }
}

impl Power for PowerSocket {
    fn apply(&self, votes: &Votes) -> Result<(), DeviceError> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = socket.as_mut() else {
            return Err(DeviceError::Lost("the DSP's power handler is gone".into()));
        };
        let mut bytes = [0; POWER_MESSAGE];
        let asked =
            open.write_all(&PowerRequest::from(votes).to_bytes()).and_then(|()| open.read_exact(&mut bytes));
        if let Err(error) = asked {
            // A late answer must not be taken for the next one.
            *socket = None;
            return Err(DeviceError::Lost(format!("the DSP's power handler does not answer: {error}")));
        }
        PowerReply::from_bytes(&bytes).verdict()
    }
}
