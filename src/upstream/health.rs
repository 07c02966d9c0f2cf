//! Whether a broker can be used, for `/readyz` and `seawall_upstream_up`.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::Instant;

/// A broker that took a CONNECT and stayed silent looks alive to a dial; it is not trusted again before this.
const DISTRUST: Duration = Duration::from_secs(5);

/// What was last seen of one broker. Starts as usable: the first dial will tell.
#[derive(Debug, Default)]
pub struct Health(Mutex<Option<Failed>>);

#[derive(Clone, Copy, Debug)]
struct Failed {
    distrusted_until: Instant,
}

impl Health {
    /// Whether nothing speaks against it.
    pub fn is_up(&self) -> bool {
        self.read().is_none()
    }

    /// It answered, or took a dial after a failure.
    pub fn succeeded(&self) {
        self.write(None);
    }

    /// It could not be dialled or broke off.
    pub fn failed(&self) {
        self.write(Some(Failed {
            distrusted_until: Instant::now(),
        }));
    }

    /// It stayed silent.
    pub fn stayed_silent(&self) {
        self.write(Some(Failed {
            distrusted_until: Instant::now() + DISTRUST,
        }));
    }

    /// Whether a dial should find out if it is back.
    pub fn wants_probe(&self) -> bool {
        self.read()
            .is_some_and(|failed| failed.distrusted_until <= Instant::now())
    }

    fn read(&self) -> Option<Failed> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, state: Option<Failed>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}
