//! The device side: when to try again. No clock, no socket, and randomness is passed in, so that the simulator's
//! devices run the very code that a real one takes with `default-features = false`.
//!
//! A client keeps one [`Reconnect`] and asks it after every failure; a simulation keeps a [`Backoff`] for each of its
//! devices and shares the [`Schedule`]. [`ProcessLimit`] and [`HostLimit`] space the connects of many clients of one
//! process or host; the latter is the one place here that touches a file. `docs/devices.md` says which policy when.

mod audit;
mod cause;
mod client;
mod limit;
mod schedule;
mod stream;
#[cfg(test)]
mod tests;

pub use audit::{Audit, Outcome, Record};
pub use cause::{Cause, Lasting};
pub use client::{Endurance, Next, Reason, Reconnect, Settings, Wait, promised};
pub use limit::{HostLimit, ProcessLimit, Rate};
pub use schedule::{Backoff, Policy, Schedule, ScheduleError, UnknownPolicy};
pub use stream::{from_entropy, from_seed};
