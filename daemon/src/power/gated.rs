//! A device whose batches pass the gate.

use super::gate::Gate;
use std::collections::BTreeSet;
use std::sync::Arc;
use tandem_program::power::Power;
use tandem_program::{BufferId, Device, DeviceError, DeviceInfo, Program, Region, Ticket};

/// A device that holds its votes while batches are in flight.
pub struct Gated {
    device: Box<dyn Device>,
    gate: Arc<Gate>,
    in_flight: BTreeSet<Ticket>,
}

impl Gated {
    /// Takes the device's power handler to the gate and raises its votes. A device without votes
    /// is given back as it is.
    pub fn around(device: Box<dyn Device>, gate: &Arc<Gate>) -> Result<Box<dyn Device>, DeviceError> {
        let Some(power) = device.power() else { return Ok(device) };
        gate.attach(power)?;
        Ok(Box::new(Gated { device, gate: Arc::clone(gate), in_flight: BTreeSet::new() }))
    }

    /// Tells the gate of a session that is lost, so that no votes are asked of it any more.
    fn heard<T>(&self, done: Result<T, DeviceError>) -> Result<T, DeviceError> {
        if let Err(DeviceError::Lost(_)) = &done {
            self.gate.lose();
        }
        done
    }
}

impl Device for Gated {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn create(&mut self, bytes: u64) -> Result<BufferId, DeviceError> {
        let done = self.device.create(bytes);
        self.heard(done)
    }

    fn import(&mut self, region: Region) -> Result<BufferId, DeviceError> {
        let done = self.device.import(region);
        self.heard(done)
    }

    fn destroy(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        let done = self.device.destroy(buffer);
        self.heard(done)
    }

    fn write(&mut self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let done = self.device.write(buffer, offset, bytes);
        self.heard(done)
    }

    fn read(&mut self, buffer: BufferId, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let done = self.device.read(buffer, offset, bytes);
        self.heard(done)
    }

    fn prepare(&mut self, program: &Program) -> Result<(), DeviceError> {
        let done = self.device.prepare(program);
        self.heard(done)
    }

    fn submit(&mut self, program: &Program) -> Result<Ticket, DeviceError> {
        self.gate.enter()?;
        match self.device.submit(program) {
            Ok(ticket) => {
                self.in_flight.insert(ticket);
                Ok(ticket)
            }
            refused => {
                self.gate.leave();
                self.heard(refused)
            }
        }
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        let done = self.device.wait(ticket);
        // Waiting twice is the device's to judge; it is counted once.
        if self.in_flight.remove(&ticket) {
            self.gate.leave();
        }
        self.heard(done)
    }

    fn used(&self) -> u64 {
        self.device.used()
    }

    fn rest(&mut self) {
        self.device.rest();
    }

    fn power(&self) -> Option<Arc<dyn Power>> {
        self.device.power()
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        // The device goes next, and with it its votes.
        self.gate.lose();
    }
}
