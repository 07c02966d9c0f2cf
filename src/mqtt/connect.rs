//! CONNECT: bytes → [`Connect`], strict where the specification says MUST, lenient where brokers are.

use super::Version;
use super::properties::{Identifiers, Properties, Value, id};
use super::wire::{Fault, Reader, VariableByteInteger};

/// A CONNECT that is whole and legal. The bytes themselves are forwarded as they came; these are the fields that
/// Seawall decides by. `Debug` shows neither user name nor password.
#[derive(Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a bit or a presence on the wire, independent of the others"
)]
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
    /// Legal so far. Below this many bytes in all there is nothing new to say: never more than the packet declares,
    /// nor more than the limit, and it only grows. What the peer declares costs it nothing: do not reserve it at once.
    Need(usize),
    /// A whole CONNECT of this many bytes; what follows it in the buffer belongs to the session.
    Complete(Box<Connect>, usize),
}

/// Why the bytes can't become a CONNECT. Each says what is known of the version, for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The first packet is no CONNECT, or its protocol name is not one of MQTT's, so that it isn't MQTT at all: closed
    /// without CONNACK ([MQTT-3.1.0-1], [MQTT-3.1.2-1]).
    NotConnect,
    /// A level that nobody speaks: below 3 answered `20 02 00 01`, above 5 `20 03 00 84 00`.
    UnsupportedLevel {
        /// The byte as it came: the bridge bit is removed from 0x83 and 0x84 alone, which are supported.
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
///
/// What can be said without the rest is said at once: that it is no CONNECT, its level, its size. The rest is read when
/// it is there as a whole, so that a peer that sends byte by byte costs no more than one that does not.
pub fn read(bytes: &[u8], max_size: usize) -> Result<Progress, ConnectError> {
    let Some((&first, rest)) = bytes.split_first() else {
        return Ok(Progress::Need(SHORTEST_HEADER));
    };
    if first >> 4 != CONNECT {
        return Err(ConnectError::NotConnect);
    }
    let (remaining, header, shortest) = match VariableByteInteger::read(rest) {
        VariableByteInteger::Partial => return Ok(Progress::Need(bytes.len() + 1)),
        VariableByteInteger::Overlong => return Err(ConnectError::Malformed { version: None }),
        VariableByteInteger::Whole {
            value,
            length,
            shortest,
        } => (value, 1 + length, shortest),
    };
    let total = header + remaining;
    let packet = bytes.get(header..).unwrap_or_default();

    let name = protocol_name(packet, remaining)?;
    let Some(&level) = packet.get(name.len()) else {
        let level_end = header + name.len() + 1;
        return if level_end > max_size {
            Err(ConnectError::TooLarge { version: None })
        } else {
            Ok(Progress::Need(level_end))
        };
    };
    let (version, bridge) = version_of(level)?;
    if total > max_size {
        return Err(ConnectError::TooLarge {
            version: Some(version),
        });
    }
    let malformed = ConnectError::Malformed {
        version: Some(version),
    };
    if first & 0x0f != 0 && version != Version::V3_1 {
        return Err(malformed);
    }
    if !shortest && version == Version::V5 {
        return Err(malformed);
    }

    let Some(after_level) = packet.get(name.len() + 1..remaining) else {
        return Ok(Progress::Need(total));
    };
    let connect = after_level_of(version, bridge, after_level).map_err(|fault| match (fault, version) {
        (Fault::Protocol, Version::V5) => ConnectError::ProtocolError,
        _ => malformed,
    })?;
    if connect.client_id.is_empty() && !connect.clean && version != Version::V5 {
        return Err(ConnectError::EmptyClientId { version });
    }
    Ok(Progress::Complete(Box::new(connect), total))
}

/// Packet type in the high half of the first byte.
const CONNECT: u8 = 1;

/// Type and flags, and a length of one byte.
const SHORTEST_HEADER: usize = 2;

/// The protocol names, each with its length before it.
const NAMES: [&[u8]; 2] = [b"\x00\x04MQTT", b"\x00\x06MQIsdp"];

/// The name that the packet begins with, or may still begin with.
fn protocol_name(packet: &[u8], remaining: usize) -> Result<&'static [u8], ConnectError> {
    let declared = packet.get(..remaining).unwrap_or(packet);
    let name = NAMES.into_iter().find(|name| {
        name.iter()
            .zip(declared)
            .all(|(expected, found)| expected == found)
    });
    match name {
        None => Err(ConnectError::NotConnect),
        Some(name) if remaining <= name.len() => Err(ConnectError::Malformed { version: None }),
        Some(name) => Ok(name),
    }
}

/// Version and bridge bit of a level, whatever the name before it: brokers go by the level.
fn version_of(level: u8) -> Result<(Version, bool), ConnectError> {
    match level {
        0x03 => Ok((Version::V3_1, false)),
        0x83 => Ok((Version::V3_1, true)),
        0x04 => Ok((Version::V3_1_1, false)),
        0x84 => Ok((Version::V3_1_1, true)),
        0x05 => Ok((Version::V5, false)),
        level => Err(ConnectError::UnsupportedLevel { level }),
    }
}

/// The CONNECT from its flags on (sections 3.1.2.3 and following of 3.1.1 and 5.0).
fn after_level_of(version: Version, bridge: bool, bytes: &[u8]) -> Result<Connect, Fault> {
    let mut reader = Reader::new(bytes);
    let flags = Flags::parse(reader.byte()?, version)?;
    let keep_alive = reader.two_bytes()?;
    let settings = if version == Version::V5 {
        Settings::take(&mut reader)?
    } else {
        Settings::default()
    };
    let client_id = reader.text()?.to_owned();
    if flags.has(Flags::WILL) {
        skip_will(&mut reader, version)?;
    }
    // 3.1 lets the length of the packet overrule these two flags: a string that is announced may be missing.
    let present =
        |flag, reader: &Reader<'_>| flags.has(flag) && !(version == Version::V3_1 && reader.is_empty());
    let username = if present(Flags::USERNAME, &reader) {
        Some(reader.text()?.to_owned())
    } else {
        None
    };
    let password = if present(Flags::PASSWORD, &reader) {
        Some(reader.binary()?.to_vec())
    } else {
        None
    };
    if !reader.is_empty() {
        return Err(Fault::Malformed);
    }
    Ok(Connect {
        version,
        bridge,
        client_id,
        username,
        password,
        clean: flags.has(Flags::CLEAN),
        session_expiry: settings.session_expiry,
        keep_alive,
        maximum_packet_size: settings.maximum_packet_size,
        enhanced_authentication: settings.enhanced_authentication,
        will: flags.has(Flags::WILL),
    })
}

/// The connect flags, in a legal combination.
#[derive(Clone, Copy)]
struct Flags(u8);

impl Flags {
    const RESERVED: u8 = 0x01;
    const CLEAN: u8 = 0x02;
    const WILL: u8 = 0x04;
    const WILL_QOS: u8 = 0x18;
    const WILL_RETAIN: u8 = 0x20;
    const PASSWORD: u8 = 0x40;
    const USERNAME: u8 = 0x80;

    fn parse(byte: u8, version: Version) -> Result<Self, Fault> {
        let flags = Self(byte);
        let qos_3 = byte & Self::WILL_QOS == Self::WILL_QOS;
        // 3.1 does not use bit 0, and disregards QoS and retain of a Will that there is not.
        let strict = version != Version::V3_1;
        let reserved = strict && flags.has(Self::RESERVED);
        let will_without_will =
            strict && !flags.has(Self::WILL) && flags.has(Self::WILL_QOS | Self::WILL_RETAIN);
        let lone_password = version != Version::V5 && flags.has(Self::PASSWORD) && !flags.has(Self::USERNAME);
        if qos_3 || reserved || will_without_will || lone_password {
            return Err(Fault::Malformed);
        }
        Ok(flags)
    }

    /// Whether any bit of `mask` is set.
    const fn has(self, mask: u8) -> bool {
        self.0 & mask != 0
    }
}

/// What the properties of a CONNECT say (5.0 section 3.1.2.11).
#[derive(Default)]
struct Settings {
    session_expiry: u32,
    maximum_packet_size: Option<u32>,
    enhanced_authentication: bool,
}

impl Settings {
    fn take(packet: &mut Reader<'_>) -> Result<Self, Fault> {
        let mut settings = Self::default();
        let mut properties = Properties::take(packet, Identifiers::CONNECT)?;
        while let Some(property) = properties.next()? {
            match property {
                (id::SESSION_EXPIRY_INTERVAL, Value::FourBytes(seconds)) => settings.session_expiry = seconds,
                (id::RECEIVE_MAXIMUM, Value::TwoBytes(0))
                | (id::MAXIMUM_PACKET_SIZE, Value::FourBytes(0))
                | (id::REQUEST_PROBLEM_INFORMATION | id::REQUEST_RESPONSE_INFORMATION, Value::Byte(2..)) => {
                    return Err(Fault::Protocol);
                }
                (id::MAXIMUM_PACKET_SIZE, Value::FourBytes(bytes)) => {
                    settings.maximum_packet_size = Some(bytes);
                }
                _ => {}
            }
        }
        settings.enhanced_authentication = properties.seen(id::AUTHENTICATION_METHOD);
        if properties.seen(id::AUTHENTICATION_DATA) && !settings.enhanced_authentication {
            return Err(Fault::Protocol);
        }
        Ok(settings)
    }
}

/// The Will: properties (5.0 section 3.1.3.2), topic, payload. It is the broker's; here it only has to be legal.
fn skip_will(packet: &mut Reader<'_>, version: Version) -> Result<(), Fault> {
    if version == Version::V5 {
        let mut properties = Properties::take(packet, Identifiers::WILL)?;
        while let Some(property) = properties.next()? {
            match property {
                (id::PAYLOAD_FORMAT_INDICATOR, Value::Byte(2..)) => return Err(Fault::Protocol),
                (id::RESPONSE_TOPIC, Value::Text(topic)) => check_topic_name(topic)?,
                _ => {}
            }
        }
    }
    check_topic_name(packet.text()?)?;
    packet.binary()?;
    Ok(())
}

/// A topic to publish to: at least one character, no wildcard (5.0 sections 4.7.1 and 4.7.3).
fn check_topic_name(topic: &str) -> Result<(), Fault> {
    if topic.is_empty() || topic.contains(['+', '#']) {
        Err(Fault::Protocol)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 256 * 1024;

    #[test]
    fn one_of_each_version() {
        let cases: [(&[u8], Version); 3] = [
            (b"\x10\x10\0\x06MQIsdp\x03\x02\0\x3c\0\x02ab", Version::V3_1),
            (b"\x10\x0e\0\x04MQTT\x04\x02\0\x3c\0\x02ab", Version::V3_1_1),
            (b"\x10\x0f\0\x04MQTT\x05\x02\0\x3c\0\0\x02ab", Version::V5),
        ];
        for (packet, version) in cases {
            let Ok(Progress::Complete(connect, length)) = read(packet, LIMIT) else {
                panic!("{version:?}: {:?}", read(packet, LIMIT));
            };
            assert_eq!(
                (connect.version, connect.keep_alive, connect.client_id.as_str()),
                (version, 60, "ab")
            );
            assert_eq!(length, packet.len());
        }
    }
}
