//! From the secret to a key, and from a key to a sealed ticket.
//!
//! ```text
//! version   1 byte    this layout
//! secret    8 bytes   which secret: HKDF-Expand(secret, "id")
//! window    8 bytes   start of the window of rotation it was issued in, Unix time in seconds
//! nonce    12 bytes   random
//! sealed              AES-256-GCM under HKDF-Expand(secret, "key" ‖ window):
//!   issued  8 bytes     Unix time in milliseconds
//!   state               what the TLS library wants to find again
//! tag      16 bytes
//! ```
//!
//! The additional data is all that comes before `sealed`, then the fingerprint of the client-authentication policy. A window, and not
//! the number of one, is what the key is derived from: so a ticket can be opened whatever `rotation` is now.

use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{KeyType, Prk};
use aws_lc_rs::rand;

use super::secret::Secret;
use crate::tls::wire::Reader;

/// Name of a secret, as tickets bear it in the clear: tells a foreign ticket without any cryptography.
pub(super) type Id = [u8; 8];

/// Separates this use of a secret from any other.
pub(super) const SALT: &[u8] = b"seawall tls tickets";

/// Longest ticket that is made or looked at. It carries the client's certificate chain where there is one, 1 to 5 KiB; and it has to
/// come back within a ClientHello of [`hello::LIMIT`](crate::tls::hello::LIMIT).
pub const LONGEST: usize = 8 * 1024;

const VERSION: u8 = 1;
const HEADER: usize = 1 + size_of::<Id>() + 8 + NONCE_LEN;
const ISSUED: usize = 8;
const TAG: usize = 16;

/// Keys that are remembered for a secret: the default lifetime and rotation need six. What is not remembered is derived
/// again, at about 1 µs.
const MOST_KEYS: usize = 16;

/// A secret and the keys that were derived from it.
#[derive(Debug)]
pub(super) struct Keys {
    secret: Secret,
    /// By the start of their window.
    remembered: Mutex<Vec<(u64, Arc<Key>)>>,
}

struct Key(LessSafeKey);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").finish_non_exhaustive()
    }
}

/// A ticket as it came, not opened yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sealed<'a> {
    /// Name of the secret that it claims to be sealed under.
    pub(super) secret: Id,
    window: u64,
    nonce: [u8; NONCE_LEN],
    header: &'a [u8],
    body: &'a [u8],
}

/// What was in a ticket.
pub(super) struct Opened {
    /// When it was issued: Unix time in milliseconds.
    pub(super) issued: u64,
    /// The TLS library's state.
    pub(super) state: Vec<u8>,
}

impl<'a> Sealed<'a> {
    /// Takes a ticket apart; `None`: it can't be one of ours.
    pub(super) fn parse(ticket: &'a [u8]) -> Option<Self> {
        if ticket.len() > LONGEST || ticket.len() < HEADER + ISSUED + TAG {
            return None;
        }
        let header = ticket.get(..HEADER)?;
        let mut reader = Reader::new(ticket);
        let version = reader.uint8()?;
        let sealed = Self {
            secret: reader.array()?,
            window: reader.uint64()?,
            nonce: reader.array()?,
            header,
            body: reader.rest(),
        };
        (version == VERSION).then_some(sealed)
    }
}

/// The name of the secret behind `key`.
pub(super) fn id(key: &Prk) -> Id {
    derive(key, &[b"id"]).unwrap_or_default()
}

impl Keys {
    pub(super) const fn new(secret: Secret) -> Self {
        Self {
            secret,
            remembered: Mutex::new(Vec::new()),
        }
    }

    pub(super) const fn id(&self) -> Id {
        self.secret.id
    }

    /// Seals `state`; `None` when it is longer than a ticket may be, or when there is no randomness.
    pub(super) fn seal(&self, window: u64, issued: u64, policy: &[u8], state: &[u8]) -> Option<Vec<u8>> {
        let length = HEADER + ISSUED + state.len() + TAG;
        if length > LONGEST {
            return None;
        }
        let key = self.key(window)?;
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut ticket = Vec::with_capacity(length);
        ticket.push(VERSION);
        ticket.extend_from_slice(&self.id());
        ticket.extend_from_slice(&window.to_be_bytes());
        ticket.extend_from_slice(&nonce);
        let additional = Aad::from([&ticket, policy].concat());
        let mut sealed = Vec::with_capacity(length - HEADER);
        sealed.extend_from_slice(&issued.to_be_bytes());
        sealed.extend_from_slice(state);
        key.0
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), additional, &mut sealed)
            .ok()?;
        self.remember(window, key);
        ticket.extend_from_slice(&sealed);
        Some(ticket)
    }

    /// Opens a ticket; `None` when it was not sealed under this secret and policy, or has been changed since.
    pub(super) fn open(&self, ticket: Sealed<'_>, policy: &[u8]) -> Option<Opened> {
        let key = self.key(ticket.window)?;
        let additional = Aad::from([ticket.header, policy].concat());
        let mut bytes = ticket.body.to_vec();
        let nonce = Nonce::assume_unique_for_key(ticket.nonce);
        let plain = key.0.open_in_place(nonce, additional, &mut bytes).ok()?;
        // Only now: forgeries must not drive out the keys that are in use.
        self.remember(ticket.window, key);
        let mut reader = Reader::new(plain);
        Some(Opened {
            issued: reader.uint64()?,
            state: reader.rest().to_vec(),
        })
    }

    fn key(&self, window: u64) -> Option<Arc<Key>> {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, key)) = remembered.iter().find(|(start, _)| *start == window) {
            return Some(Arc::clone(key));
        }
        drop(remembered);
        let bytes: [u8; 32] = derive(&self.secret.key, &[b"key", &window.to_be_bytes()])?;
        let key = UnboundKey::new(&AES_256_GCM, &bytes).ok()?;
        Some(Arc::new(Key(LessSafeKey::new(key))))
    }

    fn remember(&self, window: u64, key: Arc<Key>) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.iter().any(|(start, _)| *start == window) {
            return;
        }
        if remembered.len() >= MOST_KEYS {
            // The oldest window's tickets run out first.
            let oldest = remembered.iter().map(|(start, _)| *start).min();
            remembered.retain(|(start, _)| Some(*start) != oldest);
        }
        remembered.push((window, key));
    }
}

fn derive<const N: usize>(key: &Prk, info: &[&[u8]]) -> Option<[u8; N]> {
    struct Bytes(usize);

    impl KeyType for Bytes {
        fn len(&self) -> usize {
            self.0
        }
    }

    let mut bytes = [0; N];
    key.expand(info, Bytes(N)).ok()?.fill(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: [u8; 32] = [7; 32];
    const WINDOW: u64 = 1_800_000_000;
    const ISSUED_AT: u64 = 1_800_000_123_456;

    fn keys(seed: u8) -> Keys {
        Keys::new(Secret::new(&[seed; 32]))
    }

    fn open(keys: &Keys, ticket: &[u8], policy: &[u8]) -> Option<(u64, Vec<u8>)> {
        let opened = keys.open(Sealed::parse(ticket)?, policy)?;
        Some((opened.issued, opened.state))
    }

    /// Made from this module's description by Python and OpenSSL, not by this module.
    #[test]
    fn a_ticket_of_an_independent_implementation_is_opened() {
        let line = include_str!("../../../tests/vectors/ticket.txt")
            .lines()
            .find(|line| !line.starts_with('#'))
            .unwrap();
        let ticket: Vec<u8> = (0..line.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap())
            .collect();
        let opened = open(&keys(1), &ticket, &POLICY).expect("opens");
        assert_eq!(opened, (ISSUED_AT, b"state of the session".to_vec()));
    }

    #[test]
    fn only_the_same_secret_and_policy_open_it() {
        let ticket = keys(1).seal(WINDOW, ISSUED_AT, &POLICY, b"state").unwrap();
        assert_eq!(
            open(&keys(1), &ticket, &POLICY),
            Some((ISSUED_AT, b"state".to_vec()))
        );
        assert_eq!(open(&keys(2), &ticket, &POLICY), None);
        assert_eq!(open(&keys(1), &ticket, &[8; 32]), None);
        assert_eq!(Sealed::parse(&ticket).unwrap().secret, keys(1).id());
    }

    #[test]
    fn no_two_tickets_are_the_same() {
        let keys = keys(1);
        let seal = || keys.seal(WINDOW, ISSUED_AT, &POLICY, b"state").unwrap();
        assert_ne!(seal(), seal());
    }

    #[test]
    fn a_ticket_has_a_largest_size() {
        let keys = keys(1);
        let room = LONGEST - HEADER - ISSUED - TAG;
        let ticket = keys.seal(WINDOW, ISSUED_AT, &POLICY, &vec![5; room]).unwrap();
        assert_eq!(ticket.len(), LONGEST);
        assert!(open(&keys, &ticket, &POLICY).is_some());
        assert_eq!(keys.seal(WINDOW, ISSUED_AT, &POLICY, &vec![5; room + 1]), None);
        assert!(Sealed::parse(&[ticket, vec![0]].concat()).is_none());
    }

    #[test]
    fn keys_are_remembered_up_to_a_limit_and_forgeries_are_not() {
        let keys = keys(1);
        let tickets: Vec<Vec<u8>> = (0..40)
            .map(|number| keys.seal(number * 3600, ISSUED_AT, &POLICY, b"state").unwrap())
            .collect();
        let remembered = || keys.remembered.lock().unwrap().len();
        assert_eq!(remembered(), MOST_KEYS);
        for ticket in &tickets {
            assert!(open(&keys, ticket, &POLICY).is_some());
        }
        assert_eq!(remembered(), MOST_KEYS);

        let fresh = self::keys(1);
        let mut forged = tickets[0].clone();
        forged[12] ^= 1;
        assert!(open(&fresh, &forged, &POLICY).is_none());
        assert_eq!(fresh.remembered.lock().unwrap().len(), 0);
    }

    #[test]
    fn debug_shows_no_key() {
        let keys = keys(1);
        keys.seal(WINDOW, ISSUED_AT, &POLICY, b"state").unwrap();
        let shown = format!("{keys:?}");
        assert!(
            shown.contains("Key { .. }") && shown.contains("Secret { .. }"),
            "{shown}"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_declined(ticket in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(open(&keys(1), &ticket, &POLICY).is_none());
        }

        #[test]
        fn a_changed_ticket_is_declined(
            at in any::<prop::sample::Index>(),
            flip in 1..=u8::MAX,
            state in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let mut ticket = keys(1).seal(WINDOW, ISSUED_AT, &POLICY, &state).unwrap();
            let at = at.index(ticket.len());
            ticket[at] ^= flip;
            prop_assert!(open(&keys(1), &ticket, &POLICY).is_none());
            ticket[at] ^= flip;
            prop_assert_eq!(open(&keys(1), &ticket, &POLICY), Some((ISSUED_AT, state)));
            ticket.truncate(at);
            prop_assert!(open(&keys(1), &ticket, &POLICY).is_none());
        }
    }
}
