//! The real store of a shared budget.

use super::Scene;
use super::process::Process;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;

/// Port clashes are rare; a few tries are enough.
const TRIES: usize = 5;

/// A running Redis, empty.
pub struct Redis {
    process: Process,
    address: SocketAddr,
}

impl Redis {
    /// On a port that is free.
    pub fn start(scene: &Scene, arguments: &[&str]) -> Self {
        for _ in 0..TRIES {
            let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            if let Some(redis) = Self::try_at(scene, free, arguments) {
                return redis;
            }
        }
        panic!("redis-server found no port in {TRIES} tries");
    }

    /// On the port of one that has ended, empty again.
    pub fn again(scene: &Scene, address: SocketAddr) -> Self {
        Self::try_at(scene, address, &[]).expect("redis-server on the port that it had")
    }

    fn try_at(scene: &Scene, address: SocketAddr, arguments: &[&str]) -> Option<Self> {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"]);
        command.arg(folder(scene));
        if arguments.contains(&"--tls-port") {
            command.args(["--port", "0", "--tls-port", &address.port().to_string()]);
        } else {
            command.args(["--port", &address.port().to_string()]);
        }
        command.args(arguments.iter().filter(|argument| **argument != "--tls-port"));
        let mut process = Process::start("redis-server", &mut command);
        let ready = process.wait_until("connections", |process| {
            let ready = process.stdout().contains("Ready to accept connections");
            (ready && TcpStream::connect(address).is_ok()).then_some(())
        });
        ready.is_ok().then_some(Self { process, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn folder(scene: &Scene) -> PathBuf {
    scene.path("ca.pem").parent().unwrap().to_owned()
}

impl Deref for Redis {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}
