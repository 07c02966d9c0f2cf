//! CONNACK: encode the refusal, and observe the broker's first packets up to it.

use super::Version;

/// What a refusing CONNACK says beside its code. Everything here is for MQTT 5.0 alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras<'a> {
    /// Reason String, left out where it would not fit.
    pub reason_string: Option<&'a str>,
    /// User property `retry-after-ms`, left out where it would not fit.
    pub retry_after_ms: Option<u64>,
    /// Server Reference (with 0x9C). Where it does not fit the caller falls back to 0x89 without it.
    pub server_reference: Option<&'a str>,
}

/// The bytes of a CONNACK that refuses with `code`, Session Present 0. A 5.0 packet is never larger than
/// `maximum_packet_size`: user property and reason string go first. `None`: not even the bare packet fits, close.
pub fn refuse(
    _version: Version,
    _code: u8,
    _extras: Extras<'_>,
    _maximum_packet_size: Option<u32>,
) -> Option<Vec<u8>> {
    unimplemented!()
}

/// One packet that a broker may send before the session runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstAnswer {
    /// Not whole yet: at least this many bytes in all.
    Need(usize),
    /// An AUTH packet of this many bytes (5.0): passed on, the CONNACK comes later.
    Auth {
        /// Length of the whole packet in bytes.
        length: usize,
    },
    /// The CONNACK.
    Connack {
        /// Length of the whole packet in bytes.
        length: usize,
        /// Return or reason code.
        code: u8,
        /// Server Keep Alive in seconds (5.0), which replaces the client's.
        server_keep_alive: Option<u16>,
    },
}

/// The broker sent something that is neither AUTH nor CONNACK, or a CONNACK that can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotConnack;

/// Reads the packet at the front of `bytes` that a broker sent to a client of this `version`.
pub fn observe(_bytes: &[u8], _version: Version) -> Result<FirstAnswer, NotConnack> {
    unimplemented!()
}
