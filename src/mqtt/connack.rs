//! CONNACK: encode the refusal, and observe the broker's first packets up to it.

use super::Version;
use super::properties::{Identifiers, Properties, Value, id};
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
    variable_byte_integer(&mut packet, connack_remaining(properties.len()));
    packet.extend_from_slice(&[0, code]);
    variable_byte_integer(&mut packet, properties.len());
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

/// A property of one string or a pair of them; `None` where two bytes can't say how long one is.
fn property(identifier: u8, strings: &[&str]) -> Option<Vec<u8>> {
    let mut property = vec![identifier];
    for string in strings {
        property.extend(u16::try_from(string.len()).ok()?.to_be_bytes());
        property.extend(string.as_bytes());
    }
    Some(property)
}

fn variable_byte_integer(out: &mut Vec<u8>, mut value: usize) {
    while value > 0x7f {
        out.push(0x80 | (value & 0x7f) as u8);
        value >>= 7;
    }
    out.push(value as u8);
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
