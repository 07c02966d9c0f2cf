//! The reader of CONNECT: never a panic, never more wanted than was declared or allowed, the same verdict at any fragmentation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use seawall::mqtt::connect::{Progress, read};

/// Small enough that the limit itself is met.
const MAX_SIZE: usize = 2048;

fuzz_target!(|bytes: &[u8]| {
    let verdict = read(bytes, MAX_SIZE);
    match &verdict {
        Ok(Progress::Need(need)) => assert!(*need > bytes.len() && *need <= MAX_SIZE),
        Ok(Progress::Complete(_, consumed)) => assert!(*consumed <= bytes.len() && *consumed <= MAX_SIZE),
        Err(_) => {}
    }
    for cut in [bytes.len() / 4, bytes.len() / 2, bytes.len().saturating_sub(1)] {
        match read(&bytes[..cut], MAX_SIZE) {
            Ok(Progress::Need(_)) => {}
            earlier => assert_eq!(earlier, verdict, "at {cut} of {}", bytes.len()),
        }
    }
});
