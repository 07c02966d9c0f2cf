//! Seawall as a black box: the daemon in a process of its own, real brokers or a scripted one behind it, real TLS in front.
//!
//! One file a feature, each scenario a test. [`rig`] starts and stops what the scenarios need. Packets are built by
//! [`rig::packet`] from the specifications, never by the code under test. `SEAWALL_BIN` names the daemon (`tests/run`
//! sets it to the release build), else the one that cargo built is taken.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test ends by panicking, and shows its figures"
)]
#![allow(clippy::float_cmp, reason = "metrics are counted, and counts are exact")]
#![allow(unreachable_pub, reason = "`pub` says what the scenarios use of the rig")]
#![allow(clippy::doc_markdown, reason = "the words of MQTT are no code")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the house rules for threads and tasks bind the daemon, not those who watch it"
)]

mod rig;

mod admin;
mod admission;
mod alerts;
mod authentication;
mod brokers;
mod certificates;
mod connect;
mod dashboard;
mod demo;
mod descriptors;
mod drain;
mod gate;
mod health;
mod image;
mod latency;
mod live_page;
mod lockstep;
mod log;
mod operator;
mod peers;
mod policies;
mod proxy_header;
mod refusals;
mod relay;
mod reload;
mod report;
mod resilient_client;
mod resumption;
mod shared_budget;
mod storm;
mod storm_command;
mod takeover;
mod tls;
mod upstream_tls;
mod wire;
