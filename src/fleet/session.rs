//! The broker's side of a client that was let in: packets in, answers and deliveries out.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use mqttbytes::QoS;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::broker::{READ_ROOM, Shared};
use super::packet::{self, FromClient, Message, PacketError};
use super::topics::{Connection, MAX_OUTGOING};
use crate::mqtt::Version;
use crate::mqtt::connect::Connect;

/// A client that takes nothing for this long is closed.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);

/// A client that was let in.
pub(super) struct Session<'a> {
    shared: &'a Shared,
    connection: Connection,
    client_id: String,
    version: Version,
    deliveries: mpsc::Sender<Message>,
    /// Packet identifier of the last QoS 1 message to the client. Nothing is sent twice, so that nothing is remembered.
    last_id: u16,
}

impl<'a> Session<'a> {
    pub(super) async fn run(
        mut stream: TcpStream,
        incoming: BytesMut,
        connect: Connect,
        shared: &'a Shared,
    ) -> Result<(), SessionError> {
        let connection = Connection(shared.connections.fetch_add(1, Ordering::Relaxed));
        let assigned = connect
            .client_id
            .is_empty()
            .then(|| format!("assigned-{}", connection.0));
        let mut out = BytesMut::new();
        match connect.version {
            Version::V5 => packet::write_welcome_v5(assigned.clone(), &mut out)?,
            version => packet::write_connack(0, version, &mut out),
        }
        let (deliveries, received) = mpsc::channel(MAX_OUTGOING);
        let mut session = Self {
            shared,
            connection,
            client_id: assigned.unwrap_or(connect.client_id),
            version: connect.version,
            deliveries,
            last_id: 0,
        };
        session
            .converse(&mut stream, incoming, out, received, connect.keep_alive)
            .await
    }

    async fn converse(
        &mut self,
        stream: &mut TcpStream,
        mut incoming: BytesMut,
        mut out: BytesMut,
        mut received: mpsc::Receiver<Message>,
        keep_alive: u16,
    ) -> Result<(), SessionError> {
        let replaced = self.shared.topics.enter(&self.client_id, self.connection);
        let silence = (keep_alive > 0).then(|| Duration::from_secs(u64::from(keep_alive)).mul_f64(1.5));
        let mut heard = Instant::now();
        loop {
            let mut goes_on = true;
            while goes_on && let Some(packet) = FromClient::take(&mut incoming, self.version)? {
                goes_on = self.handle(packet, &mut out);
            }
            if !out.is_empty() {
                timeout(WRITE_DEADLINE, stream.write_all(&out))
                    .await
                    .map_err(|_| SessionError::Deadline)??;
                out.clear();
            }
            if !goes_on {
                return Ok(());
            }
            incoming.reserve(READ_ROOM);
            tokio::select! {
                read = stream.read_buf(&mut incoming) => match read? {
                    0 => return Ok(()),
                    _ => heard = Instant::now(),
                },
                Some(message) = received.recv() => self.deliver(&message, &mut out)?,
                () = replaced.cancelled() => return Ok(()),
                () = sleep_until(heard + silence.unwrap_or_default()), if silence.is_some() => {
                    return Err(SessionError::Deadline);
                }
            }
        }
    }

    /// Whether the session goes on.
    fn handle(&mut self, packet: FromClient, out: &mut BytesMut) -> bool {
        match packet {
            FromClient::Publish { message, id } => {
                self.shared.published.fetch_add(1, Ordering::Relaxed);
                let dropped = self.shared.topics.publish(&message);
                self.shared.dropped.fetch_add(dropped, Ordering::Relaxed);
                if message.qos == QoS::AtLeastOnce {
                    packet::write_puback(id, out);
                }
            }
            FromClient::Subscribe { id, filters } => {
                let codes: Vec<u8> = filters
                    .iter()
                    .map(|(filter, qos)| self.subscribe(filter, *qos))
                    .collect();
                packet::write_codes(0x90, id, &codes, self.version, out);
            }
            FromClient::Unsubscribe { id, filters } => {
                let codes = filters.iter().map(|filter| {
                    // 0x11: no subscription existed (MQTT 5.0 section 3.11.3).
                    if self.shared.topics.unsubscribe(self.connection, filter) {
                        0
                    } else {
                        0x11
                    }
                });
                let codes: Vec<u8> = codes.collect();
                let told: &[u8] = if self.version == Version::V5 { &codes } else { &[] };
                packet::write_codes(0xB0, id, told, self.version, out);
            }
            FromClient::Pingreq => out.extend_from_slice(&packet::PINGRESP),
            FromClient::Puback => {}
            FromClient::Disconnect => return false,
        }
        true
    }

    /// The code for SUBACK: the QoS granted or 0x80, which every version knows as a failure.
    fn subscribe(&self, filter: &str, qos: QoS) -> u8 {
        self.shared
            .topics
            .subscribe(self.connection, filter, qos, &self.deliveries)
            .map_or(0x80, |granted| granted as u8)
    }

    fn deliver(&mut self, message: &Message, out: &mut BytesMut) -> Result<(), PacketError> {
        let id = if message.qos == QoS::AtMostOnce {
            0
        } else {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            self.last_id
        };
        packet::write_publish(message, id, self.version, out)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.shared.topics.leave(&self.client_id, self.connection);
    }
}

/// The client's, all of them.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Packet(#[from] PacketError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("took or said nothing for too long")]
    Deadline,
}
