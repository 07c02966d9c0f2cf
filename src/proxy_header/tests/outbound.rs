use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

/// What a broker makes of a binary header.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    source: SocketAddr,
    destination: SocketAddr,
    fields: Vec<(u8, Vec<u8>)>,
}

/// Section 2.2 of the specification, read by somebody else than the code under test.
fn read_binary(bytes: &[u8]) -> Seen {
    assert_eq!(&bytes[..12], b"\x0D\x0A\x0D\x0A\x00\x0D\x0A\x51\x55\x49\x54\x0A");
    assert_eq!(bytes[12], 0x21, "version 2, command PROXY");
    let length = usize::from(bytes[14]) << 8 | usize::from(bytes[15]);
    assert_eq!(bytes.len(), 16 + length);
    let rest = &bytes[16..];
    let port = |at: usize| u16::from(rest[at]) << 8 | u16::from(rest[at + 1]);
    let (source, destination, end) = match bytes[13] {
        0x11 => {
            let ip = |at: usize| Ipv4Addr::new(rest[at], rest[at + 1], rest[at + 2], rest[at + 3]);
            (
                (IpAddr::from(ip(0)), port(8)),
                (IpAddr::from(ip(4)), port(10)),
                12,
            )
        }
        0x21 => {
            let ip = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&rest[at..at + 16]).unwrap());
            (
                (IpAddr::from(ip(0)), port(32)),
                (IpAddr::from(ip(16)), port(34)),
                36,
            )
        }
        family => panic!("family {family:#x}"),
    };
    Seen {
        source: SocketAddr::from(source),
        destination: SocketAddr::from(destination),
        fields: read_fields(&rest[end..]),
    }
}

/// Section 2.2: type, length, value, to the end.
fn read_fields(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let length = usize::from(bytes[1]) << 8 | usize::from(bytes[2]);
        fields.push((bytes[0], bytes[3..3 + length].to_vec()));
        bytes = &bytes[3 + length..];
    }
    fields
}

/// Flags, verify and fields of the type `PP2_TYPE_SSL`, which comes first.
fn read_ssl(seen: &Seen) -> (u8, u32, Vec<(u8, Vec<u8>)>) {
    let (kind, value) = &seen.fields[0];
    assert_eq!(*kind, 0x20);
    let verify = u32::from_be_bytes(value[1..5].try_into().unwrap());
    (value[0], verify, read_fields(&value[5..]))
}

const BARE: Session<'_> = Session {
    version: "TLSv1.3",
    certificate: None,
    server_name: None,
    alpn: None,
};

fn with_name(common_name: &str) -> Session<'_> {
    Session {
        certificate: Some(Certificate {
            common_name: Some(common_name),
            resumed: false,
        }),
        ..BARE
    }
}

fn route() -> Route {
    Route::new(address("192.0.2.7:4711"), address("198.51.100.1:8883"))
}

#[test]
fn a_line_names_both_ends() {
    for (source, destination, line) in [
        (
            "192.0.2.7:4711",
            "198.51.100.1:8883",
            "PROXY TCP4 192.0.2.7 198.51.100.1 4711 8883\r\n",
        ),
        (
            "[2001:db8::7]:4711",
            "[2001:db8::1]:8883",
            "PROXY TCP6 2001:db8::7 2001:db8::1 4711 8883\r\n",
        ),
        (
            "[fe80::1%7]:65535",
            "[fe80::2%7]:1",
            "PROXY TCP6 fe80::1 fe80::2 65535 1\r\n",
        ),
        (
            "[::ffff:192.0.2.7]:4711",
            "[::ffff:198.51.100.1]:8883",
            "PROXY TCP4 192.0.2.7 198.51.100.1 4711 8883\r\n",
        ),
        (
            "192.0.2.7:4711",
            "[2001:db8::1]:8883",
            "PROXY TCP6 ::ffff:192.0.2.7 2001:db8::1 4711 8883\r\n",
        ),
    ] {
        let route = Route::new(address(source), address(destination));
        // A line has no room for certificates.
        for session in [BARE, with_name("tablet-7")] {
            let bytes = write(Version::V1, route, &session);
            assert_eq!(
                bytes.escape_ascii().to_string(),
                line.escape_default().to_string()
            );
        }
    }
}

#[test]
fn a_binary_header_is_what_the_specification_says() {
    let session = Session {
        version: "TLSv1.2",
        server_name: Some("mqtt"),
        alpn: Some(b"mqtt"),
        ..with_name("t7")
    };
    let expected = [
        &b"\x0D\x0A\x0D\x0A\x00\x0D\x0A\x51\x55\x49\x54\x0A\x21\x11"[..],
        &[0, 12 + 3 + 5 + 10 + 5 + 7 + 7],
        &[192, 0, 2, 7, 198, 51, 100, 1, 0x12, 0x67, 0x22, 0xB3],
        &[0x20, 0, 20, 0x07, 0, 0, 0, 0],
        b"\x21\x00\x07TLSv1.2\x22\x00\x02t7",
        b"\x02\x00\x04mqtt\x01\x00\x04mqtt",
    ]
    .concat();
    assert_eq!(write(Version::V2, route(), &session), expected);
}

#[test]
fn families_and_addresses_are_kept() {
    for (source, destination, family) in [
        ("192.0.2.7:4711", "198.51.100.1:8883", 0x11),
        ("[2001:db8::7]:4711", "[2001:db8::1]:8883", 0x21),
        ("[::ffff:192.0.2.7]:1", "[::ffff:10.0.0.1]:2", 0x11),
    ] {
        let route = Route::new(address(source), address(destination));
        let bytes = write(Version::V2, route, &BARE);
        let seen = read_binary(&bytes);
        assert_eq!(bytes[13], family, "{source}");
        assert_eq!(
            (seen.source, seen.destination),
            (route.source(), route.destination())
        );
    }
    let mixed = Route::new(address("192.0.2.7:4711"), address("[2001:db8::1]:8883"));
    let seen = read_binary(&write(Version::V2, mixed, &BARE));
    assert_eq!(seen.source, address("[::ffff:192.0.2.7]:4711"));
    assert_eq!(seen.destination, address("[2001:db8::1]:8883"));
}

#[test]
fn the_flags_say_what_is_known_of_the_certificate() {
    let certificate = |resumed| Session {
        certificate: Some(Certificate {
            common_name: Some("tablet-7"),
            resumed,
        }),
        ..BARE
    };
    // PP2_CLIENT_SSL 1, PP2_CLIENT_CERT_CONN 2, PP2_CLIENT_CERT_SESS 4.
    for (session, flags, verify, name) in [
        (BARE, 0x01, 1, None),
        (certificate(false), 0x07, 0, Some("tablet-7")),
        (certificate(true), 0x05, 0, Some("tablet-7")),
    ] {
        let seen = read_binary(&write(Version::V2, route(), &session));
        let mut fields = vec![(0x21, b"TLSv1.3".to_vec())];
        fields.extend(name.map(|name| (0x22, name.as_bytes().to_vec())));
        assert_eq!(read_ssl(&seen), (flags, verify, fields), "{session:?}");
    }
}

#[test]
fn a_name_is_passed_on_whole_or_not_at_all() {
    let longest = "ä".repeat(128);
    let too_long = format!("{longest}x");
    for (name, passed_on) in [
        ("tablet-7", true),
        ("Straße 7, Köln", true),
        ("日本", true),
        ("a b\"c\\d%0A", true),
        (longest.as_str(), true),
        (too_long.as_str(), false),
        ("", false),
        ("admin\0", false),
        ("\0", false),
        ("admin\r\nPROXY", false),
        ("tab\tlet", false),
        ("delete\u{7F}", false),
        ("next\u{85}line", false),
        ("ad\u{FFFD}min", false),
    ] {
        let seen = read_binary(&write(Version::V2, route(), &with_name(name)));
        let (flags, verify, fields) = read_ssl(&seen);
        assert_eq!((flags, verify), (0x07, 0), "{name:?}");
        let found = fields.iter().find(|(kind, _)| *kind == 0x22);
        let expected = passed_on.then(|| (0x22, name.as_bytes().to_vec()));
        assert_eq!(found, expected.as_ref(), "{name:?}");
    }
}

#[test]
fn what_does_not_fit_is_left_out_and_the_identity_last() {
    let name = "n".repeat(256);
    let host = |length| "h".repeat(length);
    let protocol = |length| vec![b'p'; length];
    // 500 - 16 - 36 for IPv6 leave 448; certificate and version take 3 + 5 + 10 + 3 + 256 = 277: 171 are left.
    for (host, protocol, kinds) in [
        (host(253), protocol(255), &[0x20][..]),
        (host(253), protocol(4), &[0x20, 0x01]),
        (host(168), protocol(0), &[0x20, 0x02]),
        (host(169), protocol(168), &[0x20, 0x01]),
        (host(100), protocol(65), &[0x20, 0x02, 0x01]),
        (host(100), protocol(66), &[0x20, 0x02]),
    ] {
        let session = Session {
            server_name: Some(&host),
            alpn: Some(&protocol),
            ..with_name(&name)
        };
        let v6 = Route::new(address("[2001:db8::7]:4711"), address("[2001:db8::1]:8883"));
        let bytes = write(Version::V2, v6, &session);
        assert!(bytes.len() <= 500, "{}", bytes.len());
        let seen = read_binary(&bytes);
        let found: Vec<u8> = seen.fields.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(
            found,
            kinds,
            "host of {}, protocol of {}",
            host.len(),
            protocol.len()
        );
        assert_eq!(read_ssl(&seen).2[1], (0x22, name.clone().into_bytes()));
    }
}

proptest! {
    /// Whoever is told reads what was meant, in at most 500 bytes.
    #[test]
    fn any_header_is_read_as_it_was_meant(
        source in any::<SocketAddr>(),
        destination in any::<SocketAddr>(),
        certificate in prop::option::of((prop::option::of(any::<String>()), any::<bool>())),
        server_name in prop::option::of("[a-z.]{1,253}"),
        alpn in prop::option::of(prop::collection::vec(any::<u8>(), 1..256)),
    ) {
        let route = Route::new(source, destination);
        let session = Session {
            version: "TLSv1.3",
            certificate: certificate.as_ref().map(|(common_name, resumed)| Certificate {
                common_name: common_name.as_deref(),
                resumed: *resumed,
            }),
            server_name: server_name.as_deref(),
            alpn: alpn.as_deref(),
        };
        let line = write(Version::V1, route, &session);
        prop_assert!(line.len() <= 107);
        prop_assert_eq!(read(&line), Ok(Progress::Complete(Header::Proxied(route), line.len())));

        let bytes = write(Version::V2, route, &session);
        prop_assert!(bytes.len() <= 500);
        prop_assert_eq!(read(&bytes), Ok(Progress::Complete(Header::Proxied(route), bytes.len())));
        let seen = read_binary(&bytes);
        prop_assert_eq!(seen.source.ip().to_canonical(), source.ip().to_canonical());
        prop_assert_eq!(seen.source.port(), source.port());
        prop_assert_eq!(seen.destination.port(), destination.port());
        let (flags, verify, _) = read_ssl(&seen);
        prop_assert_eq!(flags & 4 != 0, session.certificate.is_some());
        prop_assert_eq!(verify == 0, session.certificate.is_some());
    }
}
