//! The downstream leg as a session that is up wants it.

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::cork;

/// A TLS session with a client, with two differences to the library's. Its last bytes wait for its FIN: what is in the
/// session's buffer, `close_notify` and FIN leave in one segment, and a segment costs both machines as much as all else
/// that the end of a session takes. And its flush tells of a part that went out, where the library's is silent until all has.
pub struct Downstream<'a>(pub &'a mut TlsStream<TcpStream>);

/// What a socket takes at once, as the session wants it: it wakes the task when there is room again.
struct Now<'a, 'cx> {
    socket: &'a mut TcpStream,
    cx: &'a mut Context<'cx>,
}

impl Now<'_, '_> {
    fn taken(written: Poll<io::Result<usize>>) -> io::Result<usize> {
        match written {
            Poll::Ready(taken) => taken,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl Write for Now<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::taken(Pin::new(&mut *self.socket).poll_write(self.cx, bytes))
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        Self::taken(Pin::new(&mut *self.socket).poll_write_vectored(self.cx, pieces))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for Downstream<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Downstream<'_> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, bytes)
    }

    /// Fails as interrupted where a part of it went out and the rest has to wait: to be asked again, and the one sign of
    /// life that a peer gives which takes less than a record at a time.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (socket, session) = self.0.get_mut();
        let mut some = false;
        while session.wants_write() {
            match session.write_tls(&mut Now { socket, cx }) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => some = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && some => {
                    return Poll::Ready(Err(io::ErrorKind::Interrupted.into()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        cork(self.0.get_ref().0);
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}
