//! Tickets as strangers bring them: never a panic, and never one taken that was not issued. The same for the content of one that
//! was issued and is of a layout that the library never wrote.
#![no_main]

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rustls::server::ProducesTickets;
use seawall::moment::Moment;
use seawall::tls::ticket::{ClientPolicy, LONGEST, Reading, Secret, Settings, Ticketer, Tickets};

static TICKETER: LazyLock<Arc<Ticketer>> = LazyLock::new(|| {
    let settings = Settings {
        secret_file: None,
        rotation: Duration::from_hours(6),
        lifetime: Duration::from_hours(24),
        tickets: 2,
    };
    let secret = Secret::random().expect("random numbers");
    let clock = || Reading {
        wall: 1_800_000_000_000,
        moment: Moment::ZERO,
    };
    Tickets::new(&settings, secret, clock).under(ClientPolicy::none())
});

fuzz_target!(|bytes: &[u8]| {
    assert!(!TICKETER.opens(bytes));
    assert_eq!(TICKETER.decrypt(bytes), None);
    if let Some(ticket) = TICKETER.encrypt(bytes) {
        assert!(ticket.len() <= LONGEST);
        // Whatever it holds is given back as it was, or declined.
        if let Some(state) = TICKETER.decrypt(&ticket) {
            assert_eq!(state, bytes);
            assert!(TICKETER.opens(&ticket));
        }
    }
});
