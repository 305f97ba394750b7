//! The Rust SDK for agent apps.
