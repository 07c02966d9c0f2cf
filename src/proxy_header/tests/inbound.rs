use proptest::prelude::*;

use super::*;

const SIGNATURE: [u8; 12] = [
    0x0D, 0x0A, 0x0D, 0x0A, 0x00, 0x0D, 0x0A, 0x51, 0x55, 0x49, 0x54, 0x0A,
];

const HELLO: &[u8] = &[0x16, 0x03, 0x01, 0x00, 0x05, 0x01, 0x00, 0x00, 0x01, 0x03];

/// 192.0.2.7:4711 to 198.51.100.1:8883.
const V4: &[u8] = &[192, 0, 2, 7, 198, 51, 100, 1, 0x12, 0x67, 0x22, 0xB3];

/// `2001:db8::7`, port 4711, to `2001:db8::1`, port 8883.
const V6: &[u8] = &[
    0x20, 0x01, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0x20, 0x01, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 1, 0x12, 0x67, 0x22, 0xB3,
];

/// Of `V4` and the checksum, with a name behind it, with the name before it.
const SUM_ALONE: u32 = 0xDB4E_D951;
const SUM_FIRST: u32 = 0xB151_1840;
const SUM_LAST: u32 = 0x65FD_3D24;

/// A header of version 2 with a variable part of these pieces.
fn v2(command: u8, family: u8, pieces: &[&[u8]]) -> Vec<u8> {
    let variable = pieces.concat();
    let length = u16::try_from(variable.len()).unwrap();
    let mut bytes = SIGNATURE.to_vec();
    bytes.extend([command, family]);
    bytes.extend(length.to_be_bytes());
    bytes.extend(variable);
    bytes
}

/// A field with this value.
fn field(kind: u8, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).unwrap();
    let [high, low] = length.to_be_bytes();
    [&[kind, high, low], value].concat()
}

fn proxied(source: &str, destination: &str) -> Header {
    Header::Proxied(Route::new(address(source), address(destination)))
}

/// Headers that must be taken, and what they say.
fn legal() -> Vec<(Vec<u8>, Header)> {
    let text = |text: &str| text.as_bytes().to_vec();
    let v4 = proxied("192.0.2.7:4711", "198.51.100.1:8883");
    let v6 = proxied("[2001:db8::7]:4711", "[2001:db8::1]:8883");
    let certificate = field(
        0x20,
        &[
            &[0x05, 0, 0, 0, 0][..],
            &field(0x21, b"TLSv1.3"),
            &field(0x22, b"tablet-7"),
        ]
        .concat(),
    );
    let identifier = field(0x05, &[0xAB; 128]);
    let cloud = field(0xEA, b"\x01vpce-08d2bf15fac5001c9");
    let padding = field(0x04, &[0; 9]);
    vec![
        (text("PROXY TCP4 192.0.2.7 198.51.100.1 4711 8883\r\n"), v4),
        (
            text("PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n"),
            proxied("255.255.255.255:65535", "255.255.255.255:65535"),
        ),
        (
            text("PROXY TCP4 192.0.2.7 198.51.100.1 0 1\r\n"),
            proxied("192.0.2.7:0", "198.51.100.1:1"),
        ),
        (text("PROXY TCP6 2001:db8::7 2001:db8::1 4711 8883\r\n"), v6),
        (
            text("PROXY TCP6 2001:0DB8:0:0:0:0:0:0007 2001:DB8::0001 4711 8883\r\n"),
            v6,
        ),
        (
            text(
                "PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0 65535 65535\r\n",
            ),
            proxied(
                "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
                "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0]:65535",
            ),
        ),
        (
            text("PROXY TCP6 ::ffff:192.0.2.7 ::ffff:198.51.100.1 4711 8883\r\n"),
            v4,
        ),
        (text("PROXY UNKNOWN\r\n"), Header::Local),
        (text("PROXY UNKNOWN ::1 ::1 1 1\r\n"), Header::Local),
        (b"PROXY UNKNOWN \xFF\r \0 whatever\r\n".to_vec(), Header::Local),
        // The longest that the specification foresees: 107 bytes.
        (
            text(
                "PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n",
            ),
            Header::Local,
        ),
        (v2(0x21, 0x11, &[V4]), v4),
        (v2(0x21, 0x21, &[V6]), v6),
        (
            v2(0x21, 0x11, &[V4, &certificate, &identifier, &cloud, &padding]),
            v4,
        ),
        (v2(0x21, 0x21, &[V6, &field(0x04, &[0; 4096 - 36 - 3])]), v6),
        (
            v2(
                0x21,
                0x11,
                &[V4, &field(0x02, b"\xFF no UTF-8, and nobody asked")],
            ),
            v4,
        ),
        // What is no TCP connection, and what is the balancer's own.
        (v2(0x20, 0x00, &[]), Header::Local),
        (v2(0x20, 0x00, &[&[0xFF; 4096]]), Header::Local),
        (v2(0x20, 0x11, &[V4]), Header::Local),
        (v2(0x20, 0xFF, &[b"to be skipped"]), Header::Local),
        (v2(0x21, 0x00, &[]), Header::Local),
        (v2(0x21, 0x00, &[b"to be skipped"]), Header::Local),
        (v2(0x21, 0x12, &[V4]), Header::Local),
        (v2(0x21, 0x22, &[V6, &certificate]), Header::Local),
        (v2(0x21, 0x31, &[&[b'/'; 216]]), Header::Local),
        (v2(0x21, 0x32, &[&[0; 216], &padding]), Header::Local),
    ]
}

#[test]
fn legal_headers_are_read_at_any_split_and_leave_what_follows_alone() {
    for (bytes, header) in legal() {
        let shown = bytes.escape_ascii().to_string();
        let mut wanted = 1;
        for length in 0..bytes.len() {
            match read(&bytes[..length]) {
                Ok(Progress::Need(more)) => {
                    assert!(
                        more > length && more <= bytes.len(),
                        "{more} at {length} of {shown}"
                    );
                    assert!(more >= wanted, "{more} after {wanted} at {length} of {shown}");
                    wanted = more;
                }
                other => panic!("{other:?} at {length} of {shown}"),
            }
        }
        let complete = Ok(Progress::Complete(header, bytes.len()));
        assert_eq!(read(&bytes), complete, "{shown}");
        assert_eq!(
            read(&[&bytes, HELLO].concat()),
            complete,
            "{shown} with a ClientHello"
        );
        let again = [bytes.as_slice(), bytes.as_slice()].concat();
        assert_eq!(read(&again), complete, "{shown} twice");
    }
}

const ILLEGAL_LINES: [&str; 34] = [
    "PROXY \r\n",
    "PROXY  TCP4 192.0.2.7 198.51.100.1 4711 8883\r\n",
    "PROXY TCP4\r\n",
    "PROXY TCP5 192.0.2.7 198.51.100.1 4711 8883\r\n",
    "PROXY tcp4 192.0.2.7 198.51.100.1 4711 8883\r\n",
    "PROXY TCP 192.0.2.7 198.51.100.1 4711 8883\r\n",
    "PROXY UDP4 192.0.2.7 198.51.100.1 4711 8883\r\n",
    "PROXY unknown\r\n",
    "PROXY UNKNOWNX\r\n",
    "PROXY TCP4 192.0.2.7  198.51.100.1 4711 8883\r\n",
    "PROXY TCP4 192.0.2.7\t198.51.100.1 4711 8883\r\n",
    "PROXY TCP4 192.0.2.7 198.51.100.1 4711 8883 \r\n",
    "PROXY TCP4 192.0.2.7 198.51.100.1 4711 8883 1\r\n",
    "PROXY TCP4 192.0.2.7 198.51.100.1 4711\r\n",
    "PROXY TCP4 192.0.2.7 198.51.100.1 4711 8883\n",
    "PROXY TCP4 192.0.2.7 198.51.100.1 4711 8883\r\r\n",
    "PROXY TCP4 192.0.2.7 198.51.100.1 04711 8883\r\n",
    "PROXY TCP4 192.0.2.7 198.51.100.1 4711 00080\r\n",
    "PROXY TCP4 192.0.2.7 198.51.100.1 +4711 8883\r\n",
    "PROXY TCP4 192.0.2.7 198.51.100.1 -1 8883\r\n",
    "PROXY TCP4 192.0.2.7 198.51.100.1 65536 8883\r\n",
    "PROXY TCP4 192.0.2.7 198.51.100.1 4711 \r\n",
    "PROXY TCP4 192.0.2.7 198.51.100.1 0x10 8883\r\n",
    "PROXY TCP4 192.0.2.07 198.51.100.1 4711 8883\r\n",
    "PROXY TCP4 192.0.2 198.51.100.1 4711 8883\r\n",
    "PROXY TCP4 192.0.2.256 198.51.100.1 4711 8883\r\n",
    "PROXY TCP4 2001:db8::7 2001:db8::1 4711 8883\r\n",
    "PROXY TCP4 192.0.2.7 2001:db8::1 4711 8883\r\n",
    "PROXY TCP6 192.0.2.7 198.51.100.1 4711 8883\r\n",
    "PROXY TCP6 2001:db8::7 198.51.100.1 4711 8883\r\n",
    "PROXY TCP6 fe80::1%eth0 fe80::2 4711 8883\r\n",
    "PROXY TCP6 [2001:db8::7] [2001:db8::1] 4711 8883\r\n",
    "PROXY TCP6 1::2::3 2001:db8::1 4711 8883\r\n",
    "PROXY TCP4 localhost 198.51.100.1 4711 8883\r\n",
];

#[test]
fn an_illegal_line_is_refused() {
    for line in ILLEGAL_LINES.iter().map(|line| line.as_bytes()) {
        assert_eq!(read(line), Err(HeaderError::Line), "{}", line.escape_ascii());
        let more = [line, HELLO].concat();
        assert_eq!(read(&more), Err(HeaderError::Line), "{}", more.escape_ascii());
    }
}

#[test]
fn a_line_without_end_is_refused_at_its_limit() {
    let ends_late = format!("PROXY UNKNOWN {}\r\n", "x".repeat(92));
    assert_eq!(ends_late.len(), 108);
    let endless = format!("PROXY TCP4 {}", "1".repeat(200));
    for line in [ends_late.as_bytes(), endless.as_bytes()] {
        assert_eq!(read(&line[..106]), Ok(Progress::Need(107)));
        assert_eq!(read(&line[..107]), Err(HeaderError::TooLong));
        assert_eq!(read(line), Err(HeaderError::TooLong));
    }
}

#[test]
fn an_illegal_binary_header_is_refused() {
    let wrong_sum = field(0x03, &[1, 2, 3, 4]);
    let cut = &field(0x02, b"broker")[..8];
    for (bytes, error) in [
        (v2(0x11, 0x11, &[V4]), HeaderError::Command),
        (v2(0x31, 0x11, &[V4]), HeaderError::Command),
        (v2(0x22, 0x11, &[V4]), HeaderError::Command),
        (v2(0x2F, 0x11, &[V4]), HeaderError::Command),
        (v2(0x21, 0x01, &[V4]), HeaderError::Family),
        (v2(0x21, 0x10, &[V4]), HeaderError::Family),
        (v2(0x21, 0x13, &[V4]), HeaderError::Family),
        (v2(0x21, 0x41, &[V4]), HeaderError::Family),
        (v2(0x21, 0xFF, &[V4]), HeaderError::Family),
        (v2(0x21, 0x11, &[]), HeaderError::Addresses),
        (v2(0x21, 0x11, &[&V4[..11]]), HeaderError::Addresses),
        (v2(0x21, 0x12, &[&V4[..11]]), HeaderError::Addresses),
        (v2(0x21, 0x21, &[V4]), HeaderError::Addresses),
        (v2(0x21, 0x21, &[&V6[..35]]), HeaderError::Addresses),
        (v2(0x21, 0x31, &[&[0; 215]]), HeaderError::Addresses),
        (v2(0x21, 0x11, &[V4, &[0x04]]), HeaderError::Fields),
        (v2(0x21, 0x11, &[V4, &[0x04, 0]]), HeaderError::Fields),
        (v2(0x21, 0x11, &[V4, &[0x04, 0, 1]]), HeaderError::Fields),
        (v2(0x21, 0x11, &[V4, &[0x04, 0xFF, 0xFF]]), HeaderError::Fields),
        (v2(0x21, 0x11, &[V4, cut]), HeaderError::Fields),
        (v2(0x21, 0x22, &[V6, cut]), HeaderError::Fields),
        (v2(0x21, 0x11, &[V4, &field(0x03, &[0; 3])]), HeaderError::Fields),
        (v2(0x21, 0x11, &[V4, &field(0x03, &[0; 5])]), HeaderError::Fields),
        (v2(0x21, 0x11, &[V4, &wrong_sum]), HeaderError::Checksum),
        (
            v2(0x21, 0x11, &[V4, &field(0x04, &[0; 4097 - 12 - 3])]),
            HeaderError::TooLong,
        ),
        (v2(0x20, 0x00, &[&[0; 4097]]), HeaderError::TooLong),
    ] {
        assert_eq!(read(&bytes), Err(error), "{bytes:02x?}");
        let more = [&bytes, HELLO].concat();
        assert_eq!(read(&more), Err(error), "{bytes:02x?} with a ClientHello");
    }
}

#[test]
fn what_declares_too_much_is_refused_before_it_is_read() {
    let header = v2(0x21, 0x11, &[V4, &field(0x04, &vec![0; 60_000])]);
    assert_eq!(read(&header[..15]), Ok(Progress::Need(16)));
    assert_eq!(read(&header[..16]), Err(HeaderError::TooLong));
    let command = v2(0x2A, 0x11, &[V4]);
    assert_eq!(read(&command[..13]), Err(HeaderError::Command));
}

/// The sums were computed bit by bit by another program, over the same bytes with zeros in their place.
#[test]
fn a_checksum_is_checked_wherever_it_stands() {
    let name = field(0x02, b"broker.example.net");
    let sum = |sum: u32| field(0x03, &sum.to_be_bytes());
    for (bytes, good) in [
        (v2(0x21, 0x11, &[V4, &sum(SUM_ALONE)]), true),
        (v2(0x21, 0x11, &[V4, &sum(SUM_FIRST), &name]), true),
        (v2(0x21, 0x11, &[V4, &name, &sum(SUM_LAST)]), true),
        (v2(0x21, 0x11, &[V4, &sum(SUM_ALONE.swap_bytes())]), false),
        (v2(0x21, 0x11, &[V4, &sum(SUM_LAST), &name]), false),
        (v2(0x21, 0x11, &[V4, &sum(0)]), false),
    ] {
        let read = read(&bytes);
        assert_eq!(read.is_ok(), good, "{read:?} {bytes:02x?}");
    }
    let twice = v2(0x21, 0x11, &[V4, &sum(SUM_ALONE), &sum(SUM_ALONE)]);
    assert!(read(&twice).is_err());
    // A changed address is noticed.
    let mut bytes = v2(0x21, 0x11, &[V4, &sum(SUM_ALONE)]);
    bytes[16] ^= 1;
    assert_eq!(read(&bytes), Err(HeaderError::Checksum));
}

#[test]
fn anything_else_is_the_clients() {
    for bytes in [
        HELLO,
        b"\x10\x0C\0\x04MQTT",
        b"GET / HTTP/1.1",
        b"POST / HTTP/1.1",
        b"PROXX",
        b"PROXY\t",
        b"PROXY\r\n",
        b"proxy tcp4",
        b"SSH-2.0-OpenSSH",
        b"\r\n\r\nGET /",
        b"\r\n\r\n\0\r\nQUIX",
        b"\n",
        b"\0",
        b" PROXY ",
    ] {
        assert_eq!(read(bytes), Ok(Progress::Absent), "{}", bytes.escape_ascii());
    }
}

proptest! {
    /// Whatever comes: an answer, never a panic; more bytes change "need" alone, and "need" is bounded and honest.
    #[test]
    fn any_bytes_have_one_answer(bytes in any_bytes(), split in any::<prop::sample::Index>()) {
        let whole = read(&bytes);
        if let Ok(Progress::Complete(_, length)) = whole {
            prop_assert!(length <= bytes.len() && length <= 16 + 4096);
        }
        let at = split.index(bytes.len() + 1);
        match read(&bytes[..at]) {
            Ok(Progress::Need(more)) => {
                prop_assert!(more > at && more <= 16 + 4096);
                let sooner = more.min(bytes.len() + 1) - 1;
                let waits = matches!(read(&bytes[..sooner.max(at)]), Ok(Progress::Need(_)));
                prop_assert!(waits, "{} at {}", more, at);
            }
            settled => prop_assert_eq!(settled, whole),
        }
    }

    /// A header whose bytes were damaged on the way does not pass for another's address where it is protected.
    #[test]
    fn a_checksum_notices_any_damaged_byte(at in 16..28_usize, by in 1..=255_u8) {
        let mut bytes = v2(0x21, 0x11, &[V4, &field(0x03, &SUM_ALONE.to_be_bytes())]);
        bytes[at] ^= by;
        prop_assert_eq!(read(&bytes), Err(HeaderError::Checksum));
    }
}

/// Garbage, and legal headers with up to three bytes changed, cut or continued.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let damaged = (
        prop::sample::select(legal()),
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        prop::collection::vec(any::<u8>(), 0..40),
        any::<prop::sample::Index>(),
    )
        .prop_map(|((mut bytes, _), changes, more, cut)| {
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.extend(more);
            bytes.truncate(cut.index(bytes.len() + 1));
            bytes
        });
    let behind_signature =
        prop::collection::vec(any::<u8>(), 0..300).prop_map(|more| [&SIGNATURE, more.as_slice()].concat());
    let garbage = prop::collection::vec(any::<u8>(), 0..200);
    prop_oneof![4 => damaged, 2 => behind_signature, 1 => garbage]
}
