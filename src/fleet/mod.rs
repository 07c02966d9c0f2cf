//! Simulated devices and the broker behind them: the demo, and the ground of storm and plan.

pub mod certificates;
mod packet;
