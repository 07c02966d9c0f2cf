//! Simulated devices and the broker behind them: the demo, and the ground of storm and plan.

mod authentication;
pub mod broker;
pub mod certificates;
mod packet;
mod topics;
