//! What both legs of a connection have in common as TCP sockets.

mod downstream;

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

pub use downstream::Downstream;

/// Dead peers are noticed by TCP after this much silence, whatever the MQTT keep-alive says: below the 5 minutes
/// after which many carriers' NATs forget a flow.
const KEEPALIVE_TIME: Duration = Duration::from_secs(120);
/// Between two unanswered probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// Unanswered probes until the peer is given up.
const KEEPALIVE_RETRIES: u32 = 4;
/// Data that stays unacknowledged for this long ends the connection (RFC 5482): Linux's default, some 15 minutes of
/// retransmissions, would pin a dead device's broker session for longer than any MQTT keep-alive.
const USER_TIMEOUT: Duration = Duration::from_secs(60);

/// Unsent bytes that the kernel keeps for a client beyond what the client's window takes.
const UNSENT: u32 = 4 * 1024;

/// Bounds what the kernel keeps for a client. Left alone it keeps megabytes, and tells of room only once a third of that
/// is free: a client that reads 100 kB/s would seem stuck for 9 s. With this the kernel tells as soon as less than half of
/// it is unsent. It still gathers up to half a window of the client's in one buffer, so what must go out to be seen is
/// about that window: at the default `relay.write_timeout` 300 B/s of a client with 8 KiB, where 32 KiB here let 1 kB/s
/// pass for stuck. A flood to a fast reader over loopback takes the same CPU a megabyte with either (0.9 to 1.1 ms).
/// Not for the brokers' legs: a broker reads fast or not at all, and a flood towards it would cost a tenth more.
pub fn bound_unsent(socket: &SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_notsent_lowat(UNSENT)
}

/// Sets what every leg of ours has: no Nagle delay, keep-alive probes, a bound on unacknowledged data.
pub fn condition(socket: &SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_TIME)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))
}

/// Whether the peer has closed or reset its side, asked of the kernel and not of the runtime's cached readiness: in a
/// storm that cache is late by just the events that matter. A half-closed peer counts as gone: it waits for nothing.
pub fn is_gone(socket: &TcpStream) -> bool {
    let mut watched = [PollFd::new(socket, PollFlags::RDHUP)];
    match poll(
        &mut watched,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    ) {
        Ok(0) | Err(_) => false,
        Ok(_) => true,
    }
}

/// Holds back a segment that is not full until the FIN that is about to follow, which then goes with it (`tcp(7)`,
/// `TCP_CORK`). Without a FIN the kernel sends it after 200 ms.
fn cork(socket: &TcpStream) {
    // A socket that can't be told so sends two segments.
    let _ = SockRef::from(socket).set_tcp_cork(true);
}

/// Makes the coming close a reset: the cheapest end for both sides, no TIME_WAIT, no lingering buffers.
pub fn reset(socket: &TcpStream) {
    // A socket that can't be told so is closed the ordinary way.
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (client, server) = tokio::join!(
            TcpStream::connect(listener.local_addr().unwrap()),
            listener.accept()
        );
        (client.unwrap(), server.unwrap().0)
    }

    #[tokio::test]
    async fn a_peer_that_is_there_is_not_gone_even_with_unread_bytes() {
        let (mut client, server) = pair().await;
        assert!(!is_gone(&server));
        client.write_all(b"unread").await.unwrap();
        server.readable().await.unwrap();
        assert!(!is_gone(&server));
    }

    #[tokio::test]
    async fn a_fin_or_a_reset_behind_unread_bytes_is_seen() {
        for abrupt in [false, true] {
            let (mut client, server) = pair().await;
            client.write_all(b"unread").await.unwrap();
            server.readable().await.unwrap();
            if abrupt {
                reset(&client);
            }
            drop(client);
            // Loopback delivers before close(2) returns.
            assert!(is_gone(&server), "abrupt: {abrupt}");
        }
    }
}
