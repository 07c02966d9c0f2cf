//! Layers.
fn main() {}
