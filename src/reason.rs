//! Why a client was refused: the one table from which the CONNACK code, the metric label and the audit word come.

/// Why a client was refused, a closed set (`docs/metrics.md`, `seawall_refused_total`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// No token in the global bucket, and no hold that would help.
    Rate,
    /// The reserve of its lane is used up, and the rest of the bucket too.
    Lane,
    /// The hold has no place left.
    HoldFull,
    /// Held for `admission.max_wait` without getting a turn.
    HoldExpired,
    /// `admission.max_in_flight` CONNECTs are waiting for the broker's answer.
    InFlight,
    /// This client id comes too often: over `admission.per_client`, or several devices share it and take it from
    /// each other.
    ClientRate,
    /// No broker could be reached, or it went away or stayed silent before its CONNACK.
    NoBroker,
    /// No broker is tried for the moment: too many attempts in a row have failed.
    BreakerOpen,
    /// The proxy is going down.
    Draining,
    /// The broker has refused these very credentials again and again; its own code is repeated from memory.
    BadCredentials,
    /// A protocol level that neither MQTT nor its bridges use.
    Protocol,
    /// An empty client id that asks for a persistent session (legal in MQTT 5).
    ClientId,
    /// The CONNECT breaks a MUST of its specification.
    Malformed,
    /// The CONNECT declares more than `connect.max_size`.
    TooLarge,
}

/// What goes on the wire for one [`Reason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// CONNACK return code for MQTT 3.1 and 3.1.1; `None`: close without CONNACK ([MQTT-3.2.2-6]).
    pub v3: Option<u8>,
    /// CONNACK reason code for MQTT 5.0; `None`: close without CONNACK.
    pub v5: Option<u8>,
    /// Whether `refusal.method = "close"` applies: want of room, rates, no broker, draining. Protocol errors keep
    /// their codes because a client must learn that trying again is of no use.
    pub closable: bool,
    /// For people: the v5 Reason String.
    pub text: &'static str,
}

impl Reason {
    /// Every reason, in the order of the enum.
    pub const ALL: [Self; 14] = [
        Self::Rate,
        Self::Lane,
        Self::HoldFull,
        Self::HoldExpired,
        Self::InFlight,
        Self::ClientRate,
        Self::NoBroker,
        Self::BreakerOpen,
        Self::Draining,
        Self::BadCredentials,
        Self::Protocol,
        Self::ClientId,
        Self::Malformed,
        Self::TooLarge,
    ];

    /// The metric label and the audit word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Lane => "lane",
            Self::HoldFull => "hold-full",
            Self::HoldExpired => "hold-expired",
            Self::InFlight => "in-flight",
            Self::ClientRate => "client-rate",
            Self::NoBroker => "no-broker",
            Self::BreakerOpen => "breaker-open",
            Self::Draining => "draining",
            Self::BadCredentials => "bad-credentials",
            Self::Protocol => "protocol",
            Self::ClientId => "client-id",
            Self::Malformed => "malformed",
            Self::TooLarge => "too-large",
        }
    }

    /// What the client is told (MQTT 3.1.1 section 3.2.2.3, MQTT 5.0 section 3.2.2.2).
    pub const fn answer(self) -> Answer {
        const fn busy(text: &'static str) -> Answer {
            Answer {
                v3: Some(0x03),
                v5: Some(0x89),
                closable: true,
                text,
            }
        }
        match self {
            Self::Rate | Self::Lane | Self::HoldFull | Self::HoldExpired | Self::InFlight => {
                busy("server busy, try again later")
            }
            Self::ClientRate => Answer {
                v3: Some(0x03),
                v5: Some(0x9F),
                closable: true,
                text: "this client connects too often",
            },
            // Where the broker's own code is known it goes out instead.
            Self::BadCredentials => Answer {
                v3: Some(0x05),
                v5: Some(0x87),
                closable: false,
                text: "not authorized",
            },
            Self::Draining => busy("server is shutting down, connect again"),
            Self::NoBroker | Self::BreakerOpen => Answer {
                v3: Some(0x03),
                v5: Some(0x88),
                closable: true,
                text: "no broker can be reached",
            },
            Self::Protocol => Answer {
                v3: Some(0x01),
                v5: Some(0x84),
                closable: false,
                text: "protocol version not supported",
            },
            Self::ClientId => Answer {
                v3: Some(0x02),
                v5: Some(0x85),
                closable: false,
                text: "client identifier not valid",
            },
            Self::Malformed => Answer {
                v3: None,
                v5: Some(0x81),
                closable: false,
                text: "malformed CONNECT",
            },
            Self::TooLarge => Answer {
                v3: None,
                v5: Some(0x95),
                closable: false,
                text: "packet too large",
            },
        }
    }
}
