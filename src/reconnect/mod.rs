//! The device side: when to try again. Pure: no I/O, no clock, and randomness is passed in, so that the simulator's
//! devices run the very code that a real one takes with `default-features = false`.

mod schedule;
mod stream;

pub use schedule::{Backoff, Policy, Schedule, ScheduleError};
pub use stream::{from_entropy, from_seed};
