//! What can be seen: metrics, audit, log, and the [`ending::Ending`] from which all three are written.

pub mod ending;
pub mod log;
pub mod metrics;
