//! Simulated devices and the broker behind them: the demo, and the ground of storm and plan.

mod authentication;
pub mod broker;
pub mod bystander;
pub mod calibrate;
pub mod certificates;
pub mod client;
pub mod demo;
mod device;
pub mod identity;
pub mod mix;
pub mod outcome;
mod packet;
pub mod plan;
pub mod population;
mod session;
pub mod storm;
pub mod swarm;
mod tally;
mod topics;
pub mod trust;
