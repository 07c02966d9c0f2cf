//! HAProxy, which wrote the PROXY protocol: as the balancer in front, or in the broker's place behind.

use super::Scene;
use super::process::Process;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::path::Path;
use std::process::Command;

/// A running HAProxy with one TCP proxy.
pub struct Haproxy {
    process: Process,
    address: SocketAddr,
}

/// Port clashes are rare; a few tries are enough.
const TRIES: usize = 5;

impl Haproxy {
    /// Listens with these words behind its `bind` and hands on to `server` with these words behind it. Of each connection
    /// it says from whom it came, by `accept-proxy` where there is that.
    pub fn start(scene: &Scene, bind: &str, server: SocketAddr, words: &str) -> Self {
        for _ in 0..TRIES {
            let port = TcpListener::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
                .port();
            let text = format!(
                "global\n log stdout format raw local0\n\
                 defaults\n mode tcp\n timeout connect 5s\n timeout check 5s\n timeout client 60s\n timeout server 60s\n\
                 frontend front\n bind 127.0.0.1:{port} {bind}\n log global\n option logasap\n\
                 log-format \"from %ci:%cp authority %[fc_pp_authority]\"\n default_backend back\n\
                 backend back\n server next {server} {words}\n"
            );
            let file = scene.write(&format!("haproxy-{port}.cfg"), &text);
            let process = Process::start("haproxy", Command::new(program()).arg("-db").arg("-f").arg(file));
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            let from = std::time::Instant::now();
            let mut haproxy = Self { process, address };
            while haproxy.process.ended().is_none() && from.elapsed() < super::PATIENCE {
                // With accept-proxy it drops this one at its end, without a line.
                if TcpStream::connect(address).is_ok() {
                    return haproxy;
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            eprintln!("haproxy: {}", haproxy.process.stderr());
        }
        panic!("haproxy does not start in {TRIES} tries");
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Deref for Haproxy {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

/// Debian puts it where the path of an ordinary user does not look.
fn program() -> &'static str {
    if Path::new("/usr/sbin/haproxy").exists() {
        "/usr/sbin/haproxy"
    } else {
        "haproxy"
    }
}
