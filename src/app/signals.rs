//! What the process is told from outside.

use std::io;

use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals of a run, from here on: none of them ends the process by itself any more.
pub struct Signals {
    pub(super) hangups: Signal,
    pub(super) ends: Ends,
    /// That of the limit for the size of a file: a write that goes beyond it fails instead, as on a full disk.
    _too_large: Signal,
}

impl Signals {
    /// Installs their handlers. To be called within a runtime, and first of all: what comes before is the system's to answer,
    /// and its answer to SIGHUP is the end of the process.
    pub fn install() -> io::Result<Self> {
        Ok(Self {
            hangups: signal(SignalKind::hangup())?,
            ends: Ends {
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
            },
            _too_large: signal(SignalKind::from_raw(Number::XFSZ.as_raw()))?,
        })
    }
}

/// SIGTERM and SIGINT.
pub(super) struct Ends {
    terminate: Signal,
    interrupt: Signal,
}

impl Ends {
    /// Ready when the process is told to end, once more.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
