//! A broker of raw bytes: each accepted connection is handed to a script, and every byte of it is recorded.

use super::device::read_packet;
use super::{PATIENCE, eventually, within};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A scripted broker.
pub struct Stub {
    address: SocketAddr,
    visits: Arc<Mutex<Vec<Arc<Visit>>>>,
    accepting: JoinHandle<()>,
}

/// What is known of one connection.
#[derive(Default)]
pub struct Visit {
    received: Mutex<Vec<u8>>,
    end: Mutex<Option<(VisitEnd, Instant)>>,
}

/// How the proxy ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisitEnd {
    Fin,
    Reset,
}

/// One connection, in the hands of a script.
pub struct Link {
    stream: TcpStream,
    visit: Arc<Visit>,
}

impl Stub {
    /// Runs `script` for every connection.
    pub async fn start<S, F>(script: S) -> Self
    where
        S: Fn(Link) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), script).await
    }

    /// The same at an address of the scenario's choice.
    pub async fn start_at<S, F>(address: SocketAddr, script: S) -> Self
    where
        S: Fn(Link) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let visits = Arc::new(Mutex::new(Vec::new()));
        let known = Arc::clone(&visits);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                let visit = Arc::new(Visit::default());
                known.lock().unwrap().push(Arc::clone(&visit));
                tokio::spawn(script(Link { stream, visit }));
            }
        });
        Self {
            address,
            visits,
            accepting,
        }
    }

    /// Accepts every CONNECT, and then only listens.
    pub async fn content() -> Self {
        Self::start(|mut link| async move {
            link.accept().await;
            link.listen().await;
        })
        .await
    }

    /// Reads and never says a word.
    pub async fn mute() -> Self {
        Self::start(|mut link| async move { link.listen().await }).await
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections came.
    pub fn visits(&self) -> usize {
        self.visits.lock().unwrap().len()
    }

    /// The connection that came as the `index`th, from 0.
    pub async fn visit(&self, index: usize) -> Arc<Visit> {
        eventually("the proxy dials", || self.visits() > index).await;
        Arc::clone(&self.visits.lock().unwrap()[index])
    }
}

impl Stub {
    /// Its port is free when it returns.
    pub async fn stop(mut self) {
        self.accepting.abort();
        let _ = (&mut self.accepting).await;
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Visit {
    /// All bytes so far.
    pub fn received(&self) -> Vec<u8> {
        self.received.lock().unwrap().clone()
    }

    /// Waits until that many bytes have come.
    pub async fn received_at_least(&self, count: usize) -> Vec<u8> {
        eventually("bytes at the broker", || {
            self.received.lock().unwrap().len() >= count
        })
        .await;
        self.received()
    }

    /// Waits for the end.
    pub async fn end(&self) -> VisitEnd {
        eventually("the end of the broker's side", || {
            self.end.lock().unwrap().is_some()
        })
        .await;
        self.end.lock().unwrap().unwrap().0
    }

    pub fn is_open(&self) -> bool {
        self.end.lock().unwrap().is_none()
    }
}

impl Link {
    /// Where the connection comes from.
    pub fn peer(&self) -> SocketAddr {
        self.stream.peer_addr().unwrap()
    }

    /// The next packet; `None` at the end.
    pub async fn packet(&mut self) -> Option<Vec<u8>> {
        match read_packet(&mut self.stream).await {
            Ok(packet) => {
                self.visit.received.lock().unwrap().extend(&packet);
                Some(packet)
            }
            Err(error) => {
                self.ended(&error);
                None
            }
        }
    }

    /// Takes the CONNECT and answers in its version that all is well.
    pub async fn accept(&mut self) -> Option<Vec<u8>> {
        let connect = self.packet().await?;
        self.send(&super::packet::accepted(level(&connect))).await;
        Some(connect)
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        // The proxy may be gone; the scenario looks at what was recorded.
        let _ = self.stream.write_all(bytes).await;
    }

    /// Records until the end.
    pub async fn listen(&mut self) {
        while self.piece().await.is_some() {}
    }

    /// Sends back what comes, until the end, then FIN.
    pub async fn echo(&mut self) {
        while let Some(piece) = self.piece().await {
            self.send(&piece).await;
        }
    }

    /// Whatever comes next.
    pub async fn piece(&mut self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 64 * 1024];
        match self.stream.read(&mut buffer).await {
            Ok(0) => {
                self.ended(&std::io::ErrorKind::UnexpectedEof.into());
                None
            }
            Ok(count) => {
                buffer.truncate(count);
                self.visit.received.lock().unwrap().extend(&buffer);
                Some(buffer)
            }
            Err(error) => {
                self.ended(&error);
                None
            }
        }
    }

    /// Sends `bytes` in random pieces of up to `most`, and records what comes meanwhile and then until the end.
    pub async fn exchange(&mut self, bytes: &[u8], most: usize) {
        let (mut reading, mut writing) = self.stream.split();
        let visit = &self.visit;
        let sending = async {
            let mut rest = bytes;
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(fastrand::usize(1..=most).min(rest.len()));
                writing.write_all(piece).await.unwrap();
                rest = after;
            }
        };
        let listening = async {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(count @ 1..) = reading.read(&mut buffer).await {
                visit.received.lock().unwrap().extend(&buffer[..count]);
            }
        };
        tokio::join!(sending, listening);
        self.ended(&std::io::ErrorKind::UnexpectedEof.into());
    }

    /// Sends `bytes` as fast as they are taken, and records what comes meanwhile and then until the end; done when that
    /// comes.
    pub async fn exchange_until_cut(&mut self, bytes: &[u8]) {
        let (mut reading, mut writing) = self.stream.split();
        let visit = &self.visit;
        let sending = async {
            let _ = writing.write_all(bytes).await;
            std::future::pending::<()>().await;
        };
        let listening = async {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(count @ 1..) = reading.read(&mut buffer).await {
                visit.received.lock().unwrap().extend(&buffer[..count]);
            }
        };
        tokio::select! {
            () = sending => {}
            () = listening => {}
        }
        self.ended(&std::io::ErrorKind::UnexpectedEof.into());
    }

    /// Sends up to `count` bytes as fast as they are taken, until they are taken no more.
    pub async fn pour(&mut self, count: usize) {
        let piece = vec![0; 64 * 1024];
        for _ in 0..count / piece.len() {
            if let Err(error) = self.stream.write_all(&piece).await {
                self.ended(&error);
                return;
            }
        }
        self.listen().await;
    }

    /// RST.
    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    /// Keeps the socket for a while without looking at it.
    pub async fn hold(self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn ended(&self, error: &std::io::Error) {
        let end = if error.kind() == std::io::ErrorKind::UnexpectedEof {
            VisitEnd::Fin
        } else {
            VisitEnd::Reset
        };
        self.visit
            .end
            .lock()
            .unwrap()
            .get_or_insert((end, Instant::now()));
    }
}

/// The protocol level of a CONNECT.
pub fn level(connect: &[u8]) -> u8 {
    let header = 1 + connect[1..].iter().take_while(|byte| **byte & 0x80 != 0).count() + 1;
    let name = usize::from(u16::from_be_bytes([connect[header], connect[header + 1]]));
    connect[header + 2 + name]
}

/// An address at which nobody listens.
pub async fn nobody() -> SocketAddr {
    let listener = within(PATIENCE, "a port", TcpListener::bind("127.0.0.1:0"))
        .await
        .unwrap();
    listener.local_addr().unwrap()
}
