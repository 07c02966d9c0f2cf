//! What relays read into.

use std::cell::Cell;

/// Bytes that a direction reads at once: the largest TLS record.
pub(super) const SCRATCH: usize = 16 * 1024;

thread_local! {
    /// What all relays of a thread read into. A relay is done with it when its poll returns.
    static LENT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// This thread's; to be given back.
pub(super) fn lend() -> Vec<u8> {
    let mut scratch = LENT.take();
    scratch.resize(SCRATCH, 0);
    scratch
}

/// Gives it to the next.
pub(super) fn give_back(scratch: Vec<u8>) {
    LENT.set(scratch);
}
