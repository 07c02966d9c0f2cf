//! What values that are legal by themselves must be to each other.

use std::net::SocketAddr;

use super::Config;
use super::reader::Reader;
use crate::admission::lanes::Lane;
use crate::proxy_header::Mode;
use crate::upstream::{Endpoint, Server};

/// Reports every contradiction.
pub(super) fn contradictions(config: &Config, reader: &mut Reader<'_>) {
    cost(config, reader);
    lanes(config, reader);
    listen(config, reader);
    servers(config, reader);
    loops(config, reader);
    server_names(config, reader);
    alpn(config, reader);
    proxy_protocol(config, reader);
}

/// A CONNECT that costs more than the bucket holds would never get in.
fn cost(config: &Config, reader: &mut Reader<'_>) {
    let burst = config.admission.burst;
    let costs = [
        ("admission.cost.clean", config.admission.cost.clean),
        ("admission.cost.persistent", config.admission.cost.persistent),
    ];
    for (path, cost) in costs {
        if cost > burst {
            let found = format!("costs {cost} tokens, and the bucket holds {burst}: none would ever get in");
            let hint = format!("set admission.burst to {cost} or more");
            reader.contradiction(path, &["admission.burst", "admission.rate"], found, &hint);
        }
    }
}

fn lanes(config: &Config, reader: &mut Reader<'_>) {
    let lanes = &config.admission.lanes;
    for (index, lane) in lanes.iter().enumerate() {
        // One without a name was reported as such.
        let same = |earlier: &Lane| !lane.name.is_empty() && earlier.name == lane.name;
        if lanes.iter().take(index).any(same) {
            let path = format!("admission.lanes[{index}].name");
            let found = format!("{:?} is the name of an earlier lane", lane.name);
            reader.contradiction(&path, &[], found, "a name of its own");
        }
    }
    let reserved: f64 = lanes.iter().map(|lane| lane.reserve).sum();
    let rate = config.admission.rate;
    if !lanes.is_empty() && reserved >= rate {
        let found = format!("the reserves add up to {reserved} tokens a second, and the rate is {rate}");
        let hint = "leave some of admission.rate to all";
        reader.contradiction("admission.lanes", &["admission.rate"], found, hint);
    }
}

fn listen(config: &Config, reader: &mut Reader<'_>) {
    let addresses = &config.listen.addresses;
    for (index, address) in addresses.iter().enumerate() {
        // Port 0 is another port each time.
        if address.port() != 0 && addresses.iter().take(index).any(|earlier| earlier == address) {
            let found = format!("{address} is listed twice");
            reader.contradiction("listen.addresses", &[], found, "each address once");
        }
        if overlaps(*address, config.admin.address) {
            let found = format!(
                "{} is taken by {address} of listen.addresses",
                config.admin.address
            );
            let hint = "another port for the admin page";
            reader.contradiction("admin.address", &["listen.addresses"], found, hint);
        }
    }
}

/// A broker that is listed twice would have two breakers and one series in the metrics.
fn servers(config: &Config, reader: &mut Reader<'_>) {
    let servers = &config.upstream.servers;
    for (index, server) in servers.iter().enumerate() {
        let same = |earlier: &Server| earlier.endpoint == server.endpoint;
        if servers.iter().take(index).any(same) {
            let found = format!("{} is listed twice", server.name);
            reader.contradiction("upstream.servers", &[], found, "each broker once");
        }
    }
}

/// A proxy whose broker is itself admits each CONNECT until nothing is left.
fn loops(config: &Config, reader: &mut Reader<'_>) {
    for server in &config.upstream.servers {
        let Endpoint::Address(broker) = server.endpoint else {
            continue;
        };
        for listen in &config.listen.addresses {
            let own = listen.ip() == broker.ip()
                || (listen.ip().is_unspecified()
                    && listen.is_ipv4() == broker.is_ipv4()
                    && (broker.ip().is_loopback() || broker.ip().is_unspecified()));
            if own && listen.port() == broker.port() {
                let found = format!("{broker} is where Seawall itself listens ({listen})");
                let hint = "the address of the broker behind it";
                reader.contradiction("upstream.servers", &["listen.addresses"], found, hint);
            }
        }
    }
}

/// TLS for a broker that can have none, as far as it is alone: beside others a unix socket is dialled in plain, since what
/// is said on it leaves the machine in no case.
fn server_names(config: &Config, reader: &mut Reader<'_>) {
    let Some(tls) = &config.upstream.tls else { return };
    let (path, servers) = ("upstream.servers", &config.upstream.servers);
    let is_local = |server: &Server| matches!(server.endpoint, Endpoint::Unix(_));
    if !servers.is_empty() && servers.iter().all(is_local) {
        let found = "on unix sockets there is no TLS, and there is no other server".to_owned();
        reader.contradiction("upstream.tls.enabled", &[path], found, "set it to false");
    }
    for server in servers.iter().filter(|server| !is_local(server)) {
        if tls.server_name.is_none() && server.endpoint.host().is_none() {
            let found = format!("no certificate can be for the name of {}", server.name);
            let hint = "set upstream.tls.server_name to a name that is in it";
            reader.contradiction(path, &["upstream.tls.server_name"], found, hint);
        }
    }
}

fn alpn(config: &Config, reader: &mut Reader<'_>) {
    let names = &config.tls.alpn;
    for (index, name) in names.iter().enumerate() {
        if names.iter().take(index).any(|earlier| earlier == name) {
            let found = format!("{name:?} is listed twice");
            reader.contradiction("tls.alpn", &[], found, "each protocol once");
        }
    }
}

/// Without anybody who may send a header, each connection that has one, or must have, is closed.
fn proxy_protocol(config: &Config, reader: &mut Reader<'_>) {
    let settings = &config.listen.proxy_header;
    if settings.mode != Mode::Off && settings.trusted.is_empty() {
        let found = "is empty: nobody may send the headers that listen.proxy_protocol expects".to_owned();
        let hint = "the networks of your balancers; [\"0.0.0.0/0\", \"::/0\"] believes everybody's header";
        reader.contradiction("listen.trusted_proxies", &["listen.proxy_protocol"], found, hint);
    }
}

/// Whether the second of them could not be bound.
fn overlaps(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() != 0
        && one.port() == other.port()
        && one.is_ipv4() == other.is_ipv4()
        && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
}
