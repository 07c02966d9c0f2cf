//! The ClientHello as it stands at the front of a TCP stream: bytes → [`Hello`], before any cryptography. It tells who
//! asks for what, so that the gate can decide who gets a place; the handshake itself reads the same bytes again, and is
//! the judge of all that is not needed here.
//!
//! Only the first ClientHello is read. The second one of a HelloRetryRequest comes when the handshake has its place
//! already, and may not say anything new about resumption (RFC 8446 section 4.1.2).

use std::borrow::Cow;
use std::fmt;

use rustls_pki_types::DnsName;

use super::wire::Reader;

/// Most bytes from the start of the stream to the end of the ClientHello, record headers included. A hello with a post-quantum
/// key share takes 2 KiB, a ticket that carries a client's certificate chain up to 8 KiB more; what
/// is longer is an attempt to make us hold it.
pub const LIMIT: usize = 16 * 1024;

/// Most pre-shared keys that one hello may offer: stacks offer the session to resume and perhaps one set by hand. Each is
/// tried by the handshake, which has no limit of its own.
const MOST_IDENTITIES: usize = 8;

/// What a client says of itself before anything is proven.
#[derive(Clone, PartialEq, Eq)]
pub struct Hello {
    /// Name of the server that it wants (RFC 6066 section 3), in lower case; `None`: none, or no DNS name.
    pub server_name: Option<String>,
    /// Application protocols that it offers, the favourite first (RFC 7301); 1 to 255 bytes each.
    pub alpn: Vec<Vec<u8>>,
    /// Whether it offers TLS 1.3: then that is what it gets.
    pub tls13: bool,
    /// Whether it wants to send data before the handshake ends.
    pub early_data: bool,
    /// The ticket by which it could be resumed in the version that it gets, never empty: the first pre-shared key of TLS 1.3
    /// (RFC 8446 section 4.2.11), else the session ticket of 1.2 (RFC 5077 section 3.2). A claim: not proven yet.
    pub ticket: Option<Vec<u8>>,
}

impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello")
            .field("server_name", &self.server_name)
            .field("tls13", &self.tls13)
            .field("ticket", &self.ticket.as_ref().map(Vec::len))
            .finish_non_exhaustive()
    }
}

/// What the bytes so far amount to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Legal so far. With fewer bytes than this in all there is nothing new to say. Never more than [`LIMIT`], and it only
    /// grows.
    Need(usize),
    /// A whole ClientHello, whose last record ends after this many bytes.
    Complete(Box<Hello>, usize),
}

/// Why the bytes can't become a ClientHello: always the client's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// The first bytes are no handshake record: plain MQTT, HTTP, SSH, a scanner.
    #[error("the first bytes are no TLS handshake")]
    NotTls,
    /// TLS, but no ClientHello that can be read.
    #[error("malformed ClientHello")]
    Malformed,
    /// Declares more than [`LIMIT`], or more than eight pre-shared keys.
    #[error("the ClientHello is larger than any client's")]
    TooLarge,
}

/// Reads the ClientHello at the front of `bytes`, of which more may follow: over any number of records (RFC 8446 section 5.1),
/// whatever their fragmentation. What can be said without the rest is said at once.
pub fn read(bytes: &[u8]) -> Result<Progress, HelloError> {
    let mut message = Cow::Borrowed(&[][..]);
    let mut end = 0;
    loop {
        let record = Record::read(bytes.get(end..).unwrap_or_default(), end)?;
        match &mut message {
            // The usual case, one record, is not copied.
            Cow::Borrowed([]) => message = Cow::Borrowed(record.fragment),
            message => message.to_mut().extend_from_slice(record.fragment),
        }
        let body = body(&message)?;
        if let Some(missing) = record.missing {
            return Ok(Progress::Need(bytes.len() + missing));
        }
        end += RECORD_HEADER + record.fragment.len();
        if let Some(body) = body {
            let hello = client_hello(body)?;
            return Ok(Progress::Complete(Box::new(hello), end));
        }
    }
}

const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;

/// `ContentType.handshake`.
const HANDSHAKE: u8 = 22;

/// `HandshakeType.client_hello`.
const CLIENT_HELLO: u8 = 1;

/// A record of the handshake (`TLSPlaintext`, RFC 8446 section 5.1), perhaps not all of it.
struct Record<'a> {
    /// What is there of the fragment.
    fragment: &'a [u8],
    /// How many bytes are missing until there is more to say; `None`: it is whole.
    missing: Option<usize>,
}

impl<'a> Record<'a> {
    /// The record at the front of `bytes`, before which `before` bytes came.
    fn read(bytes: &'a [u8], before: usize) -> Result<Self, HelloError> {
        // No record that says anything has room any more.
        if before + RECORD_HEADER + 1 > LIMIT {
            return Err(HelloError::TooLarge);
        }
        let mut reader = Reader::new(bytes);
        // All versions have the major number 3; the minor one is to be ignored (RFC 8446 section 5.1).
        let typed = reader.uint8().is_none_or(|byte| byte == HANDSHAKE);
        let versioned = reader.uint8().is_none_or(|byte| byte == 3);
        if !typed || !versioned {
            return Err(if before == 0 {
                HelloError::NotTls
            } else {
                HelloError::Malformed
            });
        }
        let (Some(_), Some(length)) = (reader.uint8(), reader.uint16()) else {
            return Ok(Self {
                fragment: &[],
                missing: Some(RECORD_HEADER.saturating_sub(bytes.len())),
            });
        };
        let length = usize::from(length);
        if length == 0 {
            return Err(HelloError::Malformed);
        }
        if before + RECORD_HEADER + length > LIMIT {
            return Err(HelloError::TooLarge);
        }
        let arrived = bytes.get(RECORD_HEADER..).unwrap_or_default();
        Ok(match arrived.get(..length) {
            Some(fragment) => Self {
                fragment,
                missing: None,
            },
            None => Self {
                fragment: arrived,
                missing: Some(length - arrived.len()),
            },
        })
    }
}

/// The body of the message, once it is whole; an error as soon as it can be no ClientHello.
fn body(message: &[u8]) -> Result<Option<&[u8]>, HelloError> {
    let mut reader = Reader::new(message);
    match reader.uint8() {
        None => return Ok(None),
        Some(CLIENT_HELLO) => {}
        Some(_) => return Err(HelloError::Malformed),
    }
    let Some(length) = reader.uint24() else {
        return Ok(None);
    };
    let length = length as usize;
    if RECORD_HEADER + MESSAGE_HEADER + length > LIMIT {
        return Err(HelloError::TooLarge);
    }
    Ok(reader.take(length))
}

/// The body of a ClientHello (RFC 8446 section 4.1.2, RFC 5246 section 7.4.1.2).
fn client_hello(body: &[u8]) -> Result<Hello, HelloError> {
    let extensions = extensions(body).ok_or(HelloError::Malformed)?;
    let mut offer = Offer::default();
    let mut reader = Reader::new(extensions);
    while !reader.is_empty() {
        let (Some(kind), Some(data)) = (reader.uint16(), reader.vector16()) else {
            return Err(HelloError::Malformed);
        };
        offer.take(kind, data)?;
    }
    offer.read()
}

/// The extensions of a ClientHello, empty where there are none: TLS 1.2 knows clients without.
fn extensions(body: &[u8]) -> Option<&[u8]> {
    const RANDOM: usize = 32;
    let mut reader = Reader::new(body);
    let _legacy_version = reader.uint16()?;
    let _random = reader.take(RANDOM)?;
    let _session_id = reader.vector8()?;
    let _cipher_suites = reader.vector16()?;
    let _compression_methods = reader.vector8()?;
    if reader.is_empty() {
        return Some(&[]);
    }
    let extensions = reader.vector16()?;
    reader.is_empty().then_some(extensions)
}

/// The extensions that are read here, as they came. All others are none of our business, GREASE (RFC 8701) among them.
#[derive(Default)]
struct Offer<'a> {
    server_name: Option<&'a [u8]>,
    protocol_names: Option<&'a [u8]>,
    session_ticket: Option<&'a [u8]>,
    pre_shared_key: Option<&'a [u8]>,
    early_data: Option<&'a [u8]>,
    supported_versions: Option<&'a [u8]>,
    psk_key_exchange_modes: Option<&'a [u8]>,
}

impl<'a> Offer<'a> {
    fn take(&mut self, kind: u16, data: &'a [u8]) -> Result<(), HelloError> {
        if self.pre_shared_key.is_some() {
            // It must be the last one (RFC 8446 section 4.2.11).
            return Err(HelloError::Malformed);
        }
        let place = match kind {
            0 => &mut self.server_name,
            16 => &mut self.protocol_names,
            35 => &mut self.session_ticket,
            41 => &mut self.pre_shared_key,
            42 => &mut self.early_data,
            43 => &mut self.supported_versions,
            45 => &mut self.psk_key_exchange_modes,
            _ => return Ok(()),
        };
        // None may come twice (RFC 8446 section 4.2).
        place.replace(data).map_or(Ok(()), |_| Err(HelloError::Malformed))
    }

    fn read(&self) -> Result<Hello, HelloError> {
        let tls13 = self.supported_versions.map_or(Ok(false), offers_tls13)?;
        let identity = self.pre_shared_key.map(first_identity).transpose()?;
        let key_exchange = self.psk_key_exchange_modes.map_or(Ok(false), offers_psk_dhe_ke)?;
        let ticket = if tls13 {
            // Without a key exchange there would be no forward secrecy: such a client is not resumed.
            identity.filter(|_| key_exchange)
        } else {
            // Empty: it would like to have one.
            self.session_ticket.filter(|ticket| !ticket.is_empty())
        };
        Ok(Hello {
            server_name: self.server_name.map(server_name).transpose()?.flatten(),
            alpn: self
                .protocol_names
                .map(protocol_names)
                .transpose()?
                .unwrap_or_default(),
            tls13,
            early_data: self.early_data.is_some(),
            ticket: ticket.map(<[u8]>::to_vec),
        })
    }
}

/// The first name of a `ServerNameList` (RFC 6066 section 3), where it is a DNS name.
fn server_name(data: &[u8]) -> Result<Option<String>, HelloError> {
    const HOST_NAME: u8 = 0;
    let mut reader = Reader::new(data);
    let list = reader.vector16().ok_or(HelloError::Malformed)?;
    let mut reader = Reader::new(list);
    match reader.uint8() {
        Some(HOST_NAME) => {}
        // Other types have no length that we could know.
        _ => return Ok(None),
    }
    let name = reader.vector16().ok_or(HelloError::Malformed)?;
    Ok(DnsName::try_from(name)
        .ok()
        .map(|name| name.as_ref().to_ascii_lowercase()))
}

/// A `ProtocolNameList` (RFC 7301 section 3.1).
fn protocol_names(data: &[u8]) -> Result<Vec<Vec<u8>>, HelloError> {
    let list = Reader::new(data).vector16().ok_or(HelloError::Malformed)?;
    let mut reader = Reader::new(list);
    let mut names = Vec::new();
    while !reader.is_empty() {
        match reader.vector8() {
            None | Some([]) => return Err(HelloError::Malformed),
            Some(name) => names.push(name.to_vec()),
        }
    }
    Ok(names)
}

/// The first identity of `OfferedPsks` (RFC 8446 section 4.2.11).
fn first_identity(data: &[u8]) -> Result<&[u8], HelloError> {
    const OBFUSCATED_TICKET_AGE: usize = 4;
    let list = Reader::new(data).vector16().ok_or(HelloError::Malformed)?;
    let mut reader = Reader::new(list);
    let mut first = None;
    let mut count = 0;
    while !reader.is_empty() {
        let identity = reader.vector16().filter(|identity| !identity.is_empty());
        let age = reader.take(OBFUSCATED_TICKET_AGE);
        let (Some(identity), Some(_)) = (identity, age) else {
            return Err(HelloError::Malformed);
        };
        first = first.or(Some(identity));
        count += 1;
        if count > MOST_IDENTITIES {
            return Err(HelloError::TooLarge);
        }
    }
    first.ok_or(HelloError::Malformed)
}

/// `SupportedVersions` (RFC 8446 section 4.2.1).
fn offers_tls13(data: &[u8]) -> Result<bool, HelloError> {
    const TLS13: [u8; 2] = [3, 4];
    let list = Reader::new(data).vector8().ok_or(HelloError::Malformed)?;
    let (versions, half) = list.as_chunks();
    if half.is_empty() {
        Ok(versions.contains(&TLS13))
    } else {
        Err(HelloError::Malformed)
    }
}

/// `PskKeyExchangeModes` (RFC 8446 section 4.2.9).
fn offers_psk_dhe_ke(data: &[u8]) -> Result<bool, HelloError> {
    const PSK_DHE_KE: u8 = 1;
    let modes = Reader::new(data).vector8().ok_or(HelloError::Malformed)?;
    Ok(modes.contains(&PSK_DHE_KE))
}

#[cfg(test)]
mod tests;
