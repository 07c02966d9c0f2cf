//! The header that tells the broker who its client is.

use std::borrow::Cow;

use proxy_header::{ProxiedAddress, ProxyHeader, SslInfo, Tlv};

use super::{Route, Version};

/// Longest header in bytes that is written. Mosquitto 2.1 takes 500 behind the fixed 16, and some readers look at one
/// segment alone: all of it stays below.
pub const MAX_LENGTH: usize = 500;

/// Longest common name in bytes that is passed on: 64 characters (RFC 5280 appendix A.1, `ub-common-name`) of UTF-8.
const LONGEST_NAME: usize = 256;

/// Version 2 up to its fields, IPv6.
const LONGEST_FRONT: usize = 16 + 36;

/// Type and length of a field.
const FIELD_HEADER: usize = 3;

/// Flags and `verify`.
const SSL_FIXED: usize = 5;

/// `verify` of a session without a certificate. Zero is kept for one that was verified.
const NOT_VERIFIED: u32 = 1;

/// What is known of the client's TLS session. Only version 2 has room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session<'a> {
    /// As OpenSSL writes it: `TLSv1.3`.
    pub version: &'static str,
    /// The client's certificate, where it has one. It was verified: a session with any other never comes about.
    pub certificate: Option<Certificate<'a>>,
    /// The name that the client asked for (SNI).
    pub server_name: Option<&'a str>,
    /// The application protocol that was agreed upon.
    pub alpn: Option<&'a [u8]>,
}

/// A client's verified certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Certificate<'a> {
    /// The subject's common name.
    pub common_name: Option<&'a str>,
    /// Whether it was presented in an earlier connection of this session: the handshake was a resumption.
    pub resumed: bool,
}

/// The header for a client's connection, at most [`MAX_LENGTH`] bytes: whatever would not fit is left out, the
/// identity last. To be sent in one write with the first bytes of the client.
pub fn write(version: Version, route: Route, session: &Session<'_>) -> Vec<u8> {
    let addresses = ProxiedAddress::stream(route.source, route.destination);
    let mut bytes = Vec::with_capacity(MAX_LENGTH);
    // The addresses are of one family and the transport is TCP: there is nothing else that an encoder could object to.
    let _ = match version {
        Version::V1 => ProxyHeader::with_address(addresses).encode_v1(&mut bytes),
        Version::V2 => ProxyHeader::with_tlvs(Some(addresses), fields(session)).encode_v2(&mut bytes),
    };
    bytes
}

/// The most important first, and each only while there is room.
fn fields<'a>(session: &Session<'a>) -> Vec<Tlv<'a>> {
    let mut fields = Fields {
        room: MAX_LENGTH - LONGEST_FRONT,
        fields: Vec::new(),
    };
    let (info, length) = ssl(session);
    fields.add(length, Tlv::Ssl(info));
    if let Some(name) = session.server_name {
        fields.add(name.len(), Tlv::Authority(Cow::Borrowed(name)));
    }
    if let Some(protocol) = session.alpn {
        fields.add(protocol.len(), Tlv::Alpn(Cow::Borrowed(protocol)));
    }
    fields.fields
}

struct Fields<'a> {
    /// Bytes that are left.
    room: usize,
    fields: Vec<Tlv<'a>>,
}

impl<'a> Fields<'a> {
    /// Adds a field with a value of `length` bytes, if it fits.
    fn add(&mut self, length: usize, field: Tlv<'a>) {
        if let Some(rest) = self.room.checked_sub(FIELD_HEADER + length) {
            self.room = rest;
            self.fields.push(field);
        }
    }
}

/// Section 2.2.5, and how many bytes it has.
fn ssl(session: &Session<'_>) -> (SslInfo<'static>, usize) {
    let certificate = session.certificate;
    let presented_here = certificate.is_some_and(|certificate| !certificate.resumed);
    let verify = if certificate.is_some() { 0 } else { NOT_VERIFIED };
    let mut info = SslInfo::new(true, presented_here, certificate.is_some(), verify);
    let mut length = SSL_FIXED;
    let name = certificate
        .and_then(|certificate| certificate.common_name)
        .filter(|name| is_passed_on(name));
    let version = Tlv::SslVersion(Cow::Borrowed(session.version));
    info.append_tlv(version);
    length += FIELD_HEADER + session.version.len();
    if let Some(name) = name {
        info.append_tlv(Tlv::SslCn(Cow::Borrowed(name)));
        length += FIELD_HEADER + name.len();
    }
    (info, length)
}

/// Whether a broker may take `name` for a user name. One that is cut, or rid of its odd characters, would be that of
/// somebody else: such a name is left out. Control characters have no place in an MQTT string (U+0000 is forbidden,
/// the others may close the connection: section 1.5.4 of 5.0), and split lines in logs.
fn is_passed_on(name: &str) -> bool {
    // U+FFFD stands where a character was that can't be shown: the name is no longer that of the certificate.
    let odd = |c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER;
    (1..=LONGEST_NAME).contains(&name.len()) && !name.chars().any(odd)
}
