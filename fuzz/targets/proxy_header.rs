//! The reader of PROXY headers: never a panic, never more wanted than a header may have, the same verdict at any fragmentation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use seawall::proxy_header::{Detection, Progress, detect, read};

/// 16 bytes, and 4,096 behind them.
const LONGEST: usize = 16 + 4096;

fuzz_target!(|bytes: &[u8]| {
    let verdict = read(bytes);
    match &verdict {
        Ok(Progress::Need(need)) => assert!(*need > bytes.len() && *need <= LONGEST),
        Ok(Progress::Absent) => assert_eq!(detect(bytes), Detection::Absent),
        Ok(Progress::Complete(_, consumed)) => assert!(*consumed <= bytes.len() && *consumed <= LONGEST),
        Err(_) => assert!(matches!(detect(bytes), Detection::Present(_))),
    }
    for cut in [bytes.len() / 4, bytes.len() / 2, bytes.len().saturating_sub(1)] {
        match read(&bytes[..cut]) {
            Ok(Progress::Need(_)) => {}
            earlier => assert_eq!(earlier, verdict, "at {cut} of {}", bytes.len()),
        }
    }
});
