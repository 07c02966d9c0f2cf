//! Seawall stands between a fleet of MQTT devices and its broker and survives the minute in which all of them
//! come back: it ends TLS, reads each CONNECT, lets through what the broker can serve and tells the rest "server busy".
//!
//! This page is the map. Data flows downwards; nothing imports upwards (held by `tests/architecture.rs`).
//!
//! | layer | modules |
//! |---|---|
//! | words | [`reason`], [`moment`] |
//! | pure core and ground floor | [`mqtt`], [`proxy_header`], [`admission`], [`telemetry`], [`drain`], [`socket`], [`clock`], [`named_file`], [`secret_file`], [`reconnect`], [`chart`] |
//! | TLS of both legs | [`tls`] |
//! | parts | [`relay`], [`upstream`], [`refusal`], [`door`], [`gate`], [`budget`] |
//! | the daemon's faces | [`connection`], [`listener`], [`admin`] |
//! | composition | [`config`], [`app`], [`fleet`], [`report`] |
//! | the command line | [`cli`] |

pub mod moment;
pub mod reconnect;

#[cfg(feature = "daemon")]
pub mod admin;
#[cfg(feature = "daemon")]
pub mod admission;
#[cfg(feature = "daemon")]
pub mod app;
#[cfg(feature = "daemon")]
pub mod budget;
#[cfg(feature = "daemon")]
pub mod chart;
#[cfg(feature = "daemon")]
pub mod cli;
#[cfg(feature = "daemon")]
pub mod clock;
#[cfg(feature = "daemon")]
pub mod config;
#[cfg(feature = "daemon")]
pub mod connection;
#[cfg(feature = "daemon")]
pub mod door;
#[cfg(feature = "daemon")]
pub mod drain;
#[cfg(feature = "demo")]
pub mod fleet;
#[cfg(feature = "daemon")]
pub mod gate;
#[cfg(feature = "daemon")]
pub mod listener;
#[cfg(feature = "daemon")]
pub mod mqtt;
#[cfg(feature = "daemon")]
pub mod named_file;
#[cfg(feature = "daemon")]
pub mod proxy_header;
#[cfg(feature = "daemon")]
pub mod reason;
#[cfg(feature = "daemon")]
pub mod refusal;
#[cfg(feature = "daemon")]
pub mod relay;
#[cfg(feature = "daemon")]
pub mod report;
#[cfg(feature = "daemon")]
pub mod secret_file;
#[cfg(feature = "daemon")]
pub mod socket;
#[cfg(feature = "daemon")]
pub mod telemetry;
#[cfg(feature = "daemon")]
pub mod tls;
#[cfg(feature = "daemon")]
pub mod upstream;
