//! CONNECT → what the controller decides by: its lane, its cost and whose it is. Done outside of the door's lock.

use super::bucket::Tokens;
use super::lanes::{self, Lane};
use super::{Request, Settings};
use crate::moment::Moment;

/// What the controller decides by. Small, and free of the CONNECT's bytes, names and secrets.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Index into [`Settings::lanes`]; their number for the lane "default".
    pub lane: usize,
    /// Tokens that it takes.
    pub cost: Tokens,
    /// When it came, where it knocks for a second time (its broker failed before anything was answered): its wait
    /// counts from there. `None`: now.
    pub since: Option<Moment>,
}

/// Turns a [`Request`] into an [`Arrival`]. Immutable; a reload makes a new one.
#[derive(Clone, Debug)]
pub struct Classifier {
    lanes: Vec<Lane>,
    clean: Tokens,
    persistent: Tokens,
}

impl Classifier {
    /// For these settings.
    pub fn new(settings: &Settings) -> Self {
        Self {
            lanes: settings.lanes.clone(),
            clean: Tokens::new(settings.cost.clean),
            persistent: Tokens::new(settings.cost.persistent),
        }
    }

    /// What `request` is.
    pub fn classify(&self, request: &Request<'_>) -> Arrival {
        Arrival {
            lane: lanes::classify(&self.lanes, request),
            cost: if request.persistent {
                self.persistent
            } else {
                self.clean
            },
            since: None,
        }
    }
}
