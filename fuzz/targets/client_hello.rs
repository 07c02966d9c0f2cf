//! The reader of the first bytes of a stranger: never a panic, the same verdict at any fragmentation, and nobody turned away whom the
//! TLS library would serve.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rustls::server::{Accepted, Acceptor};
use seawall::tls::hello::{LIMIT, Progress, read};

fuzz_target!(|bytes: &[u8]| {
    let verdict = read(bytes);
    match &verdict {
        Ok(Progress::Need(need)) => assert!(*need > bytes.len() && *need <= LIMIT),
        Ok(Progress::Complete(hello, consumed)) => {
            assert!(*consumed <= bytes.len() && *consumed <= LIMIT);
            assert!(hello.ticket.as_ref().is_none_or(|ticket| !ticket.is_empty()));
        }
        Err(_) => {}
    }
    for cut in [bytes.len() / 4, bytes.len() / 2, bytes.len().saturating_sub(1)] {
        match read(&bytes[..cut]) {
            Ok(Progress::Need(_)) => {}
            earlier => assert_eq!(earlier, verdict, "at {cut} of {}", bytes.len()),
        }
    }
    if bytes.len() <= LIMIT
        && let Some(accepted) = library(bytes)
    {
        let Ok(Progress::Complete(hello, _)) = verdict else {
            panic!("the library accepts what we say {verdict:?} of");
        };
        assert_eq!(
            hello.server_name.as_deref(),
            accepted.client_hello().server_name()
        );
    }
});

fn library(mut bytes: &[u8]) -> Option<Accepted> {
    let mut acceptor = Acceptor::default();
    loop {
        let read = acceptor.read_tls(&mut bytes).ok()?;
        match acceptor.accept().ok()? {
            None if read == 0 => return None,
            None => {}
            accepted => return accepted,
        }
    }
}
