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
    /// Legal so far. With fewer bytes than this in all there is nothing new to say. Never more than the packet declares,
    /// nor than the limit, and it only grows. What the peer declares costs it nothing: do not reserve it at once.
    Need(usize),
    /// A whole CONNECT of this many bytes; what follows it in the buffer belongs to the session.
    Complete(Box<Connect>, usize),
}

/// Why the bytes can't become a CONNECT: always the client's fault. Each says what is known of it, for the answer and for
/// those who count it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The first packet is no CONNECT, or its protocol name is not one of MQTT's, so that it isn't MQTT at all: closed
    /// without CONNACK ([MQTT-3.1.0-1], [MQTT-3.1.2-1]).
    #[error("the first packet is no CONNECT of MQTT")]
    NotConnect,
    /// A level that nobody speaks: below 3 answered `20 02 00 01`, above 5 `20 03 00 84 00`.
    #[error("protocol level {level} is not supported")]
    UnsupportedLevel {
        /// The byte as it came: the bridge bit is removed from 0x83 and 0x84 alone, which are supported.
        level: u8,
    },
    /// Breaks a MUST ("malformed packet"): 3.x closes without CONNACK, 5.0 answers 0x81.
    #[error("malformed CONNECT")]
    Malformed {
        /// The version, once it was read.
        version: Option<Version>,
    },
    /// Breaks a MUST of 5.0 that the specification names "protocol error": answers 0x82.
    #[error("the CONNECT says what MQTT 5.0 forbids")]
    ProtocolError,
    /// An empty client id with clean session 0 in 3.1.1 (and 3.1): answers 2 ([MQTT-3.1.3-8]).
    #[error("an empty client id with clean session 0")]
    EmptyClientId {
        /// What was read; of 3.1 or 3.1.1.
        connect: Box<Connect>,
    },
    /// Declares more than the limit: 3.x closes, 5.0 answers 0x95.
    #[error("the CONNECT declares more than the limit")]
    TooLarge {
        /// The version; unknown only where the limit itself (below 14 bytes) ends before the level.
        version: Option<Version>,
    },
}

impl ConnectError {
    /// The version that the client speaks, where that was read and is one that Seawall reads.
    pub fn version(&self) -> Option<Version> {
        match self {
            Self::NotConnect | Self::UnsupportedLevel { .. } => None,
            Self::Malformed { version } | Self::TooLarge { version } => *version,
            Self::ProtocolError => Some(Version::V5),
            Self::EmptyClientId { connect } => Some(connect.version),
        }
    }
}

/// Whether `bytes` declare more than `max_size` at their front, so that nothing which follows makes a CONNECT of them
/// that is accepted: all that is still open is how the client is to be told.
pub fn declares_more_than(max_size: usize, bytes: &[u8]) -> bool {
    match VariableByteInteger::read(bytes.get(1..).unwrap_or_default()) {
        VariableByteInteger::Whole { value, length, .. } => 1 + length + value > max_size,
        VariableByteInteger::Partial | VariableByteInteger::Overlong => false,
    }
}

/// Reads the CONNECT at the front of `bytes`, of which more may follow (section 3.1 of all three versions). `max_size`
/// bounds the whole packet in bytes, judged from its declared length on. The verdict doesn't depend on the fragmentation.
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
    if total > max_size && header + LONGEST_NAME + 1 > max_size {
        return Err(ConnectError::TooLarge { version: None });
    }
    let packet = bytes.get(header..).unwrap_or_default();
    let name = protocol_name(packet, remaining)?;
    let Some(&level) = packet.get(name.len()) else {
        return Ok(Progress::Need(bytes.len() + 1));
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
        return Err(ConnectError::EmptyClientId {
            connect: Box::new(connect),
        });
    }
    Ok(Progress::Complete(Box::new(connect), total))
}

/// Packet type in the high half of the first byte.
const CONNECT: u8 = 1;

/// Type and flags, and a length of one byte.
const SHORTEST_HEADER: usize = 2;

/// The protocol names, each with its length before it.
const NAMES: [&[u8]; 2] = [b"\x00\x04MQTT", b"\x00\x06MQIsdp"];
const LONGEST_NAME: usize = 8;

/// The name that the packet begins with, or may still begin with.
fn protocol_name(packet: &[u8], remaining: usize) -> Result<&'static [u8], ConnectError> {
    let declared = packet.get(..remaining);
    let so_far = declared.unwrap_or(packet);
    let name = NAMES
        .into_iter()
        .find(|name| name.iter().zip(so_far).all(|(expected, found)| expected == found));
    match name {
        None => Err(ConnectError::NotConnect),
        Some(name) if declared.is_some() && remaining <= name.len() => {
            Err(ConnectError::Malformed { version: None })
        }
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
    use bytes::BytesMut;
    use proptest::prelude::*;

    use super::super::vectors::{self, Vector};
    use super::*;

    const LIMIT: usize = 256 * 1024;

    fn all() -> Vec<Vector> {
        vectors::parse(include_str!("../../tests/vectors/connect.txt"))
    }

    fn legal() -> Vec<Vec<u8>> {
        all()
            .into_iter()
            .filter(|vector| vector.expected.starts_with("ok "))
            .map(|vector| vector.packet)
            .collect()
    }

    fn hex(digits: &str) -> Vec<u8> {
        vectors::packet(digits)
    }

    /// Without a version: everything about a [`Connect`] that a vector leaves unsaid.
    fn plain(version: Version) -> Connect {
        Connect {
            version,
            bridge: false,
            client_id: String::new(),
            username: None,
            password: None,
            clean: false,
            session_expiry: 0,
            keep_alive: 0,
            maximum_packet_size: None,
            enhanced_authentication: false,
            will: false,
        }
    }

    fn expected_connect(words: &str) -> Connect {
        let (version, fields) = words.split_once(' ').unwrap_or((words, ""));
        let mut connect = plain(vectors::version(version));
        for field in fields.split_whitespace() {
            let (key, value) = field.split_once('=').unwrap_or((field, ""));
            match key {
                "id" => {
                    let (text, times) = value.split_once('*').unwrap_or((value, "1"));
                    connect.client_id = text.repeat(times.parse().unwrap());
                }
                "idhex" => connect.client_id = String::from_utf8(hex(value)).unwrap(),
                "user" => connect.username = Some(value.to_owned()),
                "pass" => connect.password = Some(hex(value)),
                "clean" => connect.clean = true,
                "bridge" => connect.bridge = true,
                "keep" => connect.keep_alive = value.parse().unwrap(),
                "expiry" => connect.session_expiry = value.parse().unwrap(),
                "max" => connect.maximum_packet_size = Some(value.parse().unwrap()),
                "auth" => connect.enhanced_authentication = true,
                "will" => connect.will = true,
                _ => panic!("no field: {key}"),
            }
        }
        connect
    }

    fn expectation(vector: &Vector) -> Result<Progress, ConnectError> {
        let (kind, rest) = vector.expected.split_once(' ').unwrap_or((vector.expected, ""));
        Err(match kind {
            "ok" => {
                return Ok(Progress::Complete(
                    Box::new(expected_connect(rest)),
                    vector.packet.len(),
                ));
            }
            "not-connect" => ConnectError::NotConnect,
            "level" => ConnectError::UnsupportedLevel { level: hex(rest)[0] },
            "malformed" if rest == "?" => ConnectError::Malformed { version: None },
            "malformed" => ConnectError::Malformed {
                version: Some(vectors::version(rest)),
            },
            "protocol-error" => ConnectError::ProtocolError,
            "empty-id" => ConnectError::EmptyClientId {
                connect: Box::new(expected_connect(rest)),
            },
            _ => panic!("no expectation: {kind}"),
        })
    }

    #[test]
    fn vectors() {
        for vector in all() {
            assert_eq!(
                read(&vector.packet, LIMIT),
                expectation(&vector),
                "{}",
                vector.line
            );
        }
    }

    #[test]
    fn bytes_after_the_packet_change_nothing() {
        for vector in all() {
            let (Ok(Progress::Complete(..)) | Err(_)) = expectation(&vector) else {
                unreachable!()
            };
            let mut more = vector.packet.clone();
            more.extend(b"\x82\x06\0\x01\0\x01t\0\x30\x03\0\x01t");
            assert_eq!(read(&more, LIMIT), expectation(&vector), "{}", vector.line);
        }
    }

    /// Every prefix asks for more, and never for more than there is, until the packet is whole.
    #[test]
    fn every_split_of_a_legal_packet() {
        for packet in legal() {
            let mut asked = 0;
            for end in 0..packet.len() {
                let Ok(Progress::Need(need)) = read(&packet[..end], LIMIT) else {
                    panic!("{packet:02x?} at {end}: {:?}", read(&packet[..end], LIMIT));
                };
                assert!(
                    end < need && need <= packet.len() && asked <= need,
                    "{packet:02x?} at {end}: {need}"
                );
                asked = need;
            }
            assert!(
                matches!(read(&packet, LIMIT), Ok(Progress::Complete(_, length)) if length == packet.len())
            );
        }
    }

    /// An illegal packet is `Need` or its own error at every prefix, never another error.
    #[test]
    fn every_split_of_an_illegal_packet() {
        for vector in all() {
            let Err(error) = expectation(&vector) else {
                continue;
            };
            for end in 0..vector.packet.len() {
                match read(&vector.packet[..end], LIMIT) {
                    Ok(Progress::Need(need)) => assert!(end < need, "{} at {end}", vector.line),
                    found => assert_eq!(found, Err(error.clone()), "{} at {end}", vector.line),
                }
            }
        }
    }

    #[test]
    fn what_is_known_early_is_said_early() {
        let cases = [
            ("30", ConnectError::NotConnect),
            (r#""G""#, ConnectError::NotConnect),
            ("10 7f 01", ConnectError::NotConnect),
            ("10 7f 00 05", ConnectError::NotConnect),
            (r#"10 7f 0004 "MQTX""#, ConnectError::NotConnect),
            (
                r#"10 7f 0004 "MQTT" 06"#,
                ConnectError::UnsupportedLevel { level: 6 },
            ),
            (
                r#"11 7f 0004 "MQTT" 04"#,
                ConnectError::Malformed {
                    version: Some(Version::V3_1_1),
                },
            ),
            (
                r#"10 ff00 0004 "MQTT" 05"#,
                ConnectError::Malformed {
                    version: Some(Version::V5),
                },
            ),
            ("10 00", ConnectError::Malformed { version: None }),
            ("16 03 01", ConnectError::NotConnect),
            ("10 ffffffff", ConnectError::Malformed { version: None }),
        ];
        for (spelt, error) in cases {
            let packet = hex(spelt);
            assert_eq!(read(&packet, LIMIT), Err(error), "{spelt}");
            let before = &packet[..packet.len() - 1];
            assert!(matches!(read(before, LIMIT), Ok(Progress::Need(need)) if need <= packet.len().max(2)));
        }
    }

    #[test]
    fn needs_are_exact() {
        let packet = hex(r#"10 ac02 0004 "MQTT" 04 02 003c 0120 "a""#);
        let needs: Vec<usize> = (0..packet.len())
            .map(|end| match read(&packet[..end], LIMIT) {
                Ok(Progress::Need(need)) => need,
                other => panic!("{other:?}"),
            })
            .collect();
        let to_the_level = [2, 2, 3, 4, 5, 6, 7, 8, 9, 10];
        let total = 3 + 300;
        let mut expected = to_the_level.to_vec();
        expected.resize(packet.len(), total);
        assert_eq!(needs, expected);
    }

    #[test]
    fn too_large_is_judged_by_the_declared_length() {
        let cases = [
            (r#"10 78 0006 "MQIsdp" 03"#, 122, Version::V3_1),
            (r#"10 78 0004 "MQTT" 04"#, 122, Version::V3_1_1),
            (r#"10 78 0004 "MQTT" 84"#, 122, Version::V3_1_1),
            (r#"10 78 0004 "MQTT" 05"#, 122, Version::V5),
            (r#"10 f800 0004 "MQTT" 04"#, 123, Version::V3_1_1),
            (r#"10 ffffff7f 0004 "MQTT" 05"#, 268_435_460, Version::V5),
        ];
        for (spelt, total, version) in cases {
            let packet = hex(spelt);
            let too_large = ConnectError::TooLarge {
                version: Some(version),
            };
            assert_eq!(
                read(&packet, total),
                Ok(Progress::Need(total)),
                "{spelt}: as large as allowed"
            );
            assert_eq!(
                read(&packet, total - 1),
                Err(too_large),
                "{spelt}: one byte more than allowed"
            );
            for end in 0..packet.len() {
                let asked = read(&packet[..end], total - 1);
                assert!(
                    matches!(asked, Ok(Progress::Need(need)) if need <= packet.len()),
                    "{spelt} at {end}"
                );
            }
        }
    }

    #[test]
    fn a_length_above_the_limit_shows_before_the_level() {
        for (spelt, too_much) in [
            ("", false),
            ("10", false),
            ("10 ff", false),
            ("10 ffffff", false),
            ("10 ffffffff", false),
            ("10 62", false),
            ("10 63", true),
            ("10 e300", true),
            ("10 ffffff7f", true),
            (r#"10 63 0004 "MQT""#, true),
        ] {
            assert_eq!(declares_more_than(100, &hex(spelt)), too_much, "{spelt}");
        }
    }

    #[test]
    fn a_limit_that_ends_before_the_level() {
        let packet = hex(r#"10 ffffff7f 0004 "MQTT" 05"#);
        for end in 5..=packet.len() {
            assert_eq!(
                read(&packet[..end], 13),
                Err(ConnectError::TooLarge { version: None })
            );
        }
        assert_eq!(
            read(&packet, 14),
            Err(ConnectError::TooLarge {
                version: Some(Version::V5)
            })
        );
    }

    #[test]
    fn too_large_and_unknown_is_unknown() {
        let packet = hex(r#"10 ffffff7f 0004 "MQTT" 06"#);
        assert_eq!(
            read(&packet, LIMIT),
            Err(ConnectError::UnsupportedLevel { level: 6 })
        );
        let packet = hex(r#"10 ffffff7f 0004 "HTTP""#);
        assert_eq!(read(&packet, LIMIT), Err(ConnectError::NotConnect));
    }

    #[test]
    fn credentials_of_64_kilobytes() {
        // 10 bytes of variable header, 3 of client id, twice 2 + 65,535: 131,087.
        let mut packet = hex(r#"10 8f8008 0004 "MQTT" 04 c2 003c 0001 "a" ffff"#);
        packet.extend(vec![b'u'; 65_535]);
        packet.extend([0xff, 0xff]);
        packet.extend(vec![0xfe; 65_535]);
        let mut expected = plain(Version::V3_1_1);
        expected.clean = true;
        expected.keep_alive = 60;
        expected.client_id = "a".to_owned();
        expected.username = Some("u".repeat(65_535));
        expected.password = Some(vec![0xfe; 65_535]);
        assert_eq!(
            read(&packet, LIMIT),
            Ok(Progress::Complete(Box::new(expected), packet.len()))
        );
    }

    #[test]
    fn debug_shows_no_credentials() {
        let packet = hex(r#"10 24 0004 "MQTT" 04 c2 003c 0002 "ab" 0009 "geheim-wo" 0009 "wortwolke""#);
        let progress = read(&packet, LIMIT).unwrap();
        let shown = format!("{progress:?} {progress:#?}");
        assert!(shown.contains("ab"));
        for secret in ["geheim", "wortwolke", "119", "77"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }

    #[test]
    fn persistent_sessions() {
        let case = |version, clean, session_expiry| {
            Connect {
                clean,
                session_expiry,
                ..plain(version)
            }
            .persistent()
        };
        assert!(!case(Version::V3_1, true, 0));
        assert!(case(Version::V3_1_1, false, 0));
        assert!(!case(Version::V5, true, 0));
        assert!(case(Version::V5, true, 1));
        assert!(case(Version::V5, false, 0));
    }

    /// What mqttbytes reads of a packet of 3.1.1 or 5.0; it knows neither 3.1 nor bridges.
    fn oracle(packet: &[u8], version: Version) -> Option<Connect> {
        let mut stream = BytesMut::from(packet);
        let mut connect = plain(version);
        if version == Version::V5 {
            let mqttbytes::v5::Packet::Connect(theirs) = mqttbytes::v5::read(&mut stream, LIMIT).ok()? else {
                return None;
            };
            connect.client_id = theirs.client_id;
            connect.clean = theirs.clean_session;
            connect.keep_alive = theirs.keep_alive;
            connect.will = theirs.last_will.is_some();
            if let Some(login) = theirs.login {
                connect.username = Some(login.username);
                connect.password = Some(login.password.into_bytes());
            }
            if let Some(properties) = theirs.properties {
                connect.session_expiry = properties.session_expiry_interval.unwrap_or(0);
                connect.maximum_packet_size = properties.max_packet_size;
                connect.enhanced_authentication = properties.authentication_method.is_some();
            }
        } else {
            let mqttbytes::v4::Packet::Connect(theirs) = mqttbytes::v4::read(&mut stream, LIMIT).ok()? else {
                return None;
            };
            connect.client_id = theirs.client_id;
            connect.clean = theirs.clean_session;
            connect.keep_alive = theirs.keep_alive;
            connect.will = theirs.last_will.is_some();
            if let Some(login) = theirs.login {
                connect.username = Some(login.username);
                connect.password = Some(login.password.into_bytes());
            }
        }
        Some(connect)
    }

    /// mqttbytes doesn't tell an absent user name or password from an empty one.
    fn blurred(mut connect: Connect) -> Connect {
        connect.username = connect.username.filter(|username| !username.is_empty());
        connect.password = connect.password.filter(|password| !password.is_empty());
        connect
    }

    /// Both read the same where both accept; and it accepts what we accept, but for what it is known not to know.
    fn agree(packet: &[u8]) {
        let Ok(Progress::Complete(ours, length)) = read(packet, LIMIT) else {
            return;
        };
        let text = ours
            .password
            .as_ref()
            .is_none_or(|password| std::str::from_utf8(password).is_ok());
        let named_mqtt = packet.windows(6).take(6).any(|name| name == b"\0\x04MQTT");
        if ours.version == Version::V3_1 || ours.bridge || !text || !named_mqtt {
            return;
        }
        let theirs = oracle(&packet[..length], ours.version);
        assert_eq!(theirs.map(blurred), Some(blurred(*ours)), "{packet:02x?}");
    }

    #[test]
    fn agrees_with_mqttbytes_on_the_vectors() {
        let mut compared = 0;
        for packet in legal() {
            agree(&packet);
            compared += 1;
        }
        assert!(compared > 40);
    }

    /// One of the vectors with a few bytes changed, inserted, removed, or cut at the end.
    fn mutated() -> impl Strategy<Value = Vec<u8>> {
        let packets: Vec<Vec<u8>> = all().into_iter().map(|vector| vector.packet).collect();
        let edit = (
            0u8..4,
            any::<prop::sample::Index>(),
            prop_oneof![any::<u8>(), 0u8..8, Just(0x80), Just(0xff)],
        );
        (
            prop::sample::select(packets),
            prop::collection::vec(edit, 0..5),
            any::<bool>(),
        )
            .prop_map(|(mut packet, edits, repair)| {
                for (kind, at, byte) in edits {
                    let at = at.index(packet.len() + 1);
                    match kind {
                        0 if at < packet.len() => packet[at] = byte,
                        1 if at < packet.len() => packet[at] ^= 1 << (byte % 8),
                        2 => packet.insert(at, byte),
                        _ if at < packet.len() => drop(packet.remove(at)),
                        _ => {}
                    }
                }
                // Most edits make the Remaining Length a lie; half the time it is set right again.
                if repair && packet.len() > 2 && packet.len() < 130 {
                    packet[1] = (packet.len() - 2) as u8;
                }
                packet
            })
    }

    /// What holds for any bytes at any limit.
    fn invariants(bytes: &[u8], limit: usize) {
        let mut asked = 0;
        let mut verdict = None;
        for end in 0..=bytes.len() {
            match (read(&bytes[..end], limit), &verdict) {
                (Ok(Progress::Need(need)), None) => {
                    assert!(end < need, "asks for what it has");
                    assert!(asked <= need, "asks for less than before");
                    assert!(need <= limit.max(5), "asks for more than the limit");
                    asked = need;
                }
                (found, None) => {
                    if let Ok(Progress::Complete(_, length)) = &found {
                        assert!(
                            *length == end && asked <= *length,
                            "whole only when its last byte came"
                        );
                    }
                    verdict = Some(found);
                }
                (found, Some(verdict)) => assert_eq!(&found, verdict, "changed its mind"),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_bytes_at_any_limit(bytes in prop::collection::vec(any::<u8>(), 0..200), limit in 0usize..300) {
            invariants(&bytes, limit);
        }

        #[test]
        fn almost_packets_at_any_limit(bytes in mutated(), limit in prop_oneof![Just(LIMIT), 0usize..100]) {
            invariants(&bytes, limit);
        }

        #[test]
        fn almost_packets_agree_with_mqttbytes(bytes in mutated()) {
            agree(&bytes);
        }
    }
}
