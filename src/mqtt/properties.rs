//! The property section of an MQTT 5.0 packet (5.0 section 2.2.2): identifiers, types, and which packet may carry which.

use super::wire::{Fault, Reader};

/// Property identifiers that Seawall looks at or writes (5.0 table 2-4).
pub(super) mod id {
    pub(in crate::mqtt) const PAYLOAD_FORMAT_INDICATOR: u8 = 0x01;
    pub(in crate::mqtt) const RESPONSE_TOPIC: u8 = 0x08;
    pub(in crate::mqtt) const SESSION_EXPIRY_INTERVAL: u8 = 0x11;
    pub(in crate::mqtt) const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub(in crate::mqtt) const AUTHENTICATION_METHOD: u8 = 0x15;
    pub(in crate::mqtt) const AUTHENTICATION_DATA: u8 = 0x16;
    pub(in crate::mqtt) const REQUEST_PROBLEM_INFORMATION: u8 = 0x17;
    pub(in crate::mqtt) const REQUEST_RESPONSE_INFORMATION: u8 = 0x19;
    pub(in crate::mqtt) const SERVER_REFERENCE: u8 = 0x1c;
    pub(in crate::mqtt) const REASON_STRING: u8 = 0x1f;
    pub(in crate::mqtt) const RECEIVE_MAXIMUM: u8 = 0x21;
    pub(in crate::mqtt) const USER_PROPERTY: u8 = 0x26;
    pub(in crate::mqtt) const MAXIMUM_PACKET_SIZE: u8 = 0x27;
}

/// The bytes of a property of one string or a pair of them; `None` where two bytes can't say how long one is.
pub(super) fn property(identifier: u8, strings: &[&str]) -> Option<Vec<u8>> {
    let mut property = vec![identifier];
    for string in strings {
        property.extend(u16::try_from(string.len()).ok()?.to_be_bytes());
        property.extend(string.as_bytes());
    }
    Some(property)
}

/// A set of property identifiers, all of which are below 64.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Identifiers(u64);

impl Identifiers {
    /// Of a CONNECT (5.0 section 3.1.2.11).
    pub(super) const CONNECT: Self = Self::of(&[0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27]);
    /// Of the Will in a CONNECT (5.0 section 3.1.3.2).
    pub(super) const WILL: Self = Self::of(&[0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26]);
    /// Of a CONNACK (5.0 section 3.2.2.3).
    pub(super) const CONNACK: Self = Self::of(&[
        0x11, 0x12, 0x13, 0x15, 0x16, 0x1a, 0x1c, 0x1f, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a,
    ]);

    const fn of(identifiers: &[u8]) -> Self {
        let mut set = 0;
        let mut rest = identifiers;
        while let [first, others @ ..] = rest {
            set |= 1 << *first;
            rest = others;
        }
        Self(set)
    }

    pub(super) const fn contains(self, identifier: u8) -> bool {
        identifier < 64 && self.0 & (1 << identifier) != 0
    }

    const fn insert(&mut self, identifier: u8) {
        self.0 |= 1 << identifier;
    }
}

/// The value of a property, as far as its type (5.0 section 2.2.2.2) matters to anyone here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Byte(u8),
    TwoBytes(u16),
    FourBytes(u32),
    Text(&'a str),
    Binary,
    Pair,
}

/// Walks over the properties of one packet, in their order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Properties<'a> {
    reader: Reader<'a>,
    allowed: Identifiers,
    seen: Identifiers,
}

impl<'a> Properties<'a> {
    /// Takes the property section, its length first, off the front of `packet`.
    pub(super) fn take(packet: &mut Reader<'a>, allowed: Identifiers) -> Result<Self, Fault> {
        let length = packet.variable_byte_integer()?;
        let reader = Reader::new(packet.take(length)?);
        Ok(Self {
            reader,
            allowed,
            seen: Identifiers::default(),
        })
    }

    /// The next one, or `None` after the last. One that doesn't belong to this packet or isn't of its type is
    /// malformed (5.0 section 2.2.2.2); all but the User Property may occur only once.
    pub(super) fn next(&mut self) -> Result<Option<(u8, Value<'a>)>, Fault> {
        if self.reader.is_empty() {
            return Ok(None);
        }
        let identifier = u8::try_from(self.reader.variable_byte_integer()?).map_err(|_| Fault::Malformed)?;
        if !self.allowed.contains(identifier) {
            return Err(Fault::Malformed);
        }
        let value = self.value(identifier)?;
        if identifier != id::USER_PROPERTY && self.seen.contains(identifier) {
            return Err(Fault::Protocol);
        }
        self.seen.insert(identifier);
        Ok(Some((identifier, value)))
    }

    /// Whether `next` has met this one.
    pub(super) const fn seen(&self, identifier: u8) -> bool {
        self.seen.contains(identifier)
    }

    fn value(&mut self, identifier: u8) -> Result<Value<'a>, Fault> {
        let reader = &mut self.reader;
        match identifier {
            0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28..=0x2a => reader.byte().map(Value::Byte),
            0x13 | 0x21 | 0x22 => reader.two_bytes().map(Value::TwoBytes),
            0x02 | 0x11 | 0x18 | 0x27 => reader.four_bytes().map(Value::FourBytes),
            0x03 | 0x08 | 0x12 | 0x15 | 0x1a | 0x1c | 0x1f => reader.text().map(Value::Text),
            0x09 | 0x16 => reader.binary().map(|_| Value::Binary),
            0x26 => reader.text().and_then(|_| reader.text()).map(|_| Value::Pair),
            _ => Err(Fault::Malformed),
        }
    }
}
