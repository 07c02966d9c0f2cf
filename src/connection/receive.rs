//! From the end of the handshake to a whole CONNECT.

use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout_at};

use super::{Client, Settings};
use crate::mqtt::connect::{self, Connect, ConnectError, Progress};

/// Room for one read: most CONNECTs fit. It grows with what has arrived, never with what is declared, so that a packet
/// which declares much and sends little costs little.
const READ_STEP: usize = 1024;

/// How long a CONNECT that declares more than it may still gets to show its protocol level, by which it is answered. It is
/// refused whatever comes, and the level stands within its first 14 bytes, which nearly always arrive together.
const LAST_BYTES: Duration = Duration::from_secs(1);

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
    let mut deadline = Instant::now() + settings.connect_timeout;
    let mut too_large = false;
    let mut bytes = Vec::new();
    let mut wanted = 0;
    loop {
        bytes.reserve(READ_STEP.min(settings.connect_max_size));
        match timeout_at(deadline, client.read_buf(&mut bytes)).await {
            Err(_) if too_large => {
                return Err(NoConnect::Invalid(ConnectError::TooLarge { version: None }));
            }
            Err(_) => return Err(NoConnect::TimedOut),
            Ok(Ok(0) | Err(_)) => return Err(NoConnect::Left),
            Ok(Ok(_)) if bytes.len() < wanted => {}
            Ok(Ok(_)) => match connect::read(&bytes, settings.connect_max_size) {
                Ok(Progress::Need(more)) => {
                    wanted = more;
                    if !too_large && connect::declares_more_than(settings.connect_max_size, &bytes) {
                        too_large = true;
                        deadline = deadline.min(Instant::now() + LAST_BYTES);
                    }
                }
                Ok(Progress::Complete(connect, _)) => return Ok((connect, bytes)),
                Err(error) => return Err(NoConnect::Invalid(error)),
            },
        }
    }
}
