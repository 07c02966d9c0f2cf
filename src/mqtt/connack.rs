//! CONNACK: encode the refusal, and observe the broker's first packets up to it.

use super::Version;
use super::properties::{Identifiers, Properties, Value, id, property};
use super::wire::{Fault, Reader, VariableByteInteger};

/// What a refusing CONNACK says beside its code. Everything here is for MQTT 5.0 alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras<'a> {
    /// Reason String, left out where it would not fit.
    pub reason_string: Option<&'a str>,
    /// User property `retry-after-ms`, left out where it would not fit.
    pub retry_after_ms: Option<u64>,
    /// Server Reference (with 0x9C or 0x9D). Where it does not fit the code becomes 0x89: "use another server" without
    /// naming one is of no use.
    pub server_reference: Option<&'a str>,
}

/// The bytes of a CONNACK that refuses with `code`, Session Present 0 ([MQTT-3.2.2-4] in 3.1.1, [MQTT-3.2.2-6] in 5.0).
///
/// A 5.0 packet is never larger than `maximum_packet_size` in bytes: the user property goes first, then the reason
/// string, then the server reference. What is too long for the wire (65,535 bytes a string) is left out likewise.
///
/// `None`: nothing can be said, close. Either not even the bare packet fits, or `code` refuses nothing in this version
/// (3.x has 1 to 5 [MQTT-3.2.2-6], 5.0 has 0x80 and above).
pub fn refuse(
    version: Version,
    code: u8,
    extras: Extras<'_>,
    maximum_packet_size: Option<u32>,
) -> Option<Vec<u8>> {
    match version {
        Version::V3_1 | Version::V3_1_1 => (1..=5).contains(&code).then(|| vec![CONNACK, 2, 0, code]),
        Version::V5 if code < 0x80 => None,
        Version::V5 => refuse_v5(code, extras, maximum_packet_size),
    }
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
        /// Return or reason code; 0 is success. A broker that doesn't know 5.0 refuses with a code of 3.x, below 0x80.
        code: u8,
        /// Server Keep Alive in seconds (5.0), which replaces the client's; 0: none.
        server_keep_alive: Option<u16>,
    },
}

/// The broker sent something that is neither AUTH nor CONNACK, or a CONNACK that can't be read. The broker's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the broker's first packet is no CONNACK that can be read")]
pub struct NotConnack;

/// The largest CONNACK or AUTH that a broker may send, in bytes with its header. It waits in memory until it is whole;
/// a string or a piece of authentication data has at most 65,535 bytes, and real ones are below 4 KiB.
pub const MOST: usize = 64 * 1024;

/// Reads the packet at the front of `bytes` that a broker sent to a client of this `version`. What follows it belongs
/// to the session.
///
/// It only reads what Seawall needs; whether a value is allowed is between the client and its broker. A refusal is
/// believed in any shape, a success only in that of its version.
pub fn observe(bytes: &[u8], version: Version) -> Result<FirstAnswer, NotConnack> {
    let Some((&first, rest)) = bytes.split_first() else {
        return Ok(FirstAnswer::Need(SHORTEST_HEADER));
    };
    if first != CONNACK && !(first == AUTH && version == Version::V5) {
        return Err(NotConnack);
    }
    let (remaining, header) = match VariableByteInteger::read(rest) {
        VariableByteInteger::Partial => return Ok(FirstAnswer::Need(bytes.len() + 1)),
        VariableByteInteger::Overlong => return Err(NotConnack),
        VariableByteInteger::Whole { value, length, .. } => (value, 1 + length),
    };
    let length = header + remaining;
    if length > MOST {
        return Err(NotConnack);
    }
    let Some(body) = bytes.get(header..length) else {
        return Ok(FirstAnswer::Need(length));
    };
    if first == AUTH {
        return Ok(FirstAnswer::Auth { length });
    }
    let [flags, code, properties @ ..] = body else {
        return Err(NotConnack);
    };
    let (&flags, &code) = (flags, code);
    if code != 0 {
        return Ok(FirstAnswer::Connack {
            length,
            code,
            server_keep_alive: None,
        });
    }
    let server_keep_alive = success(version, flags, properties).map_err(|_| NotConnack)?;
    Ok(FirstAnswer::Connack {
        length,
        code,
        server_keep_alive,
    })
}

/// First byte of a CONNACK: type 2, flags 0.
const CONNACK: u8 = 0x20;

/// First byte of an AUTH: type 15, flags 0.
const AUTH: u8 = 0xf0;

/// Type and flags, and a length of one byte.
const SHORTEST_HEADER: usize = 2;

/// `retry-after-ms` is Seawall's own: MQTT has no property for it.
const RETRY_AFTER: &str = "retry-after-ms";

/// Reason codes of 5.0 (section 3.2.2.2).
const SERVER_BUSY: u8 = 0x89;
const USE_ANOTHER_SERVER: u8 = 0x9c;
const SERVER_MOVED: u8 = 0x9d;

/// Written here instead of by a codec crate: that takes its strings owned, knows only the codes of its enum, and has no
/// notion of a size that must not be exceeded. It judges these bytes in the tests.
fn refuse_v5(code: u8, extras: Extras<'_>, maximum_packet_size: Option<u32>) -> Option<Vec<u8>> {
    let most = maximum_packet_size.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let mut properties = Vec::new();
    let mut add_if_it_fits = |property: Option<Vec<u8>>| match property {
        Some(property) if connack_length(properties.len() + property.len()) <= most => {
            properties.extend(property);
            true
        }
        _ => false,
    };

    let mut code = code;
    if let Some(reference) = extras.server_reference
        && !add_if_it_fits(property(id::SERVER_REFERENCE, &[reference]))
        && matches!(code, USE_ANOTHER_SERVER | SERVER_MOVED)
    {
        code = SERVER_BUSY;
    }
    if let Some(reason) = extras.reason_string {
        add_if_it_fits(property(id::REASON_STRING, &[reason]));
    }
    if let Some(milliseconds) = extras.retry_after_ms {
        add_if_it_fits(property(
            id::USER_PROPERTY,
            &[RETRY_AFTER, &milliseconds.to_string()],
        ));
    }

    let length = connack_length(properties.len());
    if length > most {
        return None;
    }
    let mut packet = Vec::with_capacity(length);
    packet.push(CONNACK);
    VariableByteInteger::write(&mut packet, connack_remaining(properties.len()));
    packet.extend_from_slice(&[0, code]);
    VariableByteInteger::write(&mut packet, properties.len());
    packet.append(&mut properties);
    Some(packet)
}

/// Flags, code, and the properties with their length.
fn connack_remaining(properties: usize) -> usize {
    2 + variable_byte_integer_length(properties) + properties
}

fn connack_length(properties: usize) -> usize {
    let remaining = connack_remaining(properties);
    1 + variable_byte_integer_length(remaining) + remaining
}

const fn variable_byte_integer_length(value: usize) -> usize {
    match value {
        0..=0x7f => 1,
        0x80..=0x3fff => 2,
        0x4000..=0x001f_ffff => 3,
        _ => 4,
    }
}

/// Server Keep Alive of a CONNACK with code 0, if it has the shape of its version.
fn success(version: Version, flags: u8, rest: &[u8]) -> Result<Option<u16>, Fault> {
    const SESSION_PRESENT: u8 = 0x01;
    // 3.1 does not use this byte.
    if version != Version::V3_1 && flags & !SESSION_PRESENT != 0 {
        return Err(Fault::Malformed);
    }
    let mut packet = Reader::new(rest);
    let mut server_keep_alive = None;
    if version == Version::V5 {
        let mut properties = Properties::take(&mut packet, Identifiers::CONNACK)?;
        while let Some(property) = properties.next()? {
            if let (id::SERVER_KEEP_ALIVE, Value::TwoBytes(seconds)) = property {
                server_keep_alive = Some(seconds);
            }
        }
    }
    if packet.is_empty() {
        Ok(server_keep_alive)
    } else {
        Err(Fault::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use proptest::prelude::*;

    use super::super::vectors::{self, Vector};
    use super::*;

    const V3: [Version; 2] = [Version::V3_1, Version::V3_1_1];

    fn hex(spelt: &str) -> Vec<u8> {
        vectors::packet(spelt)
    }

    #[test]
    fn bare_refusals() {
        for version in V3 {
            for code in 1..=5 {
                assert_eq!(
                    refuse(version, code, Extras::default(), None),
                    Some(vec![0x20, 0x02, 0x00, code])
                );
            }
        }
        for code in [0x81, 0x82, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x95, 0x9c, 0x9f] {
            let expected = vec![0x20, 0x03, 0x00, code, 0x00];
            assert_eq!(refuse(Version::V5, code, Extras::default(), None), Some(expected));
        }
    }

    #[test]
    fn what_refuses_nothing_is_never_sent() {
        for version in V3 {
            for code in [0x00, 0x06, 0x80, 0x89, 0xff] {
                assert_eq!(refuse(version, code, Extras::default(), None), None);
            }
        }
        for code in [0x00, 0x01, 0x03, 0x18, 0x7f] {
            assert_eq!(refuse(Version::V5, code, Extras::default(), None), None);
        }
    }

    #[test]
    fn extras_are_for_version_5_alone() {
        let extras = Extras {
            reason_string: Some("busy"),
            retry_after_ms: Some(1),
            server_reference: Some("b:1"),
        };
        for version in V3 {
            assert_eq!(
                refuse(version, 3, extras, Some(1)),
                Some(vec![0x20, 0x02, 0x00, 0x03])
            );
        }
    }

    #[test]
    fn extras_on_the_wire() {
        let reason = Extras {
            reason_string: Some("busy"),
            ..Extras::default()
        };
        let retry = Extras {
            retry_after_ms: Some(1500),
            ..Extras::default()
        };
        let reference = Extras {
            server_reference: Some("b.example:8883"),
            ..Extras::default()
        };
        let all = Extras {
            reason_string: Some("busy"),
            ..Extras {
                retry_after_ms: Some(0),
                ..reference
            }
        };
        let long = "x".repeat(130);
        let cases = [
            (0x89, reason, r#"20 0a 00 89 07 1f 0004 "busy""#),
            (
                0x89,
                retry,
                r#"20 1a 00 89 17 26 000e "retry-after-ms" 0004 "1500""#,
            ),
            (0x9c, reference, r#"20 14 00 9c 11 1c 000e "b.example:8883""#),
            (
                0x9c,
                all,
                r#"20 2f 00 9c 2c 1c 000e "b.example:8883" 1f 0004 "busy" 26 000e "retry-after-ms" 0001 "0""#,
            ),
            // Both lengths take two bytes: 133 of properties, 2 + 2 + 133 of the rest.
            (
                0x89,
                Extras {
                    reason_string: Some(&long),
                    ..reason
                },
                r#"20 8901 00 89 8501 1f 0082 "x"*130"#,
            ),
        ];
        for (code, extras, spelt) in cases {
            assert_eq!(
                refuse(Version::V5, code, extras, None),
                Some(hex(spelt)),
                "{spelt}"
            );
        }
        let most = Extras {
            retry_after_ms: Some(u64::MAX),
            ..Extras::default()
        };
        let spelt = r#"20 2a 00 89 27 26 000e "retry-after-ms" 0014 "18446744073709551615""#;
        assert_eq!(refuse(Version::V5, 0x89, most, None), Some(hex(spelt)));
    }

    /// Sizes of the parts: bare 5, server reference 17 more, reason string 7 more, user property 20 more.
    #[test]
    fn the_client_sets_the_size() {
        let extras = Extras {
            reason_string: Some("busy"),
            retry_after_ms: Some(5),
            server_reference: Some("b.example:8883"),
        };
        let bare = "20 03 00 89 00";
        let reason = r#"20 0a 00 89 07 1f 0004 "busy""#;
        let reference = r#"20 14 00 9c 11 1c 000e "b.example:8883""#;
        let both = r#"20 1b 00 9c 18 1c 000e "b.example:8883" 1f 0004 "busy""#;
        let all =
            r#"20 2f 00 9c 2c 1c 000e "b.example:8883" 1f 0004 "busy" 26 000e "retry-after-ms" 0001 "5""#;
        let cases = [
            (0..=4, None),
            (5..=11, Some(bare)),
            (12..=21, Some(reason)),
            (22..=28, Some(reference)),
            (29..=48, Some(both)),
            (49..=60, Some(all)),
        ];
        for (sizes, spelt) in cases {
            for size in sizes {
                assert_eq!(
                    refuse(Version::V5, 0x9c, extras, Some(size)),
                    spelt.map(hex),
                    "at most {size}"
                );
            }
        }
        assert_eq!(refuse(Version::V5, 0x9c, extras, Some(u32::MAX)), Some(hex(all)));
    }

    #[test]
    fn only_a_redirection_becomes_busy_without_its_reference() {
        let extras = Extras {
            server_reference: Some("b.example:8883"),
            ..Extras::default()
        };
        let code = |code| refuse(Version::V5, code, extras, Some(10)).map(|packet| packet[3]);
        assert_eq!(code(0x9c), Some(0x89));
        assert_eq!(code(0x9d), Some(0x89));
        assert_eq!(code(0x88), Some(0x88));
    }

    #[test]
    fn a_string_too_long_for_the_wire_is_left_out() {
        let long = "x".repeat(65_536);
        let extras = Extras {
            reason_string: Some(&long),
            server_reference: Some(&long),
            retry_after_ms: None,
        };
        assert_eq!(
            refuse(Version::V5, 0x9c, extras, None),
            Some(hex("20 03 00 89 00"))
        );
        let longest = Extras {
            reason_string: Some(&long[1..]),
            ..Extras::default()
        };
        let packet = refuse(Version::V5, 0x89, longest, None).unwrap();
        assert_eq!(
            packet.get(..12),
            Some(hex("20 878004 00 89 828004 1f ffff").as_slice())
        );
        assert_eq!(packet.len(), 12 + 65_535);
    }

    fn expectation(vector: &Vector) -> (Version, Result<FirstAnswer, NotConnack>) {
        let words: Vec<&str> = vector.expected.split(' ').collect();
        let length = vector.packet.len();
        let read = match words[1..] {
            ["bad"] => Err(NotConnack),
            ["auth"] => Ok(FirstAnswer::Auth { length }),
            ["connack", code, ref rest @ ..] => Ok(FirstAnswer::Connack {
                length,
                code: hex(code)[0],
                server_keep_alive: rest
                    .first()
                    .map(|field| field.strip_prefix("keep=").expect("keep").parse().unwrap()),
            }),
            _ => panic!("no expectation: {}", vector.expected),
        };
        (vectors::version(words[0]), read)
    }

    fn all() -> Vec<Vector> {
        vectors::parse(include_str!("../../tests/vectors/connack.txt"))
    }

    #[test]
    fn vectors() {
        for vector in all() {
            let (version, expected) = expectation(&vector);
            assert_eq!(observe(&vector.packet, version), expected, "{}", vector.line);
            let mut more = vector.packet.clone();
            more.extend(hex(r#"90 03 0001 00 30 03 0001 "t""#));
            assert_eq!(
                observe(&more, version),
                expected,
                "{} and more behind it",
                vector.line
            );
        }
    }

    #[test]
    fn every_split() {
        for vector in all() {
            let (version, expected) = expectation(&vector);
            let mut asked = 0;
            for end in 0..vector.packet.len() {
                match observe(&vector.packet[..end], version) {
                    Ok(FirstAnswer::Need(need)) => {
                        let honest =
                            end < need && asked <= need && (expected.is_err() || need <= vector.packet.len());
                        assert!(honest, "{} at {end}: {need}", vector.line);
                        asked = need;
                    }
                    found => {
                        assert!(found.is_err(), "{} at {end}", vector.line);
                        assert_eq!(found, expected, "{} at {end}", vector.line);
                    }
                }
            }
        }
    }

    #[test]
    fn a_broker_can_not_fill_the_memory() {
        for first in [CONNACK, AUTH] {
            let declared = |remaining: [u8; 3]| observe(&[&[first], &remaining[..]].concat(), Version::V5);
            // 65,532 and 65,533 after a header of four bytes.
            assert_eq!(declared([0xfc, 0xff, 0x03]), Ok(FirstAnswer::Need(MOST)));
            assert_eq!(declared([0xfd, 0xff, 0x03]), Err(NotConnack));
        }
    }

    #[test]
    fn agrees_with_mqttbytes_on_what_a_broker_sends() {
        let mut compared = 0;
        for vector in all() {
            let (
                version,
                Ok(FirstAnswer::Connack {
                    code,
                    server_keep_alive,
                    ..
                }),
            ) = expectation(&vector)
            else {
                continue;
            };
            let mut stream = BytesMut::from(vector.packet.as_slice());
            if version == Version::V5 {
                let Ok(mqttbytes::v5::Packet::ConnAck(theirs)) = mqttbytes::v5::read(&mut stream, MOST)
                else {
                    continue;
                };
                assert_eq!(theirs.code as u8, code, "{}", vector.line);
                let theirs = theirs
                    .properties
                    .and_then(|properties| properties.server_keep_alive);
                assert_eq!(theirs, server_keep_alive, "{}", vector.line);
            } else {
                let Ok(mqttbytes::v4::Packet::ConnAck(theirs)) = mqttbytes::v4::read(&mut stream, MOST)
                else {
                    continue;
                };
                assert_eq!(theirs.code as u8, code, "{}", vector.line);
            }
            compared += 1;
        }
        assert!(compared >= 15, "only {compared} were compared");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// mqttbytes reads every refusal as it was meant, and the size holds.
        #[test]
        fn refusals_are_legal_and_fit(
            code in prop::sample::select(vec![0x81u8, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x95, 0x9c, 0x9d, 0x9f]),
            reason_string in prop::option::of("[ -~ä€😀]{0,200}"),
            retry_after_ms in prop::option::of(any::<u64>()),
            server_reference in prop::option::of("[a-z.:0-9]{0,40}"),
            size in prop::option::of(prop_oneof![0u32..400, any::<u32>()]),
        ) {
            let extras = Extras {
                reason_string: reason_string.as_deref(),
                retry_after_ms,
                server_reference: server_reference.as_deref(),
            };
            let Some(packet) = refuse(Version::V5, code, extras, size) else {
                prop_assert!(size.is_some_and(|size| size < 5));
                return Ok(());
            };
            prop_assert!(size.is_none_or(|size| packet.len() <= size as usize));
            let mut stream = BytesMut::from(packet.as_slice());
            let mqttbytes::v5::Packet::ConnAck(read) = mqttbytes::v5::read(&mut stream, MOST).unwrap() else {
                panic!("no CONNACK");
            };
            prop_assert!(stream.is_empty());
            prop_assert!(!read.session_present);
            let read_code = read.code as u8;
            let properties = read.properties.unwrap_or_else(mqttbytes::v5::ConnAckProperties::new);
            prop_assert!(properties.reason_string.is_none() || properties.reason_string == reason_string);
            prop_assert!(properties.server_reference.is_none() || properties.server_reference == server_reference);
            let retry = properties.user_properties.first().map(|(key, value)| (key.as_str(), value.as_str()));
            let given = retry_after_ms.map(|milliseconds| milliseconds.to_string());
            prop_assert!(retry.is_none() || retry == given.as_deref().map(|value| ("retry-after-ms", value)));
            let dropped = server_reference.is_some() && properties.server_reference.is_none();
            let redirected = matches!(code, 0x9c | 0x9d);
            prop_assert_eq!(read_code, if dropped && redirected { 0x89 } else { code });
            if size.is_none() {
                prop_assert_eq!(properties.reason_string, reason_string);
                prop_assert_eq!(properties.server_reference, server_reference);
                prop_assert_eq!(properties.user_properties.len(), usize::from(retry_after_ms.is_some()));
            }
        }

        #[test]
        fn any_bytes_are_observed_the_same_in_any_fragmentation(
            first in prop_oneof![Just(0x20u8), Just(0xf0), any::<u8>()],
            rest in prop::collection::vec(prop_oneof![0u8..32, any::<u8>()], 0..60),
            version in prop::sample::select(vec![Version::V3_1, Version::V3_1_1, Version::V5]),
        ) {
            let bytes = [vec![first], rest].concat();
            let whole = observe(&bytes, version);
            let mut asked = 0;
            for end in 0..=bytes.len() {
                match observe(&bytes[..end], version) {
                    Ok(FirstAnswer::Need(need)) => {
                        prop_assert!(end < need && asked <= need);
                        asked = need;
                    }
                    found => prop_assert_eq!(found, whole),
                }
            }
        }
    }
}
