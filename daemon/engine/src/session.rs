//! The session with a device: the device while it lives, and what is known when it is lost.

use std::sync::Arc;
use tandem_program::power::Power;
use tandem_program::{BufferId, Device, DeviceError, DeviceInfo, Program, Region, Ticket};

/// A device that remembers that it was lost, whichever call heard of it.
///
/// From then on nothing is asked of the device any more: every call fails as lost at once, but
/// for [`Device::destroy`], since what is to be destroyed is gone with the session.
pub struct Session {
    device: Option<Box<dyn Device>>,
    info: DeviceInfo,
    lost: Option<String>,
}

impl Session {
    /// A session that lives.
    pub fn new(device: Box<dyn Device>) -> Self {
        Session { info: device.info().clone(), device: Some(device), lost: None }
    }

    /// Why it is lost; `None` while it lives.
    pub fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// Drops the device, with all its memory. What is asked afterwards fails as lost.
    pub fn end(&mut self) {
        self.device = None;
        self.lost.get_or_insert_with(|| "the session was ended".into());
    }

    fn ask<T>(
        &mut self,
        call: impl FnOnce(&mut dyn Device) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let Some(device) = self.device.as_mut().filter(|_| self.lost.is_none()) else {
            return Err(DeviceError::Lost(self.lost.clone().unwrap_or_default()));
        };
        let done = call(device.as_mut());
        if let Err(DeviceError::Lost(why)) = &done {
            self.lost = Some(why.clone());
        }
        done
    }
}

impl Device for Session {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn create(&mut self, bytes: u64) -> Result<BufferId, DeviceError> {
        self.ask(|device| device.create(bytes))
    }

    fn import(&mut self, region: Region) -> Result<BufferId, DeviceError> {
        self.ask(|device| device.import(region))
    }

    fn destroy(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        if self.lost.is_some() {
            return Ok(());
        }
        match self.ask(|device| device.destroy(buffer)) {
            Err(DeviceError::Lost(_)) => Ok(()),
            done => done,
        }
    }

    fn write(&mut self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.ask(|device| device.write(buffer, offset, bytes))
    }

    fn read(&mut self, buffer: BufferId, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.ask(|device| device.read(buffer, offset, bytes))
    }

    fn prepare(&mut self, program: &Program) -> Result<(), DeviceError> {
        self.ask(|device| device.prepare(program))
    }

    fn submit(&mut self, program: &Program) -> Result<Ticket, DeviceError> {
        self.ask(|device| device.submit(program))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        self.ask(|device| device.wait(ticket))
    }

    fn used(&self) -> u64 {
        self.device.as_ref().map_or(0, |device| device.used())
    }

    fn rest(&mut self) {
        if let Some(device) = self.device.as_mut().filter(|_| self.lost.is_none()) {
            device.rest();
        }
    }

    fn power(&self) -> Option<Arc<dyn Power>> {
        self.device.as_ref().and_then(|device| device.power())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_program::reference::Reference;

    /// A reference device that is lost at its n-th batch.
    struct Mortal(Reference, u32);

    impl Device for Mortal {
        fn info(&self) -> &DeviceInfo {
            self.0.info()
        }
        fn create(&mut self, bytes: u64) -> Result<BufferId, DeviceError> {
            self.0.create(bytes)
        }
        fn import(&mut self, region: Region) -> Result<BufferId, DeviceError> {
            self.0.import(region)
        }
        fn destroy(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
            self.0.destroy(buffer)
        }
        fn write(&mut self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
            self.0.write(buffer, offset, bytes)
        }
        fn read(&mut self, buffer: BufferId, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
            self.0.read(buffer, offset, bytes)
        }
        fn submit(&mut self, program: &Program) -> Result<Ticket, DeviceError> {
            self.1 = self.1.checked_sub(1).ok_or_else(|| DeviceError::Lost("it died".into()))?;
            self.0.submit(program)
        }
        fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
            self.0.wait(ticket)
        }
        fn used(&self) -> u64 {
            self.0.used()
        }
    }

    #[test]
    fn what_was_lost_stays_lost_and_is_asked_nothing_more() {
        let mut session = Session::new(Box::new(Mortal(Reference::new(), 1)));
        let buffer = session.create(64).unwrap();
        assert!(session.submit(&Program::new()).is_ok() && session.lost().is_none());
        let missing = session.destroy(BufferId(99));
        assert!(matches!(missing, Err(DeviceError::NoBuffer(99))) && session.lost().is_none());
        assert!(matches!(session.submit(&Program::new()), Err(DeviceError::Lost(_))));
        assert_eq!(session.lost(), Some("it died"));
        assert!(matches!(session.read(buffer, 0, &mut [0]), Err(DeviceError::Lost(_))));
        session.destroy(buffer).unwrap();
        assert_eq!(session.used(), 64, "what is lost was asked to free memory");
        session.end();
        assert_eq!((session.used(), session.lost()), (0, Some("it died")));
        assert_eq!(session.info().name, "reference");
    }
}
