//! The Tandem daemon: connections, scheduling, policies, power, watchdog.
