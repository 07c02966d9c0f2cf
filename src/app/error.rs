//! Why the daemon could not be started.

use std::io;

use super::descriptors::TooFewDescriptors;
use super::takeover::TakeoverError;
use crate::admin::{AccessError, AdminError};
use crate::budget::BudgetError;
use crate::listener::BindError;
use crate::telemetry::audit::AuditError;
use crate::tls;

/// The daemon could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Files of the configuration can't be used: the operator's to mend (exit 78).
    #[error("{}", join(.0, "\n"))]
    Tls(Vec<tls::LoadError>),
    /// Files of `[admin]` can't be used: the operator's to mend (exit 78).
    #[error("{}", join(.0, "\n"))]
    Access(Vec<AccessError>),
    /// An address can't be listened on (exit 71).
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The process that runs does not hand over (exit 71).
    #[error(transparent)]
    Takeover(#[from] TakeoverError),
    /// The admin side can't be started (exit 71).
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The shared budget can't be set up: the operator's to mend (exit 78).
    #[error("shared_budget.ca: {0}")]
    Budget(#[from] BudgetError),
    /// The audit log can't be written (exit 71).
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// No connection fits under the descriptor limit (exit 71).
    #[error(transparent)]
    Descriptors(#[from] TooFewDescriptors),
    /// The operating system refuses something else (exit 71).
    #[error("the operating system refuses: {0}")]
    System(#[from] io::Error),
    /// A bug of ours (exit 70).
    #[error("metrics can't be registered: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// All of `errors` as one text.
pub(super) fn join(errors: &[impl ToString], between: &str) -> String {
    errors
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(between)
}
