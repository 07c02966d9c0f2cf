//! MQTT as far as a proxy needs it: the CONNECT that comes in, the CONNACK that goes out or passes by. Pure: bytes in, values out.

pub mod connack;
pub mod connect;
pub mod disconnect;
pub mod framing;
mod properties;
#[cfg(test)]
mod vectors;
mod wire;

/// The protocol version that a CONNECT asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// MQTT 3.1, level 3 (name `MQIsdp`).
    V3_1,
    /// MQTT 3.1.1, level 4.
    V3_1_1,
    /// MQTT 5.0, level 5.
    V5,
}

/// `protocol` as metric label and audit word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// A version that Seawall reads.
    Known(Version),
    /// A level outside of it, or no CONNECT read yet.
    Other,
}

impl Protocol {
    /// Every label.
    pub const ALL: [Self; 4] = [
        Self::Known(Version::V3_1),
        Self::Known(Version::V3_1_1),
        Self::Known(Version::V5),
        Self::Other,
    ];

    /// The metric label and audit word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Known(Version::V3_1) => "3.1",
            Self::Known(Version::V3_1_1) => "3.1.1",
            Self::Known(Version::V5) => "5",
            Self::Other => "other",
        }
    }
}
