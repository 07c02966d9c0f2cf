//! CONNECT: bytes → [`Connect`], strict where the specification says MUST, lenient where brokers are.

use super::Version;

/// A CONNECT that is whole and legal. The bytes themselves are forwarded as they came; these are the fields that
/// Seawall decides by. `Debug` shows neither user name nor password.
#[derive(Clone, PartialEq, Eq)]
pub struct Connect {
    /// The version that it speaks (bridge bit removed).
    pub version: Version,
    /// Whether bit 7 of the level was set: a Mosquitto bridge.
    pub bridge: bool,
    /// Client identifier; may be empty.
    pub client_id: String,
    /// User name, where there is one.
    pub username: Option<String>,
    /// Password: binary in every version.
    pub password: Option<Vec<u8>>,
    /// Clean session (3.x) or Clean Start (5.0).
    pub clean: bool,
    /// Session Expiry Interval in seconds (5.0; 0 when absent and for 3.x).
    pub session_expiry: u32,
    /// Keep Alive in seconds; 0: none.
    pub keep_alive: u16,
    /// Maximum Packet Size in bytes of the whole packet (5.0); `None`: no limit.
    pub maximum_packet_size: Option<u32>,
    /// Whether there is an Authentication Method (5.0): AUTH packets come before the CONNACK.
    pub enhanced_authentication: bool,
    /// Whether it carries a Will.
    pub will: bool,
}

impl Connect {
    /// Whether the broker keeps or rehydrates a session for it: clean session 0 in 3.x, expiry above 0 or Clean
    /// Start 0 in 5.0. (`admission.cost.persistent`.)
    pub fn persistent(&self) -> bool {
        !self.clean || self.session_expiry > 0
    }
}

impl std::fmt::Debug for Connect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connect")
            .field("version", &self.version)
            .field("client_id", &self.client_id)
            .field("clean", &self.clean)
            .finish_non_exhaustive()
    }
}

/// What the bytes so far amount to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Legal so far; the packet needs at least this many bytes in all.
    Need(usize),
    /// A whole CONNECT of this many bytes; what follows it in the buffer belongs to the session.
    Complete(Box<Connect>, usize),
}

/// Why the bytes can't become a CONNECT. Each says what is known of the version, for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The first packet is no CONNECT: closed without CONNACK ([MQTT-3.1.0-1]).
    NotConnect,
    /// A level that nobody speaks: below 3 answered `20 02 00 01`, above 5 `20 03 00 84 00`.
    UnsupportedLevel {
        /// The level with the bridge bit removed.
        level: u8,
    },
    /// Breaks a MUST ("malformed packet"): 3.x closes without CONNACK, 5.0 answers 0x81.
    Malformed {
        /// The version, once it was read.
        version: Option<Version>,
    },
    /// Breaks a MUST of 5.0 that the specification names "protocol error": answers 0x82.
    ProtocolError,
    /// An empty client id with clean session 0 in 3.1.1 (and 3.1): answers 2 ([MQTT-3.1.3-8]).
    EmptyClientId {
        /// 3.1 or 3.1.1.
        version: Version,
    },
    /// Declares more than the limit: 3.x closes, 5.0 answers 0x95.
    TooLarge {
        /// The version, where enough bytes were there to tell.
        version: Option<Version>,
    },
}

/// Reads the CONNECT at the front of `bytes`, of which more may follow. `max_size` bounds the whole packet, judged
/// from its declared length on, in bytes.
pub fn read(_bytes: &[u8], _max_size: usize) -> Result<Progress, ConnectError> {
    unimplemented!()
}
