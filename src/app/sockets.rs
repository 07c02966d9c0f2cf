//! The listening sockets: handed over by the service manager or by the process before this one, or bound.

use std::io;
use std::net::{SocketAddr, TcpListener as Handed};
use std::os::fd::{AsFd, OwnedFd};

use listenfd::ListenFd;
use tokio::net::TcpListener;

use super::StartError;
use crate::admin;
use crate::config::Config;
use crate::listener;

/// Those that the service manager has opened (`sd_listen_fds(3)`). To be called once, before there are threads.
pub fn activated() -> io::Result<Vec<Handed>> {
    let mut all = ListenFd::from_env();
    (0..all.len())
        .filter_map(|index| all.take_tcp_listener(index).transpose())
        .collect()
}

/// Everything that is listened on.
pub(super) struct Sockets {
    pub(super) clients: Vec<TcpListener>,
    pub(super) admin: Handed,
}

impl Sockets {
    /// One of `handed` serves each address that it has; the others are bound. Where the service manager has `activated` us
    /// its sockets count and `listen.addresses` does not.
    pub(super) fn open(
        config: &Config,
        mut handed: Vec<Handed>,
        activated: bool,
    ) -> Result<Self, StartError> {
        let admin = match take(&mut handed, config.admin.address) {
            Some(listener) => listener,
            None => admin::listen(&config.admin)?,
        };
        let backlog = config.listen.backlog;
        let clients = if activated && !handed.is_empty() {
            handed
                .into_iter()
                .map(|listener| listener::adopt(listener, backlog))
                .collect::<Result<_, _>>()?
        } else {
            let addresses = config.listen.addresses.iter();
            addresses
                .map(|address| match take(&mut handed, *address) {
                    Some(listener) => listener::adopt(listener, backlog),
                    None => listener::bind(*address, backlog),
                })
                .collect::<Result<_, _>>()?
        };
        Ok(Self { clients, admin })
    }

    /// Where clients connect, with the real port where 0 was asked for.
    pub(super) fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.clients.iter().map(TcpListener::local_addr).collect()
    }

    /// The same sockets once more, for a process that takes over.
    pub(super) fn copies(&self) -> io::Result<Vec<(SocketAddr, OwnedFd)>> {
        let mut copies = Vec::new();
        for listener in &self.clients {
            copies.push((listener.local_addr()?, listener.as_fd().try_clone_to_owned()?));
        }
        copies.push((self.admin.local_addr()?, self.admin.as_fd().try_clone_to_owned()?));
        Ok(copies)
    }
}

fn take(handed: &mut Vec<Handed>, address: SocketAddr) -> Option<Handed> {
    // Port 0 is another port each time.
    let same = |listener: &Handed| address.port() != 0 && listener.local_addr().is_ok_and(|at| at == address);
    let index = handed.iter().position(same)?;
    Some(handed.swap_remove(index))
}
