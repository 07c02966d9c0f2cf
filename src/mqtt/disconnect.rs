//! DISCONNECT: encode the one of a server to its client (5.0), and that of a client to its broker.

use super::properties::{id, property};
use super::wire::VariableByteInteger;

/// A client's DISCONNECT, of any version: reason 0x00 in 5.0. The broker discards the Will ([MQTT-3.14.4-3] of 3.1.1 and of 5.0).
pub const OF_CLIENT: [u8; 2] = [DISCONNECT, 0];

/// Why a 5.0 server ends a connection (5.0 section 3.14.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It goes down.
    ServerShuttingDown,
    /// The connection has lasted long enough.
    MaximumConnectTime,
}

/// The bytes of a DISCONNECT to a client of 5.0. With `server_reference`: "use another server", unless the packet would
/// be larger than the client's `maximum_packet_size` in bytes ([MQTT-3.1.2-24]) or the reference is too long for the wire.
/// `None`: not even the bare packet fits.
pub fn of_server(
    reason: Reason,
    server_reference: Option<&str>,
    maximum_packet_size: Option<u32>,
) -> Option<Vec<u8>> {
    let fits = |packet: &Vec<u8>| {
        maximum_packet_size.is_none_or(|most| u32::try_from(packet.len()).is_ok_and(|length| length <= most))
    };
    let elsewhere = server_reference
        .and_then(|reference| property(id::SERVER_REFERENCE, &[reference]))
        .map(|property| packet(USE_ANOTHER_SERVER, &property));
    let code = match reason {
        Reason::ServerShuttingDown => SERVER_SHUTTING_DOWN,
        Reason::MaximumConnectTime => MAXIMUM_CONNECT_TIME,
    };
    elsewhere
        .into_iter()
        .chain([packet(code, &[])])
        .find(|packet| fits(packet))
}

/// First byte of a DISCONNECT: type 14, flags 0.
const DISCONNECT: u8 = 0xe0;

/// Reason codes of 5.0 (section 3.14.2.1).
const SERVER_SHUTTING_DOWN: u8 = 0x8b;
const USE_ANOTHER_SERVER: u8 = 0x9c;
const MAXIMUM_CONNECT_TIME: u8 = 0xa0;

fn packet(code: u8, properties: &[u8]) -> Vec<u8> {
    let mut body = vec![code];
    VariableByteInteger::write(&mut body, properties.len());
    body.extend(properties);
    let mut packet = vec![DISCONNECT];
    VariableByteInteger::write(&mut packet, body.len());
    packet.extend(body);
    packet
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;

    const SHUTTING_DOWN: [u8; 4] = [0xe0, 2, 0x8b, 0];

    #[test]
    fn bare() {
        assert_eq!(
            of_server(Reason::ServerShuttingDown, None, None),
            Some(SHUTTING_DOWN.to_vec())
        );
        assert_eq!(
            of_server(Reason::MaximumConnectTime, None, None),
            Some(vec![0xe0, 2, 0xa0, 0])
        );
    }

    #[test]
    fn elsewhere_where_that_fits() {
        let elsewhere = [&[0xe0, 11, 0x9c, 9, 0x1c, 0, 6][..], b"b:8883"].concat();
        for (most, sent) in [
            (None, Some(elsewhere.clone())),
            (Some(13), Some(elsewhere.clone())),
            (Some(12), Some(SHUTTING_DOWN.to_vec())),
            (Some(4), Some(SHUTTING_DOWN.to_vec())),
            (Some(3), None),
        ] {
            let packet = of_server(Reason::ServerShuttingDown, Some("b:8883"), most);
            assert_eq!(packet, sent, "at most {most:?}");
        }
        let aged = of_server(Reason::MaximumConnectTime, Some("b:8883"), None);
        assert_eq!(aged, Some(elsewhere), "for whatever reason");
    }

    #[test]
    fn a_reference_that_the_wire_does_not_take_is_left_out() {
        for (length, fits) in [(65_535, true), (65_536, false)] {
            let packet = of_server(Reason::ServerShuttingDown, Some(&"b".repeat(length)), None).unwrap();
            assert_eq!(packet.len() > 4, fits, "{length}");
        }
    }

    /// By the ear of another implementation.
    #[test]
    fn a_codec_reads_what_is_written() {
        use mqttbytes::v5::{DisconnectReasonCode, Packet};
        for (reference, code) in [
            (None, DisconnectReasonCode::ServerShuttingDown),
            (Some("b".repeat(300)), DisconnectReasonCode::UseAnotherServer),
        ] {
            let written = of_server(Reason::ServerShuttingDown, reference.as_deref(), None).unwrap();
            let mut stream = BytesMut::from(&written[..]);
            let Ok(Packet::Disconnect(read)) = mqttbytes::v5::read(&mut stream, 1000) else {
                panic!("{written:02x?}");
            };
            assert_eq!((read.reason_code, stream.len()), (code, 0));
            assert_eq!(read.properties.and_then(|all| all.server_reference), reference);
        }
    }
}
