//! MQTT packets after the CONNECT, as far as the fleet's broker and devices speak them: one vocabulary for 3.1, 3.1.1
//! and 5.0 over `mqttbytes`, which is asked only for what it does right.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use mqttbytes::{FixedHeader, PacketType, QoS, v4, v5};

use crate::mqtt::Version;

/// Largest packet after its fixed header, in bytes: more than any trial publishes, little enough to hold for each client.
pub(super) const MAX_PACKET: usize = 1024 * 1024;

/// PINGREQ, in every version.
pub(super) const PINGREQ: [u8; 2] = [0xC0, 0];
/// PINGRESP, in every version.
pub(super) const PINGRESP: [u8; 2] = [0xD0, 0];
/// DISCONNECT without a reason, in every version.
pub(super) const DISCONNECT: [u8; 2] = [0xE0, 0];

/// What a publisher said, without what belongs to one connection. 5.0 properties are not carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) topic: String,
    pub(super) payload: Bytes,
    pub(super) qos: QoS,
}

/// What a client sends after its CONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FromClient {
    Publish { message: Message, id: u16 },
    Puback,
    Subscribe { id: u16, filters: Vec<(String, QoS)> },
    Unsubscribe { id: u16, filters: Vec<String> },
    Pingreq,
    Disconnect,
}

/// What a broker sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FromBroker {
    Connack { code: u8, retry_after_ms: Option<u64> },
    Publish { message: Message, id: u16 },
    Puback,
    Suback { codes: Vec<u8> },
    Pingresp,
    Disconnect,
}

/// The peer's: bytes that are no packet, or none that the fleet speaks (QoS 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an MQTT packet that is spoken here")]
pub(super) struct PacketError;

impl FromClient {
    /// Takes the first packet out of `buffer`; `None`: it is not whole yet.
    pub(super) fn take(buffer: &mut BytesMut, version: Version) -> Result<Option<Self>, PacketError> {
        let Some(Frame {
            header,
            kind,
            whole,
            mut body,
        }) = Frame::take(buffer)?
        else {
            return Ok(None);
        };
        let packet = match kind {
            PacketType::Publish => {
                let (message, id) = read_publish(header, whole, version)?;
                Self::Publish { message, id }
            }
            PacketType::PubAck => Self::Puback,
            PacketType::Subscribe => read_subscribe(header, whole, version)?,
            PacketType::Unsubscribe => {
                let id = body.try_get_u16().map_err(|_| PacketError)?;
                skip_properties(&mut body, version)?;
                Self::Unsubscribe {
                    id,
                    filters: read_strings(body)?,
                }
            }
            PacketType::PingReq => Self::Pingreq,
            PacketType::Disconnect => Self::Disconnect,
            _ => return Err(PacketError),
        };
        Ok(Some(packet))
    }
}

impl FromBroker {
    /// Takes the first packet out of `buffer`; `None`: it is not whole yet.
    pub(super) fn take(buffer: &mut BytesMut, version: Version) -> Result<Option<Self>, PacketError> {
        let Some(Frame {
            header,
            kind,
            whole,
            mut body,
        }) = Frame::take(buffer)?
        else {
            return Ok(None);
        };
        let packet = match kind {
            PacketType::ConnAck => {
                let code = *body.get(1).ok_or(PacketError)?;
                Self::Connack {
                    code,
                    retry_after_ms: read_retry_after(header, whole, version),
                }
            }
            PacketType::Publish => {
                let (message, id) = read_publish(header, whole, version)?;
                Self::Publish { message, id }
            }
            PacketType::PubAck => Self::Puback,
            PacketType::SubAck => {
                body.try_get_u16().map_err(|_| PacketError)?;
                skip_properties(&mut body, version)?;
                Self::Suback { codes: body.to_vec() }
            }
            PacketType::PingResp => Self::Pingresp,
            PacketType::Disconnect => Self::Disconnect,
            _ => return Err(PacketError),
        };
        Ok(Some(packet))
    }
}

/// CONNACK without Session Present. 5.0 always carries the length of its (no) properties.
pub(super) fn write_connack(code: u8, version: Version, out: &mut BytesMut) {
    match version {
        Version::V5 => out.extend_from_slice(&[0x20, 3, 0, code, 0]),
        Version::V3_1 | Version::V3_1_1 => out.extend_from_slice(&[0x20, 2, 0, code]),
    }
}

/// CONNACK of a 5.0 broker that took the client in: QoS 1 at most, nothing retained, no shared subscriptions, and the
/// identifier that it gave to a client without one.
pub(super) fn write_welcome_v5(assigned_id: Option<String>, out: &mut BytesMut) -> Result<(), PacketError> {
    let mut connack = v5::ConnAck::new(v5::ConnectReturnCode::Success, false);
    let mut properties = v5::ConnAckProperties::new();
    properties.max_qos = Some(1);
    properties.retain_available = Some(0);
    properties.subscription_identifiers_available = Some(0);
    properties.shared_subscription_available = Some(0);
    properties.assigned_client_identifier = assigned_id;
    connack.properties = Some(properties);
    connack.write(out).map(drop).map_err(|_| PacketError)
}

/// PUBLISH; `id` is 0 exactly for QoS 0.
pub(super) fn write_publish(
    message: &Message,
    id: u16,
    version: Version,
    out: &mut BytesMut,
) -> Result<(), PacketError> {
    let Message { topic, payload, qos } = message;
    let written = if version == Version::V5 {
        let mut publish = v5::Publish::from_bytes(topic, *qos, payload.clone());
        publish.pkid = id;
        publish.write(out)
    } else {
        let mut publish = v4::Publish::from_bytes(topic, *qos, payload.clone());
        publish.pkid = id;
        publish.write(out)
    };
    written.map(drop).map_err(|_| PacketError)
}

/// SUBSCRIBE to one filter.
pub(super) fn write_subscribe(
    id: u16,
    filter: &str,
    qos: QoS,
    version: Version,
    out: &mut BytesMut,
) -> Result<(), PacketError> {
    let written = if version == Version::V5 {
        let mut subscribe = v5::Subscribe::new(filter, qos);
        subscribe.pkid = id;
        subscribe.write(out)
    } else {
        let mut subscribe = v4::Subscribe::new(filter, qos);
        subscribe.pkid = id;
        subscribe.write(out)
    };
    written.map(drop).map_err(|_| PacketError)
}

/// PUBACK: success in every version.
pub(super) fn write_puback(id: u16, out: &mut BytesMut) {
    out.extend_from_slice(&[0x40, 2]);
    out.put_u16(id);
}

/// SUBACK, and UNSUBACK where it carries codes (5.0): one code for each filter asked for.
pub(super) fn write_codes(first: u8, id: u16, codes: &[u8], version: Version, out: &mut BytesMut) {
    let properties: &[u8] = if version == Version::V5 { &[0] } else { &[] };
    out.put_u8(first);
    write_length(2 + properties.len() + codes.len(), out);
    out.put_u16(id);
    out.extend_from_slice(properties);
    out.extend_from_slice(codes);
}

/// One packet cut out of the stream.
struct Frame {
    header: FixedHeader,
    kind: PacketType,
    whole: Bytes,
    body: Bytes,
}

impl Frame {
    fn take(buffer: &mut BytesMut) -> Result<Option<Self>, PacketError> {
        let header = match mqttbytes::check(buffer.iter(), MAX_PACKET) {
            Ok(header) => header,
            Err(mqttbytes::Error::InsufficientBytes(_)) => return Ok(None),
            Err(_) => return Err(PacketError),
        };
        let kind = header.packet_type().map_err(|_| PacketError)?;
        let whole = buffer.split_to(header.frame_length()).freeze();
        let mut body = whole.clone();
        body.advance(1);
        read_length(&mut body)?;
        Ok(Some(Self {
            header,
            kind,
            whole,
            body,
        }))
    }
}

fn read_publish(header: FixedHeader, whole: Bytes, version: Version) -> Result<(Message, u16), PacketError> {
    let (topic, payload, qos, id) = if version == Version::V5 {
        let publish = v5::Publish::read(header, whole).map_err(|_| PacketError)?;
        (publish.topic, publish.payload, publish.qos, publish.pkid)
    } else {
        let publish = v4::Publish::read(header, whole).map_err(|_| PacketError)?;
        (publish.topic, publish.payload, publish.qos, publish.pkid)
    };
    if qos == QoS::ExactlyOnce || topic.is_empty() || !mqttbytes::valid_topic(&topic) {
        return Err(PacketError);
    }
    Ok((Message { topic, payload, qos }, id))
}

fn read_subscribe(header: FixedHeader, whole: Bytes, version: Version) -> Result<FromClient, PacketError> {
    let (id, filters): (u16, Vec<_>) = if version == Version::V5 {
        let subscribe = v5::Subscribe::read(header, whole).map_err(|_| PacketError)?;
        (
            subscribe.pkid,
            subscribe
                .filters
                .into_iter()
                .map(|filter| (filter.path, filter.qos))
                .collect(),
        )
    } else {
        let subscribe = v4::Subscribe::read(header, whole).map_err(|_| PacketError)?;
        (
            subscribe.pkid,
            subscribe
                .filters
                .into_iter()
                .map(|filter| (filter.path, filter.qos))
                .collect(),
        )
    };
    Ok(FromClient::Subscribe { id, filters })
}

/// `retry-after-ms` of a 5.0 refusal (`docs/metrics.md` of the proxy names the property).
fn read_retry_after(header: FixedHeader, whole: Bytes, version: Version) -> Option<u64> {
    if version != Version::V5 {
        return None;
    }
    let properties = v5::ConnAck::read(header, whole).ok()?.properties?;
    let (_, value) = properties
        .user_properties
        .into_iter()
        .find(|(name, _)| name == "retry-after-ms")?;
    value.parse().ok()
}

/// UTF-8 strings up to the end. (`mqttbytes` prints on stderr while it reads an UNSUBSCRIBE of 5.0.)
fn read_strings(mut body: Bytes) -> Result<Vec<String>, PacketError> {
    let mut strings = Vec::new();
    while body.has_remaining() {
        let length = usize::from(body.try_get_u16().map_err(|_| PacketError)?);
        if length > body.len() {
            return Err(PacketError);
        }
        strings.push(String::from_utf8(body.split_to(length).to_vec()).map_err(|_| PacketError)?);
    }
    Ok(strings)
}

fn skip_properties(body: &mut Bytes, version: Version) -> Result<(), PacketError> {
    if version != Version::V5 {
        return Ok(());
    }
    let length = read_length(body)?;
    if length > body.len() {
        return Err(PacketError);
    }
    body.advance(length);
    Ok(())
}

/// Variable Byte Integer (MQTT 5.0 section 1.5.5).
fn read_length(body: &mut Bytes) -> Result<usize, PacketError> {
    let mut length = 0_usize;
    for shift in [0, 7, 14, 21] {
        let byte = body.try_get_u8().map_err(|_| PacketError)?;
        length |= usize::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Ok(length);
        }
    }
    Err(PacketError)
}

pub(super) fn write_length(mut length: usize, out: &mut BytesMut) {
    loop {
        let low = (length & 0x7F) as u8;
        length >>= 7;
        if length == 0 {
            out.put_u8(low);
            return;
        }
        out.put_u8(low | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(topic: &str, payload: &'static [u8], qos: QoS) -> Message {
        Message {
            topic: topic.to_owned(),
            payload: Bytes::from_static(payload),
            qos,
        }
    }

    #[test]
    fn packets_of_a_client_are_read() {
        let filters = |name: &str| vec![(name.to_owned(), QoS::AtLeastOnce)];
        let cases: [(&[u8], Version, FromClient); 9] = [
            (
                b"\x30\x06\x00\x03a/bx",
                Version::V3_1_1,
                FromClient::Publish {
                    message: message("a/b", b"x", QoS::AtMostOnce),
                    id: 0,
                },
            ),
            (
                b"\x32\x08\x00\x01a\x12\x34\x00xy",
                Version::V5,
                FromClient::Publish {
                    message: message("a", b"xy", QoS::AtLeastOnce),
                    id: 0x1234,
                },
            ),
            (
                b"\x82\x06\x00\x07\x00\x01#\x01",
                Version::V3_1,
                FromClient::Subscribe {
                    id: 7,
                    filters: filters("#"),
                },
            ),
            (
                b"\x82\x07\x00\x07\x00\x00\x01+\x01",
                Version::V5,
                FromClient::Subscribe {
                    id: 7,
                    filters: filters("+"),
                },
            ),
            (
                b"\xA2\x08\x00\x09\x00\x01a\x00\x01b",
                Version::V3_1_1,
                FromClient::Unsubscribe {
                    id: 9,
                    filters: vec!["a".into(), "b".into()],
                },
            ),
            (
                b"\xA2\x0D\x00\x09\x07\x26\x00\x01k\x00\x01v\x00\x01a",
                Version::V5,
                FromClient::Unsubscribe {
                    id: 9,
                    filters: vec!["a".into()],
                },
            ),
            (b"\xC0\x00", Version::V3_1, FromClient::Pingreq),
            (b"\xE0\x00", Version::V5, FromClient::Disconnect),
            (b"\xE0\x02\x04\x00", Version::V5, FromClient::Disconnect),
        ];
        for (bytes, version, expected) in cases {
            let mut buffer = BytesMut::from(bytes);
            buffer.extend_from_slice(&PINGREQ);
            assert_eq!(
                FromClient::take(&mut buffer, version),
                Ok(Some(expected)),
                "{bytes:02x?}"
            );
            assert_eq!(
                FromClient::take(&mut buffer, version),
                Ok(Some(FromClient::Pingreq))
            );
            assert_eq!(FromClient::take(&mut buffer, version), Ok(None));
            for cut in 0..bytes.len() {
                let mut part = BytesMut::from(&bytes[..cut]);
                assert_eq!(
                    FromClient::take(&mut part, version),
                    Ok(None),
                    "{bytes:02x?} cut at {cut}"
                );
            }
        }
    }

    #[test]
    fn what_is_not_spoken_here_is_an_error() {
        let cases: [(&[u8], Version); 6] = [
            (b"\x34\x05\x00\x01a\x00\x01", Version::V3_1_1), // QoS 2
            (b"\x30\x04\x00\x02a#", Version::V3_1_1),        // wildcard in a topic
            (b"\x30\x02\x00\x00", Version::V3_1_1),          // no topic
            (b"\xA2\x05\x00\x01\x00\x09a", Version::V3_1_1), // string past the end
            (b"\xA2\x04\x00\x01\x05a", Version::V5),         // properties past the end
            (b"\x10\xFF\xFF\xFF\x7F", Version::V3_1_1),      // larger than anything here
        ];
        for (bytes, version) in cases {
            let mut buffer = BytesMut::from(bytes);
            assert_eq!(
                FromClient::take(&mut buffer, version),
                Err(PacketError),
                "{bytes:02x?}"
            );
        }
    }

    #[test]
    fn packets_of_a_broker_are_read() {
        let cases: [(&[u8], Version, FromBroker); 5] = [
            (
                b"\x20\x02\x00\x03",
                Version::V3_1_1,
                FromBroker::Connack {
                    code: 3,
                    retry_after_ms: None,
                },
            ),
            (
                b"\x20\x03\x00\x89\x00",
                Version::V5,
                FromBroker::Connack {
                    code: 0x89,
                    retry_after_ms: None,
                },
            ),
            (
                b"\x20\x1A\x00\x89\x17\x26\x00\x0Eretry-after-ms\x00\x041500",
                Version::V5,
                FromBroker::Connack {
                    code: 0x89,
                    retry_after_ms: Some(1500),
                },
            ),
            (
                b"\x90\x03\x00\x01\x80",
                Version::V3_1_1,
                FromBroker::Suback { codes: vec![0x80] },
            ),
            (
                b"\x90\x04\x00\x01\x00\x01",
                Version::V5,
                FromBroker::Suback { codes: vec![1] },
            ),
        ];
        for (bytes, version, expected) in cases {
            let mut buffer = BytesMut::from(bytes);
            assert_eq!(
                FromBroker::take(&mut buffer, version),
                Ok(Some(expected)),
                "{bytes:02x?}"
            );
        }
    }

    #[test]
    fn packets_are_written_as_the_specifications_have_them() {
        let mut out = BytesMut::new();
        write_publish(
            &message("a", b"xy", QoS::AtLeastOnce),
            0x1234,
            Version::V5,
            &mut out,
        )
        .unwrap();
        write_publish(&message("a", b"xy", QoS::AtMostOnce), 0, Version::V3_1, &mut out).unwrap();
        write_subscribe(7, "#", QoS::AtLeastOnce, Version::V3_1_1, &mut out).unwrap();
        write_puback(0x0102, &mut out);
        write_codes(0x90, 7, &[1, 0x80], Version::V3_1_1, &mut out);
        write_codes(0x90, 7, &[1], Version::V5, &mut out);
        write_connack(3, Version::V3_1, &mut out);
        write_connack(0x89, Version::V5, &mut out);
        let expected: [&[u8]; 8] = [
            b"\x32\x08\x00\x01a\x12\x34\x00xy",
            b"\x30\x05\x00\x01axy",
            b"\x82\x06\x00\x07\x00\x01#\x01",
            b"\x40\x02\x01\x02",
            b"\x90\x04\x00\x07\x01\x80",
            b"\x90\x04\x00\x07\x00\x01",
            b"\x20\x02\x00\x03",
            b"\x20\x03\x00\x89\x00",
        ];
        assert_eq!(out, expected.concat());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_loop(bytes in proptest::collection::vec(any::<u8>(), 0..200), five in any::<bool>()) {
            let version = if five { Version::V5 } else { Version::V3_1_1 };
            let mut buffer = BytesMut::from(&bytes[..]);
            for _ in 0..=bytes.len() {
                if !matches!(FromClient::take(&mut buffer, version), Ok(Some(_))) {
                    return Ok(());
                }
            }
            prop_assert!(false, "more packets than bytes");
        }
    }
}
