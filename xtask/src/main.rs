//! Developer tasks: demo, test, ci.

fn main() {}
