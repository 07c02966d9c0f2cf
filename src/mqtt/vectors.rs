//! Test vectors: lines of `what is expected | packet | why` (`tests/vectors/`).

use super::Version;

pub(super) struct Vector {
    pub(super) line: &'static str,
    pub(super) expected: &'static str,
    pub(super) packet: Vec<u8>,
}

pub(super) fn parse(text: &'static str) -> Vec<Vector> {
    let vectors: Vec<Vector> = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let mut columns = line.splitn(3, " | ");
            let expected = columns.next().expect("expectation").trim();
            let packet = packet(columns.next().expect("packet"));
            assert!(
                columns.next().is_some_and(|why| !why.trim().is_empty()),
                "no reason given: {line}"
            );
            Vector {
                line,
                expected,
                packet,
            }
        })
        .collect();
    assert!(!vectors.is_empty());
    vectors
}

/// Hexadecimal digits in pairs, text in quotes, `*N` after a text to repeat it.
pub(super) fn packet(spelt: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, part) in spelt.split('"').enumerate() {
        if index % 2 == 1 {
            bytes.extend(part.as_bytes());
            continue;
        }
        let (times, hex) = match part.strip_prefix('*') {
            Some(rest) => rest.split_once(' ').unwrap_or((rest, "")),
            None => ("1", part),
        };
        let text = spelt.split('"').nth(index.wrapping_sub(1)).unwrap_or("");
        for _ in 1..times.parse().expect("repetitions") {
            bytes.extend(text.as_bytes());
        }
        let digits: String = hex.split_whitespace().collect();
        assert!(digits.len().is_multiple_of(2), "half a byte: {spelt}");
        for pair in digits.as_bytes().chunks(2) {
            let pair = std::str::from_utf8(pair).expect("ASCII");
            bytes.push(u8::from_str_radix(pair, 16).unwrap_or_else(|_| panic!("no byte: {pair} in {spelt}")));
        }
    }
    bytes
}

pub(super) fn version(word: &str) -> Version {
    match word {
        "3.1" => Version::V3_1,
        "3.1.1" => Version::V3_1_1,
        "5" => Version::V5,
        _ => panic!("no version: {word}"),
    }
}
