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
}

impl Device for Gated {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn create(&mut self, bytes: u64) -> Result<BufferId, DeviceError> {
        self.device.create(bytes)
    }

    fn import(&mut self, region: Region) -> Result<BufferId, DeviceError> {
        self.device.import(region)
    }

    fn destroy(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        self.device.destroy(buffer)
    }

    fn write(&mut self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write(buffer, offset, bytes)
    }

    fn read(&mut self, buffer: BufferId, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(buffer, offset, bytes)
    }

    fn submit(&mut self, program: &Program) -> Result<Ticket, DeviceError> {
        self.gate.enter()?;
        match self.device.submit(program) {
            Ok(ticket) => {
                self.in_flight.insert(ticket);
                Ok(ticket)
            }
            Err(error) => {
                self.gate.leave();
                Err(error)
            }
        }
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        let done = self.device.wait(ticket);
        // Waiting twice is the device's to judge; it is counted once.
        if self.in_flight.remove(&ticket) {
            self.gate.leave();
        }
        done
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
        for _ in 0..self.in_flight.len() {
            self.gate.leave();
        }
    }
}
