//! Whether a broker can be used, for `/readyz` and `seawall_upstream_up`.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A broker that took a CONNECT and stayed silent looks alive to a dial; it is not trusted again before this.
const DISTRUST: Duration = Duration::from_secs(5);

/// What was last seen of one broker. Starts as usable: the first dial will tell.
#[derive(Debug, Default)]
pub struct Health(Mutex<Option<Failed>>);

#[derive(Clone, Debug)]
struct Failed {
    distrusted_until: Instant,
    /// What keeps us from it, where that is known and no client's doing.
    trouble: Option<String>,
}

impl Health {
    /// Whether nothing speaks against it.
    pub fn is_up(&self) -> bool {
        self.lock().is_none()
    }

    /// It answered, or took a dial after a failure.
    pub fn succeeded(&self) {
        *self.lock() = None;
    }

    /// It broke off.
    pub fn failed(&self) {
        self.note(Duration::ZERO, None);
    }

    /// It could not be reached, for this reason.
    pub fn unreachable(&self, why: &impl ToString) {
        self.note(Duration::ZERO, Some(why.to_string()));
    }

    /// It stayed silent.
    pub fn stayed_silent(&self) {
        self.note(DISTRUST, None);
    }

    /// Whether a dial should find out if it is back.
    pub fn wants_probe(&self) -> bool {
        let failed = self.lock();
        failed
            .as_ref()
            .is_some_and(|failed| failed.distrusted_until <= Instant::now())
    }

    /// What keeps us from it, since when it was last reached: the network, the system, TLS. Nothing that a client can cause.
    pub fn trouble(&self) -> Option<String> {
        self.lock().as_ref()?.trouble.clone()
    }

    fn note(&self, distrust: Duration, trouble: Option<String>) {
        *self.lock() = Some(Failed {
            distrusted_until: Instant::now() + distrust,
            trouble,
        });
    }

    fn lock(&self) -> MutexGuard<'_, Option<Failed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trouble_is_that_of_the_last_attempt() {
        let health = Health::default();
        assert_eq!((health.is_up(), health.trouble()), (true, None));
        health.unreachable(&"connection refused");
        assert_eq!(health.trouble().as_deref(), Some("connection refused"));
        assert!(!health.is_up() && health.wants_probe());
        // It was reached: what happened then may be a client's doing.
        health.failed();
        assert_eq!((health.is_up(), health.trouble()), (false, None));
        health.unreachable(&"not trusted");
        health.stayed_silent();
        assert_eq!((health.trouble(), health.wants_probe()), (None, false));
        health.succeeded();
        assert!(health.is_up());
    }
}
