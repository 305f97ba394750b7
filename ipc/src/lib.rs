//! Shared-memory rings, handshake and message types between apps and the daemon.
