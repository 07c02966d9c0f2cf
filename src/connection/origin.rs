//! From an accepted socket to whom it speaks for, where a balancer stands in front.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout_at};

use crate::proxy_header::{Header, Progress, Refused, Settings};

/// A header is read in steps of at most this: most headers and the ClientHello behind them fit into one.
const READ_STEP: usize = 2048;

/// Why it is not known.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoOrigin {
    /// It may not, or must, begin with a header.
    Refused(Refused),
    /// It was not clear in time.
    TimedOut,
    /// The peer left.
    Left,
}

/// Reads the header where one is expected. Returns it, and what was read of the client behind it.
pub(super) async fn read(
    socket: &mut (impl AsyncRead + Unpin),
    peer: SocketAddr,
    settings: &Settings,
    deadline: Instant,
) -> Result<(Option<Header>, Vec<u8>), NoOrigin> {
    let mut bytes = Vec::new();
    loop {
        match settings.read(peer, &bytes).map_err(NoOrigin::Refused)? {
            Progress::Need(_) => {}
            Progress::Absent => return Ok((None, bytes)),
            Progress::Complete(header, length) => {
                bytes.drain(..length.min(bytes.len()));
                return Ok((Some(header), bytes));
            }
        }
        bytes.reserve(READ_STEP);
        match timeout_at(deadline, socket.read_buf(&mut bytes)).await {
            Err(_) => return Err(NoOrigin::TimedOut),
            Ok(Ok(0) | Err(_)) => return Err(NoOrigin::Left),
            Ok(Ok(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::proxy_header::{HeaderError, Mode, Route};

    const HELLO: &[u8] = &[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 3];

    const HEADER: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 8883\r\n";

    fn settings(mode: Mode) -> Settings {
        let trusted = vec!["10.0.0.0/8".parse().unwrap()];
        Settings { mode, trusted }
    }

    /// What is read, and what is left in the socket then, of a peer that sends `pieces` and closes.
    async fn reading(
        mode: Mode,
        peer: &str,
        pieces: Vec<Vec<u8>>,
    ) -> (Result<(Option<Header>, Vec<u8>), NoOrigin>, Vec<u8>) {
        let (mut sender, mut socket) = tokio::io::duplex(1);
        let sending = async move {
            for piece in pieces {
                // Who is refused is not read to the end.
                if sender.write_all(&piece).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        let receiving = async move {
            let read = read(&mut socket, peer.parse().unwrap(), &settings(mode), deadline).await;
            let mut rest = Vec::new();
            if read.is_ok() {
                socket.read_to_end(&mut rest).await.unwrap();
            }
            (read, rest)
        };
        tokio::join!(sending, receiving).1
    }

    #[tokio::test]
    async fn what_is_behind_the_header_is_the_clients_byte_for_byte() {
        let stream = [HEADER, HELLO].concat();
        let route = Route::new(
            "192.0.2.7:4711".parse().unwrap(),
            "198.51.100.1:8883".parse().unwrap(),
        );
        for split in 0..=stream.len() {
            let (front, back) = stream.split_at(split);
            for mode in [Mode::Optional, Mode::Required] {
                let (read, rest) = reading(mode, "10.0.0.1:50000", vec![front.into(), back.into()]).await;
                let (header, begun) = read.unwrap();
                assert_eq!(header, Some(Header::Proxied(route)));
                assert_eq!([begun, rest].concat(), HELLO, "split at {split}");
            }
        }
    }

    #[tokio::test]
    async fn a_direct_client_loses_nothing() {
        for (mode, peer) in [
            (Mode::Off, "10.0.0.1:50000"),
            (Mode::Optional, "10.0.0.1:50000"),
            (Mode::Optional, "192.0.2.99:50000"),
        ] {
            let (read, rest) = reading(mode, peer, vec![HELLO.into()]).await;
            let (header, begun) = read.unwrap();
            assert_eq!(header, None);
            assert_eq!([begun, rest].concat(), HELLO, "{mode:?} {peer}");
        }
    }

    #[tokio::test]
    async fn refusals_do_not_wait_for_more() {
        for (mode, peer, bytes, refused) in [
            (Mode::Required, "192.0.2.99:50000", &b""[..], Refused::Untrusted),
            (Mode::Required, "10.0.0.1:50000", HELLO, Refused::Missing),
            (Mode::Optional, "192.0.2.99:50000", b"PROXY ", Refused::Untrusted),
            (
                Mode::Optional,
                "10.0.0.1:50000",
                b"PROXY TCP4\r\n",
                Refused::Unreadable(HeaderError::Line),
            ),
        ] {
            let (mut sender, mut socket) = tokio::io::duplex(64);
            sender.write_all(bytes).await.unwrap();
            let deadline = Instant::now() + Duration::from_secs(60);
            let read = read(&mut socket, peer.parse().unwrap(), &settings(mode), deadline).await;
            assert_eq!(read, Err(NoOrigin::Refused(refused)), "{mode:?} {peer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_is_waited_for_until_the_deadline() {
        for begun in [&b""[..], b"PROXY TCP4 192.0"] {
            let (mut sender, mut socket) = tokio::io::duplex(64);
            sender.write_all(begun).await.unwrap();
            let from = Instant::now();
            let deadline = from + Duration::from_secs(15);
            let peer = "10.0.0.1:50000".parse().unwrap();
            let read = read(&mut socket, peer, &settings(Mode::Required), deadline).await;
            assert_eq!(read, Err(NoOrigin::TimedOut));
            assert_eq!(Instant::now(), deadline);
        }
    }

    #[tokio::test]
    async fn a_peer_that_closes_has_left() {
        for begun in [&b""[..], b"P", b"\r\n\r\n\0\r\nQUIT\n\x21\x11"] {
            let (read, _) = reading(Mode::Required, "10.0.0.1:50000", vec![begun.into()]).await;
            assert_eq!(read, Err(NoOrigin::Left));
        }
    }
}
