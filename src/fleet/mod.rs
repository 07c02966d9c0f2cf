//! Simulated devices and the broker behind them: the demo, and the ground of storm and plan.

mod authentication;
pub mod broker;
pub mod bystander;
pub mod certificates;
pub mod client;
pub mod demo;
mod device;
mod live;
pub mod mix;
mod packet;
mod report;
mod session;
pub mod storm;
mod tally;
mod topics;
