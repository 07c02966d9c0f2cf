use std::sync::Arc;

use proptest::prelude::*;
use rustls::server::Acceptor;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;

const VECTORS: &str = include_str!("../../../tests/vectors/client_hello.txt");

struct Vector {
    line: &'static str,
    expected: &'static str,
    bytes: Vec<u8>,
}

fn vectors() -> Vec<Vector> {
    VECTORS
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let columns: Vec<&str> = line.splitn(3, " | ").collect();
            let digits: String = columns[1].split_whitespace().collect();
            let bytes = (0..digits.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect(line))
                .collect();
            assert!(!columns[2].is_empty(), "no reason given: {line}");
            Vector {
                line,
                expected: columns[0],
                bytes,
            }
        })
        .collect()
}

fn legal() -> Vec<Vector> {
    let legal: Vec<Vector> = vectors()
        .into_iter()
        .filter(|vector| vector.expected.starts_with("ok "))
        .collect();
    assert!(legal.len() > 30);
    legal
}

/// What was read, in the words of the vectors.
fn words(read: &Result<Progress, HelloError>) -> String {
    match read {
        Ok(Progress::Complete(hello, _)) => format!("ok {}", hello_words(hello)),
        Ok(Progress::Need(_)) => "need".to_owned(),
        Err(HelloError::NotTls) => "not-tls".to_owned(),
        Err(HelloError::Malformed) => "malformed".to_owned(),
        Err(HelloError::TooLarge) => "too-large".to_owned(),
    }
}

fn hello_words(hello: &Hello) -> String {
    let mut words = vec![if hello.tls13 { "1.3" } else { "1.2" }.to_owned()];
    words.extend(hello.server_name.as_ref().map(|name| format!("name={name}")));
    if !hello.alpn.is_empty() {
        let names: Vec<_> = hello
            .alpn
            .iter()
            .map(|name| String::from_utf8_lossy(name))
            .collect();
        words.push(format!("alpn={}", names.join(",")));
    }
    words.extend(hello.early_data.then(|| "early".to_owned()));
    words.extend(hello.ticket.as_ref().map(|ticket| {
        let end = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        let (first, last) = (end(&ticket[..4]), end(&ticket[ticket.len() - 4..]));
        format!("ticket={}:{first:08x}..{last:08x}", ticket.len())
    }));
    words.join(" ")
}

/// The handshake's messages in records of at most `most` bytes each.
fn fragmented(bytes: &[u8], most: usize) -> Vec<u8> {
    let mut message = Vec::new();
    let mut rest = bytes;
    while let [_, _, _, high, low, ..] = rest {
        let end = 5 + usize::from(u16::from_be_bytes([*high, *low]));
        message.extend_from_slice(&rest[5..end]);
        rest = &rest[end..];
    }
    message
        .chunks(most)
        .flat_map(|chunk| [&[22, 3, 3][..], &(chunk.len() as u16).to_be_bytes(), chunk].concat())
        .collect()
}

/// What the TLS library makes of the same bytes: the hello, more wanted, or an error.
fn library(bytes: &[u8]) -> Result<Option<rustls::server::Accepted>, ()> {
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    loop {
        let read = acceptor.read_tls(&mut rest).map_err(|_| ())?;
        match acceptor.accept().map_err(|_| ())? {
            Some(accepted) => return Ok(Some(accepted)),
            None if read == 0 => return Ok(None),
            None => {}
        }
    }
}

fn client_hello(config: ClientConfig) -> Vec<u8> {
    let mut client = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

#[test]
fn every_vector_is_read_as_it_says() {
    for vector in vectors() {
        assert_eq!(words(&read(&vector.bytes)), vector.expected, "{}", vector.line);
    }
}

#[test]
fn a_prefix_of_a_legal_hello_is_never_an_error_and_needs_ever_more() {
    for vector in legal() {
        let mut needed = 0;
        for length in 0..vector.bytes.len() {
            match read(&vector.bytes[..length]) {
                Ok(Progress::Need(need)) => {
                    assert!(need > length && need >= needed && need <= vector.bytes.len());
                    needed = need;
                }
                other => panic!("{other:?} after {length} bytes of {}", vector.line),
            }
        }
    }
}

#[test]
fn what_is_said_of_an_illegal_one_stays_said() {
    for vector in vectors() {
        let Err(error) = read(&vector.bytes) else { continue };
        let longer = [&vector.bytes[..], &[22, 3, 3, 0, 1, 0, 0]].concat();
        assert_eq!(read(&longer), Err(error), "{}", vector.line);
    }
}

#[test]
fn surplus_is_left_alone() {
    for vector in legal() {
        let whole = read(&vector.bytes);
        let Ok(Progress::Complete(_, consumed)) = whole else {
            panic!("{}", vector.line)
        };
        assert_eq!(consumed, vector.bytes.len(), "{}", vector.line);
        let more = [&vector.bytes[..], &[20, 3, 3, 0, 1, 1], &[23; 40]].concat();
        assert_eq!(read(&more), whole, "{}", vector.line);
    }
}

#[test]
fn the_fragmentation_changes_nothing() {
    for vector in legal() {
        for most in [1, 2, 3, 4, 5, 7, 40, 200, 511, 16_000] {
            let fragments = fragmented(&vector.bytes, most);
            let Ok(Progress::Complete(hello, consumed)) = read(&fragments) else {
                panic!("{} in records of {most}", vector.line)
            };
            assert_eq!(format!("ok {}", hello_words(&hello)), vector.expected);
            assert!(consumed > fragments.len() / 2 && consumed <= fragments.len());
        }
    }
}

#[test]
fn the_limit_holds_for_all_that_arrives() {
    // The longest message that fits, by records: none is larger than what is left.
    let message = |length: usize| {
        let mut message = vec![1, 0, (length >> 8) as u8, length as u8];
        message.resize(4 + length, 0);
        message
    };
    let in_records = |length: usize, most: usize| -> Vec<u8> {
        message(length)
            .chunks(most)
            .flat_map(|chunk| [&[22, 3, 3][..], &(chunk.len() as u16).to_be_bytes(), chunk].concat())
            .collect()
    };
    for most in [16_384, 8_000, 100, 1] {
        let records = LIMIT.div_ceil(5 + most);
        let fits = LIMIT - 5 * records - 4;
        let bytes = in_records(fits, most);
        assert!(
            bytes.len() <= LIMIT && bytes.len() + 12 > LIMIT,
            "{most}: {}",
            bytes.len()
        );
        assert_eq!(read(&bytes), Err(HelloError::Malformed), "{most}");
        assert_eq!(
            read(&in_records(LIMIT - 4, most)),
            Err(HelloError::TooLarge),
            "{most}"
        );
    }
}

#[test]
fn what_the_library_s_own_client_sends() {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    for (versions, expected) in [
        (&[&rustls::version::TLS12][..], "1.2 name=localhost alpn=mqtt"),
        (&[&rustls::version::TLS13], "1.3 name=localhost alpn=mqtt"),
        (rustls::ALL_VERSIONS, "1.3 name=localhost alpn=mqtt"),
    ] {
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"mqtt".to_vec()];
        let bytes = client_hello(config);
        let Ok(Progress::Complete(hello, consumed)) = read(&bytes) else {
            panic!("{expected}")
        };
        assert_eq!(
            (hello_words(&hello), consumed),
            (expected.to_owned(), bytes.len())
        );
    }
}

#[test]
fn debug_shows_no_ticket() {
    let hello = Hello {
        server_name: None,
        alpn: Vec::new(),
        tls13: true,
        early_data: false,
        ticket: Some(vec![222; 3]),
    };
    let shown = format!("{hello:?}");
    assert!(shown.contains("Some(3)") && !shown.contains("222"), "{shown}");
}

/// A legal hello, changed in some bytes, cut or lengthened.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let cut = prop::option::weighted(0.2, any::<prop::sample::Index>());
    (0..legal().len(), changes, cut, 1..300_usize, any::<bool>()).prop_map(
        |(which, changes, cut, most, whole)| {
            let mut bytes = legal().swap_remove(which).bytes;
            if !whole {
                bytes = fragmented(&bytes, most);
            }
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if let Some(at) = cut {
                bytes.truncate(at.index(bytes.len()));
            }
            bytes
        },
    )
}

proptest! {
    #[test]
    fn any_bytes_are_judged(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(Progress::Need(need)) = read(&bytes) {
            prop_assert!(need > bytes.len() && need <= LIMIT);
        }
    }

    /// A client that the handshake would serve is never turned away here, and what is said of it is the same.
    #[test]
    fn whom_the_library_reads_we_read_the_same(bytes in damaged()) {
        let ours = read(&bytes);
        match library(&bytes) {
            Ok(Some(accepted)) => {
                let Ok(Progress::Complete(hello, _)) = ours else {
                    return Err(TestCaseError::fail(format!("{ours:?}")));
                };
                let theirs = accepted.client_hello();
                prop_assert_eq!(hello.server_name.as_deref(), theirs.server_name());
                let alpn: Vec<Vec<u8>> = theirs.alpn().into_iter().flatten().map(<[u8]>::to_vec).collect();
                prop_assert_eq!(hello.alpn, alpn);
            }
            Ok(None) => prop_assert!(!matches!(ours, Ok(Progress::Complete(..)))),
            Err(()) => {}
        }
    }

    /// The verdict on a stream is the same wherever it is looked at in between.
    #[test]
    fn the_verdict_grows_with_the_bytes(bytes in damaged()) {
        let verdict = read(&bytes);
        for length in 0..bytes.len() {
            match read(&bytes[..length]) {
                Ok(Progress::Need(need)) => prop_assert!(need > length && need <= LIMIT),
                earlier => prop_assert_eq!(&earlier, &verdict),
            }
        }
    }
}
