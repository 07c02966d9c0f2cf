//! The header of a balancer in front of us: told from TLS, bounded before it is read, and judged strictly.

use std::str::from_utf8;

use proxy_header::{ParseConfig, ProxyHeader};

use super::crc32c::crc32c;
use super::{Route, Version};

/// With this a header of version 1 begins.
const V1_SIGNATURE: &[u8] = b"PROXY ";

/// With this a header of version 2 begins: no text protocol and no TLS does.
const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Longest header of version 1 in bytes, its CR LF included: what section 2.1 finds for the worst case.
const V1_MOST: usize = 107;

/// Version 2 up to its variable part.
const V2_FIXED: usize = 16;

/// Longest variable part of version 2 in bytes. Addresses take 36; a cloud's identifiers and a certificate's name some
/// hundred; 4 KiB is what the largest senders need. The field itself would allow 64 KiB.
const V2_MOST: usize = 4096;

/// What a whole header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The connection is the balancer's own, most often a health check (LOCAL, UNKNOWN), or its client has no TCP
    /// address (UDP, unix sockets): the peer's address is the real one.
    Local,
    /// The connection is that of another.
    Proxied(Route),
}

/// What the bytes so far amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Legal so far. With fewer bytes than this in all there is nothing new to say.
    Need(usize),
    /// No header: the bytes belong to the client.
    Absent,
    /// A header of this many bytes; what follows belongs to the client.
    Complete(Header, usize),
}

/// Which signature the bytes begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detection {
    /// Too few to tell: at least this many in all.
    Undecided(usize),
    /// None.
    Absent,
    /// That of this version, whole.
    Present(Version),
}

/// A header begins, and can't be one: always the sender's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A line of version 1 without an end within 107 bytes, or a version 2 that declares more than 4,096.
    #[error("PROXY header larger than any sender needs")]
    TooLong,
    /// A line of version 1 that is not `PROXY TCP4|TCP6 SOURCE DESTINATION PORT PORT` with values in their only form.
    #[error("malformed PROXY header of version 1")]
    Line,
    /// Another version than 2 behind the binary signature, or a command that is neither LOCAL nor PROXY.
    #[error("unknown version or command in a binary PROXY header")]
    Command,
    /// A combination of family and transport that does not exist.
    #[error("unknown address family in a PROXY header")]
    Family,
    /// Shorter than its addresses.
    #[error("PROXY header without room for its addresses")]
    Addresses,
    /// Fields that do not fill the header.
    #[error("malformed fields in a PROXY header")]
    Fields,
    /// The checksum is that of other bytes.
    #[error("wrong checksum in a PROXY header")]
    Checksum,
}

/// Tells from the first bytes whether a header begins. One byte is enough to say that it is TLS (0x16).
pub fn detect(bytes: &[u8]) -> Detection {
    for (signature, version) in [(V1_SIGNATURE, Version::V1), (V2_SIGNATURE, Version::V2)] {
        if bytes.starts_with(signature) {
            return Detection::Present(version);
        }
        if signature.starts_with(bytes) {
            return Detection::Undecided(bytes.len() + 1);
        }
    }
    Detection::Absent
}

/// Reads the header at the front of `bytes`, of which more may follow. Nothing is read before its length is known to be
/// bearable.
pub fn read(bytes: &[u8]) -> Result<Progress, HeaderError> {
    match detect(bytes) {
        Detection::Undecided(length) => Ok(Progress::Need(length)),
        Detection::Absent => Ok(Progress::Absent),
        Detection::Present(Version::V1) => read_v1(bytes),
        Detection::Present(Version::V2) => read_v2(bytes),
    }
}

/// Section 2.1.
fn read_v1(bytes: &[u8]) -> Result<Progress, HeaderError> {
    let Some(end) = bytes.iter().take(V1_MOST).position(|byte| *byte == b'\n') else {
        return if bytes.len() < V1_MOST {
            Ok(Progress::Need(bytes.len() + 1))
        } else {
            Err(HeaderError::TooLong)
        };
    };
    let length = end + 1;
    let line = bytes.get(..length).unwrap_or_default();
    let text = line.strip_suffix(b"\r\n").ok_or(HeaderError::Line)?;
    let header = match v1_form(text)? {
        V1Form::Unknown => Header::Local,
        V1Form::Tcp => addresses(line, Version::V1).ok_or(HeaderError::Line)?,
    };
    Ok(Progress::Complete(header, length))
}

enum V1Form {
    Unknown,
    Tcp,
}

/// What the decoder behind it takes lightly: single blanks, nothing behind the ports, ports without sign or leading zero.
fn v1_form(text: &[u8]) -> Result<V1Form, HeaderError> {
    let fields: Vec<&[u8]> = text.split(|byte| *byte == b' ').collect();
    match fields.as_slice() {
        // Whatever follows is to be ignored.
        [b"PROXY", b"UNKNOWN", ..] => Ok(V1Form::Unknown),
        [
            b"PROXY",
            b"TCP4" | b"TCP6",
            _source,
            _destination,
            source_port,
            destination_port,
        ] if is_port(source_port) && is_port(destination_port) => Ok(V1Form::Tcp),
        _ => Err(HeaderError::Line),
    }
}

/// A decimal number in its only form.
fn is_port(text: &[u8]) -> bool {
    from_utf8(text).is_ok_and(|text| text.parse::<u16>().is_ok_and(|port| port.to_string() == text))
}

/// Section 2.2.
fn read_v2(bytes: &[u8]) -> Result<Progress, HeaderError> {
    let local = match bytes.get(12) {
        None => return Ok(Progress::Need(bytes.len() + 1)),
        Some(0x20) => true,
        Some(0x21) => false,
        Some(_) => return Err(HeaderError::Command),
    };
    let Some([_, _, _, _, _, _, _, _, _, _, _, _, _, family, high, low]) = bytes.first_chunk() else {
        return Ok(Progress::Need(V2_FIXED));
    };
    let variable = usize::from(u16::from_be_bytes([*high, *low]));
    if variable > V2_MOST {
        return Err(HeaderError::TooLong);
    }
    let length = V2_FIXED + variable;
    let Some(whole) = bytes.get(..length) else {
        return Ok(Progress::Need(length));
    };
    // All of it is to be skipped, whatever it says.
    if local {
        return Ok(Progress::Complete(Header::Local, length));
    }
    let header = v2_header(whole, *family)?;
    Ok(Progress::Complete(header, length))
}

fn v2_header(whole: &[u8], family: u8) -> Result<Header, HeaderError> {
    // High half: unspecified, IPv4, IPv6, unix. Low half: unspecified, stream, datagram.
    let size = match family {
        0x00 => return Ok(Header::Local),
        0x11 | 0x12 => 12,
        0x21 | 0x22 => 36,
        0x31 | 0x32 => 216,
        _ => return Err(HeaderError::Family),
    };
    let fields = V2_FIXED + size;
    if whole.len() < fields {
        return Err(HeaderError::Addresses);
    }
    check_fields(whole, fields)?;
    match family {
        0x11 | 0x21 => addresses(whole, Version::V2).ok_or(HeaderError::Addresses),
        // Legal, and nothing to count a TCP client by: as if unspecified.
        _ => Ok(Header::Local),
    }
}

/// Walks the fields from `start` to the end, and checks the checksum where there is one (section 2.2.3).
fn check_fields(whole: &[u8], start: usize) -> Result<(), HeaderError> {
    const CRC32C: u8 = 0x03;
    let mut at = start;
    let mut checked = false;
    while let Some(rest) = whole.get(at..).filter(|rest| !rest.is_empty()) {
        let Some(([kind, high, low], rest)) = rest.split_first_chunk() else {
            return Err(HeaderError::Fields);
        };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let value = rest.get(..length).ok_or(HeaderError::Fields)?;
        at += 3;
        if *kind == CRC32C {
            let stated = u32::from_be_bytes(value.try_into().map_err(|_| HeaderError::Fields)?);
            let before = whole.get(..at).unwrap_or_default();
            let after = rest.get(length..).unwrap_or_default();
            if checked {
                return Err(HeaderError::Fields);
            }
            if crc32c(&[before, &[0; 4], after]) != stated {
                return Err(HeaderError::Checksum);
            }
            checked = true;
        }
        at += length;
    }
    Ok(())
}

/// Both addresses of a header that is whole and of the right form. To the decoder "more bytes needed" is an answer even
/// then: here it is none.
fn addresses(whole: &[u8], version: Version) -> Option<Header> {
    let config = ParseConfig {
        include_tlvs: false,
        allow_v1: version == Version::V1,
        allow_v2: version == Version::V2,
    };
    let (header, length) = ProxyHeader::parse(whole, config).ok()?;
    let address = header.proxied_address().filter(|_| length == whole.len())?;
    Some(Header::Proxied(Route::new(address.source, address.destination)))
}
