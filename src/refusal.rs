//! Writes the answer to a refused client and closes well.

/// `[refusal]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How a refusal is told.
    pub method: Method,
    /// Whether a v5 answer carries a Reason String.
    pub reason_string: bool,
}

/// `refusal.method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// With a CONNACK.
    Connack,
    /// With a clean close after the CONNECT, for clients to which any refusing CONNACK is final.
    Close,
}
