//! From the end of the handshake to a whole CONNECT.

use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout_at};

use super::{Client, Settings};
use crate::mqtt::connect::{self, Connect, ConnectError, Progress};

/// Room for one read: most CONNECTs fit. It grows with what has arrived, never with what is declared, so that a packet
/// which declares much and sends little costs little.
const READ_STEP: usize = 1024;

/// Why there is no CONNECT.
pub(super) enum NoConnect {
    /// What came is none.
    Invalid(ConnectError),
    /// It was not whole in time.
    TimedOut,
    /// The client left.
    Left,
}

/// Reads up to the end of the CONNECT. What the client sent behind it stays behind it in the bytes.
pub(super) async fn connect(
    client: &mut Client,
    settings: &Settings,
) -> Result<(Box<Connect>, Vec<u8>), NoConnect> {
    let deadline = Instant::now() + settings.connect_timeout;
    let mut bytes = Vec::new();
    let mut wanted = 0;
    loop {
        bytes.reserve(READ_STEP.min(settings.connect_max_size));
        match timeout_at(deadline, client.read_buf(&mut bytes)).await {
            Err(_) => return Err(NoConnect::TimedOut),
            Ok(Ok(0) | Err(_)) => return Err(NoConnect::Left),
            Ok(Ok(_)) if bytes.len() < wanted => {}
            Ok(Ok(_)) => match connect::read(&bytes, settings.connect_max_size) {
                Ok(Progress::Need(more)) => wanted = more,
                Ok(Progress::Complete(connect, _)) => return Ok((connect, bytes)),
                Err(error) => return Err(NoConnect::Invalid(error)),
            },
        }
    }
}
