//! Tickets: a returning client is resumed by any replica and by the next start of the process, as long as they have the same
//! secret. Nothing is remembered for a client; what the TLS library wants to find again travels in the ticket, sealed.
//!
//! - Keys are derived from the secret and the window of rotation (`key`): there is nothing to hand from replica to replica.
//! - A ticket lives for `lifetime`, also when the wall clock is stepped (`clock`).
//! - It is bound to the client-authentication policy under which it was issued, and the client's certificate is checked again when
//!   it is redeemed (`session`): the TLS library would do neither. It binds the ticket to the server name itself.
//! - A ticket that is not taken is no failure: a full handshake follows.

mod clock;
mod key;
mod secret;
mod session;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, UNIX_EPOCH};

use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls_pki_types::CertificateDer;

pub use clock::Reading;
pub use key::LONGEST;
pub use secret::{NoRandomness, Secret, SecretError, generate};

use clock::Timeline;
use key::{Keys, Opened, Sealed};

use crate::moment::Moment;
use crate::telemetry;

/// `[tls.resumption]`, where it is enabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// File of the secret; `None`: one of this process's own.
    pub secret_file: Option<PathBuf>,
    /// A new key after this long; a second or more, counted in whole seconds.
    pub rotation: Duration,
    /// How long a ticket can be redeemed: a second to seven days (RFC 8446 section 4.6.1).
    pub lifetime: Duration,
    /// Tickets that a handshake of TLS 1.3 gives, 0 to 4. One of 1.2 gives one ticket.
    pub tickets: usize,
}

/// Secrets that tickets are opened with: the one in use and those that were in use before a reload. A fleet's secret changes once in months;
/// who changes it four times within a ticket's lifetime means the first one to be gone.
const MOST_SECRETS: usize = 4;

/// The process's tickets: secrets, keys and clocks. Lives as long as the process, and is shared by every [`Ticketer`].
pub struct Tickets {
    /// Seconds.
    rotation: u64,
    lifetime: Duration,
    clock: Box<dyn Fn() -> Reading + Send + Sync>,
    timeline: RwLock<Timeline>,
    /// The one in use first. Never empty.
    secrets: RwLock<Vec<Held>>,
}

/// A secret that is held.
#[derive(Debug)]
struct Held {
    keys: Arc<Keys>,
    /// When its last ticket has run out; `None` while it is in use.
    until: Option<Moment>,
}

/// Why there are no tickets.
#[derive(Debug, thiserror::Error)]
pub enum NoTickets {
    /// The secret file can't be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The operating system gives no random numbers.
    #[error(transparent)]
    Randomness(#[from] NoRandomness),
}

impl Tickets {
    /// With `secret`, or with one of the process's own.
    pub fn start(settings: &Settings, secret: Option<Secret>) -> Result<Arc<Self>, NoTickets> {
        let secret = secret.map_or_else(Secret::random, Ok)?;
        let origin = Instant::now();
        let clock = move || Reading {
            wall: telemetry::wall_clock()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            moment: Moment::ZERO + origin.elapsed(),
        };
        Ok(Self::new(settings, secret, clock))
    }

    /// With a secret and a clock of the caller's choice.
    pub fn new(
        settings: &Settings,
        secret: Secret,
        clock: impl Fn() -> Reading + Send + Sync + 'static,
    ) -> Arc<Self> {
        let timeline = Timeline::new(settings.lifetime, clock());
        Arc::new(Self {
            rotation: settings.rotation.as_secs().max(1),
            lifetime: settings.lifetime,
            clock: Box::new(clock),
            timeline: RwLock::new(timeline),
            secrets: RwLock::new(vec![Held {
                keys: Arc::new(Keys::new(secret)),
                until: None,
            }]),
        })
    }

    /// Issues tickets under this secret from now on. What was issued under an earlier one can be redeemed until its tickets
    /// have run out. The same secret again changes nothing.
    pub fn adopt(&self, secret: Secret) {
        let now = (self.clock)().moment;
        let mut secrets = self.secrets.write().unwrap_or_else(PoisonError::into_inner);
        secrets.retain(|held| held.until.is_none_or(|until| now <= until));
        for held in secrets.iter_mut() {
            held.until.get_or_insert(now + self.lifetime);
        }
        let known = secrets.iter().position(|held| held.keys.id() == secret.id);
        let keys = match known {
            Some(index) => secrets.remove(index).keys,
            None => Arc::new(Keys::new(secret)),
        };
        secrets.insert(0, Held { keys, until: None });
        secrets.truncate(MOST_SECRETS);
    }

    /// The tickets of clients that are authenticated by `policy`.
    pub fn under(self: &Arc<Self>, policy: ClientPolicy) -> Arc<Ticketer> {
        Arc::new(Ticketer {
            tickets: Arc::clone(self),
            policy,
        })
    }

    fn now(&self) -> Reading {
        let now = (self.clock)();
        let timeline = self.timeline.read().unwrap_or_else(PoisonError::into_inner);
        let is_stepped = timeline.is_stepped(now);
        drop(timeline);
        if is_stepped {
            let mut timeline = self.timeline.write().unwrap_or_else(PoisonError::into_inner);
            timeline.step(now);
        }
        now
    }

    fn seal(&self, policy: &ClientPolicy, state: &[u8]) -> Option<Vec<u8>> {
        let now = self.now();
        let seconds = now.wall / 1000;
        let window = seconds - seconds % self.rotation;
        let secrets = self.secrets.read().unwrap_or_else(PoisonError::into_inner);
        let keys = Arc::clone(&secrets.first()?.keys);
        drop(secrets);
        keys.seal(window, now.wall, &policy.fingerprint, state)
    }

    fn open(&self, policy: &ClientPolicy, ticket: &[u8]) -> Option<Vec<u8>> {
        let ticket = Sealed::parse(ticket)?;
        let now = self.now();
        let secrets = self.secrets.read().unwrap_or_else(PoisonError::into_inner);
        let held = secrets.iter().find(|held| {
            held.keys.id() == ticket.secret && held.until.is_none_or(|until| now.moment <= until)
        })?;
        let keys = Arc::clone(&held.keys);
        drop(secrets);
        let Opened { issued, state } = keys.open(ticket, &policy.fingerprint)?;
        let timeline = self.timeline.read().unwrap_or_else(PoisonError::into_inner);
        timeline.is_alive(issued, now).then_some(state)
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets")
            .field("rotation", &self.rotation)
            .field("lifetime", &self.lifetime)
            .finish_non_exhaustive()
    }
}

/// Whether a client with this chain, its own certificate first, would be accepted now.
type IsWelcome = dyn Fn(&[CertificateDer<'_>]) -> bool + Send + Sync;

/// How clients are authenticated, as far as tickets are concerned.
pub struct ClientPolicy {
    fingerprint: [u8; 32],
    is_welcome: Box<IsWelcome>,
}

impl ClientPolicy {
    /// `fingerprint` stands for what a client has to prove (mode and authorities): tickets of another policy are declined.
    /// `is_welcome` is asked when a ticket is redeemed, with the chain that the client proved when it got the first of
    /// its tickets (empty: none): whether it would be accepted now.
    pub fn new(
        fingerprint: [u8; 32],
        is_welcome: impl Fn(&[CertificateDer<'_>]) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            fingerprint,
            is_welcome: Box::new(is_welcome),
        }
    }

    /// No client is asked for a certificate.
    pub fn none() -> Self {
        Self::new([0; 32], |chain| chain.is_empty())
    }
}

impl fmt::Debug for ClientPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientPolicy").finish_non_exhaustive()
    }
}

/// Gives and takes the tickets of clients under one policy.
#[derive(Debug)]
pub struct Ticketer {
    tickets: Arc<Tickets>,
    policy: ClientPolicy,
}

impl Ticketer {
    /// Whether a ticket that a client claims to have is one of ours and lives, by symmetric cryptography alone (0.5 µs, 1.6 for a forgery).
    /// Good for an order of precedence, and for nothing else: whoever saw the ticket on the wire can claim it, and the
    /// client's certificate is not looked at before the ticket is redeemed.
    pub fn opens(&self, ticket: &[u8]) -> bool {
        self.tickets
            .open(&self.policy, ticket)
            .is_some_and(|state| session::client_chain(&state).is_some())
    }
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(self.tickets.lifetime.as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.tickets.seal(&self.policy, plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        let state = self.tickets.open(&self.policy, cipher)?;
        let is_welcome = (self.policy.is_welcome)(&session::client_chain(&state)?);
        is_welcome.then_some(state)
    }
}

/// Gives `config` its tickets: `number` of them a handshake of TLS 1.3, or none at all without a ticketer. The library's own memory of
/// sessions is taken away: 256 entries in one process resume nobody in a fleet. Early data stays off: a CONNECT can be replayed.
pub(super) fn equip(config: &mut ServerConfig, ticketer: Option<&Arc<Ticketer>>, number: usize) {
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    config.send_tls13_tickets = 0;
    if let Some(ticketer) = ticketer {
        config.ticketer = Arc::<Ticketer>::clone(ticketer);
        config.send_tls13_tickets = number;
    }
}

#[cfg(test)]
mod tests;
