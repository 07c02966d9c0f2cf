//! Headers written by hand from the specification, and a reader of the tests' own for those that we write.

mod inbound;
mod outbound;

use super::*;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn networks(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn both_ends_of_a_route_are_of_one_family() {
    for (source, destination, seen_source, seen_destination) in [
        ("192.0.2.1:1", "198.51.100.1:2", "192.0.2.1:1", "198.51.100.1:2"),
        ("[2001:db8::1]:1", "[::1]:2", "[2001:db8::1]:1", "[::1]:2"),
        (
            "[::ffff:192.0.2.1]:1",
            "[::ffff:10.0.0.1]:2",
            "192.0.2.1:1",
            "10.0.0.1:2",
        ),
        ("[::ffff:192.0.2.1]:1", "10.0.0.1:2", "192.0.2.1:1", "10.0.0.1:2"),
        ("192.0.2.1:1", "[2001:db8::1]:2", "192.0.2.1:1", "[2001:db8::1]:2"),
        ("[2001:db8::1]:1", "10.0.0.1:2", "[2001:db8::1]:1", "10.0.0.1:2"),
    ] {
        let route = Route::new(address(source), address(destination));
        assert_eq!(route.source(), address(seen_source));
        assert_eq!(route.destination(), address(seen_destination));
        assert_eq!(route.source.is_ipv4(), route.destination.is_ipv4(), "{route:?}");
    }
}

#[test]
fn who_may_send_a_header_and_who_must() {
    let header: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 8883\r\n";
    let local: &[u8] = b"PROXY UNKNOWN\r\n";
    let broken: &[u8] = b"PROXY TCP4\r\n";
    let hello: &[u8] = &[0x16, 3, 1, 2, 0];
    let route = Route::new(address("192.0.2.7:4711"), address("198.51.100.1:8883"));
    let proxied = Ok(Progress::Complete(Header::Proxied(route), header.len()));
    let health = Ok(Progress::Complete(Header::Local, local.len()));
    let unreadable = Err(Refused::Unreadable(HeaderError::Line));
    let own: &[u8] = b"PROXY TCP4 10.1.2.3 10.1.2.4 50000 8883\r\n";
    let own_health = Ok(Progress::Complete(Header::Local, own.len()));
    let neighbour: &[u8] = b"PROXY TCP4 10.1.2.3 10.1.2.4 50001 8883\r\n";
    let beside = Route::new(address("10.1.2.3:50001"), address("10.1.2.4:8883"));
    let beside = Ok(Progress::Complete(Header::Proxied(beside), neighbour.len()));
    let (inside, outside) = ("10.1.2.3:50000", "192.0.2.99:50000");
    for (mode, peer, bytes, expected) in [
        (Mode::Off, inside, header, Ok(Progress::Absent)),
        (Mode::Off, outside, hello, Ok(Progress::Absent)),
        (Mode::Off, outside, b"", Ok(Progress::Absent)),
        (Mode::Optional, inside, header, proxied),
        (Mode::Optional, inside, local, health),
        (Mode::Optional, inside, own, own_health),
        (Mode::Optional, inside, neighbour, beside),
        (Mode::Optional, "[::ffff:10.1.2.3]:50000", own, own_health),
        (Mode::Optional, inside, broken, unreadable),
        (Mode::Optional, inside, hello, Ok(Progress::Absent)),
        (Mode::Optional, inside, b"", Ok(Progress::Need(1))),
        (Mode::Optional, inside, b"PROXY", Ok(Progress::Need(6))),
        (Mode::Optional, inside, b"PUT / HTTP", Ok(Progress::Absent)),
        (Mode::Optional, outside, header, Err(Refused::Untrusted)),
        (Mode::Optional, outside, local, Err(Refused::Untrusted)),
        (Mode::Optional, outside, broken, Err(Refused::Untrusted)),
        (Mode::Optional, outside, b"PROXY ", Err(Refused::Untrusted)),
        (Mode::Optional, outside, b"PROXY", Ok(Progress::Need(6))),
        (Mode::Optional, outside, hello, Ok(Progress::Absent)),
        (Mode::Optional, outside, b"", Ok(Progress::Need(1))),
        (Mode::Required, inside, header, proxied),
        (Mode::Required, inside, local, health),
        (Mode::Required, inside, own, own_health),
        (Mode::Required, inside, broken, unreadable),
        (Mode::Required, inside, b"", Ok(Progress::Need(1))),
        (Mode::Required, inside, hello, Err(Refused::Missing)),
        (Mode::Required, inside, b"\x10", Err(Refused::Missing)),
        (Mode::Required, outside, header, Err(Refused::Untrusted)),
        (Mode::Required, outside, hello, Err(Refused::Untrusted)),
        (Mode::Required, outside, b"", Err(Refused::Untrusted)),
    ] {
        let settings = Settings {
            mode,
            trusted: networks(&["10.0.0.0/8", "2001:db8::/32"]),
        };
        let read = settings.read(address(peer), bytes);
        assert_eq!(read, expected, "{mode:?}, {peer}: {}", bytes.escape_ascii());
    }
}

#[test]
fn trust_is_by_network_of_either_family() {
    let settings = |trusted: &[&str]| Settings {
        mode: Mode::Required,
        trusted: networks(trusted),
    };
    for (trusted, peer, trusts) in [
        (&["10.0.0.0/8"][..], "10.255.0.1", true),
        (&["10.0.0.0/8"], "::ffff:10.255.0.1", true),
        (&["10.0.0.0/8"], "11.0.0.1", false),
        (&["10.0.0.0/8"], "2001:db8::1", false),
        (&["192.0.2.1/32", "2001:db8::/64"], "192.0.2.1", true),
        (&["192.0.2.1/32", "2001:db8::/64"], "192.0.2.2", false),
        (&["192.0.2.1/32", "2001:db8::/64"], "2001:db8::9", true),
        (&["192.0.2.1/32", "2001:db8::/64"], "2001:db8:0:1::9", false),
        (&["0.0.0.0/0"], "2001:db8::9", false),
        (&["0.0.0.0/0", "::/0"], "2001:db8::9", true),
        (&["0.0.0.0/0", "::/0"], "203.0.113.1", true),
        (&[], "127.0.0.1", false),
    ] {
        let peer = SocketAddr::new(peer.parse().unwrap(), 50_000);
        let read = settings(trusted).read(peer, b"");
        assert_eq!(read.is_ok(), trusts, "{peer} of {trusted:?}");
        let mut settings = settings(trusted);
        assert_eq!(
            settings.may_name_another(peer.ip()),
            trusts,
            "{peer} of {trusted:?}"
        );
        settings.mode = Mode::Off;
        assert!(!settings.may_name_another(peer.ip()));
    }
}
