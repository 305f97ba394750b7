//! Tensors, ops, programs, the Device trait and the scalar reference device.
