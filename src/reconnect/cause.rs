//! Why an attempt failed, and whether another one can help.

use std::fmt;

/// Why there is no connection (any more).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Nothing came within the client's patience: DNS, TCP, TLS, or the CONNACK.
    Timeout,
    /// No route, refused, reset, closed, TLS failure: everything below MQTT.
    Transport,
    /// A CONNACK with this return code (3.1 and 3.1.1: 1 to 5) or reason code (5.0: 0x80 and above). The two ranges do not overlap.
    Refused(u8),
}

/// Whether another attempt can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lasting {
    /// It may pass by itself: try again by the schedule.
    Transient,
    /// Somebody has to change something first: an attempt now and then, at the cap, and tell.
    Permanent,
}

impl Cause {
    /// MQTT 3.1.1 section 3.2.2.3, MQTT 5.0 section 3.2.2.2. A code that no specification knows is transient: a newer
    /// broker may mean anything by it, and the schedule protects that broker all the same.
    pub const fn lasting(self) -> Lasting {
        match self {
            // Protocol version, identifier, user name or password, not authorised; malformed packet, protocol error,
            // the same four of 5.0, banned, authentication method; what the Will asked for: topic, size, payload
            // format, retain, QoS; and a server that has moved for good.
            Self::Refused(
                1 | 2 | 4 | 5 | 0x81 | 0x82 | 0x84..=0x87 | 0x8A | 0x8C | 0x90 | 0x95 | 0x99..=0x9B | 0x9D,
            ) => Lasting::Permanent,
            Self::Timeout | Self::Transport | Self::Refused(_) => Lasting::Transient,
        }
    }

    /// The word in audit lines.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Transport => "transport",
            Self::Refused(_) => "refused",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("no answer in time"),
            Self::Transport => f.write_str("connection failed or broke"),
            Self::Refused(code) => write!(f, "refused with code {code:#04x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_by_itself_is_tried_again() {
        for cause in [Cause::Timeout, Cause::Transport]
            .into_iter()
            .chain([3, 0x88, 0x89, 0x97, 0x9C, 0x9F].map(Cause::Refused))
        {
            assert_eq!(cause.lasting(), Lasting::Transient, "{cause}");
        }
    }

    #[test]
    fn what_somebody_has_to_change_is_permanent() {
        for code in [
            1, 2, 4, 5, 0x81, 0x82, 0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x90, 0x95, 0x99, 0x9A, 0x9B, 0x9D,
        ] {
            assert_eq!(Cause::Refused(code).lasting(), Lasting::Permanent, "{code:#04x}");
        }
    }

    #[test]
    fn what_nobody_knows_is_transient() {
        for code in [6, 0x7F, 0x80, 0x83, 0xFF] {
            assert_eq!(Cause::Refused(code).lasting(), Lasting::Transient, "{code:#04x}");
        }
    }
}
