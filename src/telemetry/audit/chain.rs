//! The chain: each line carries, as its last field, the SHA-256 of the line before it. So a line that was changed,
//! removed, added or moved shows at the line after it.

use aws_lc_rs::digest::{SHA256, digest};

/// How a line ends, with the link in between.
const FIELD: &[u8] = b"\"prev\":\"";
const CLOSE: &[u8] = b"\"}";

/// The SHA-256 of a line without its line feed, as 64 hex digits in lower case.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Link([u8; 64]);

/// Why a line does not follow the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// It does not end with `"prev":"…"}`: it was cut, or is no line of an audit log.
    #[error("the line carries no hash of the line before it")]
    NoLink,
    /// The line before it is another than the one it was written after.
    #[error("the line was written after a line with the hash {link}, not after the one before it")]
    OtherLine {
        /// What the line says of the one before it.
        link: Link,
    },
}

impl Link {
    /// What the very first line of a chain carries.
    pub const FIRST: Self = Self([b'0'; 64]);

    /// The link that the line after `line` has to carry. `line` is without its line feed.
    pub fn of(line: &[u8]) -> Self {
        let mut hex = [b'0'; 64];
        for (pair, byte) in hex
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(digest(&SHA256, line).as_ref())
        {
            *pair = [hex_digit(byte >> 4), hex_digit(byte & 0x0f)];
        }
        Self(hex)
    }

    /// The link that `line` itself carries: its `prev`. `None`: it carries none.
    pub fn in_line(line: &[u8]) -> Option<Self> {
        let (_, link) = line.strip_suffix(CLOSE)?.split_last_chunk::<64>()?;
        let rest = line.strip_suffix(CLOSE)?.strip_suffix(link)?;
        (rest.ends_with(FIELD) && link.iter().all(|digit| is_hex_digit(*digit))).then_some(Self(*link))
    }

    /// From 64 hex digits in lower case.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: [u8; 64] = text.as_bytes().try_into().ok()?;
        digits
            .iter()
            .all(|digit| is_hex_digit(*digit))
            .then_some(Self(digits))
    }

    /// The 64 hex digits.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Holds `line` against the link of the line before it, and returns its own for the line after it.
pub fn follow(before: Link, line: &[u8]) -> Result<Link, Broken> {
    let link = Link::in_line(line).ok_or(Broken::NoLink)?;
    if link != before {
        return Err(Broken::OtherLine { link });
    }
    Ok(Link::of(line))
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

const fn hex_digit(value: u8) -> u8 {
    match value {
        0..=9 => b'0' + value,
        _ => b'a' + value - 10,
    }
}

const fn is_hex_digit(digit: u8) -> bool {
    matches!(digit, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_the_sha_256_in_lower_case_hex() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(
            Link::of(b"abc").as_str(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(Link::FIRST.as_str(), "0".repeat(64));
        assert_eq!(Link::parse(Link::of(b"abc").as_str()), Some(Link::of(b"abc")));
        assert_eq!(Link::parse("00"), None);
        assert_eq!(Link::parse(&"G".repeat(64)), None);
    }

    #[test]
    fn a_line_follows_only_the_line_that_it_was_written_after() {
        let first = format!("{{\"event\":\"start\",\"prev\":\"{}\"}}", Link::FIRST);
        let link = follow(Link::FIRST, first.as_bytes()).unwrap();
        let second = format!("{{\"event\":\"stop\",\"prev\":\"{link}\"}}");
        assert_eq!(follow(link, second.as_bytes()), Ok(Link::of(second.as_bytes())));
        assert_eq!(
            follow(Link::FIRST, second.as_bytes()),
            Err(Broken::OtherLine { link })
        );
        for line in [
            "",
            "{}",
            &second[..second.len() - 1],
            &format!("{second} "),
            &format!("{{\"next\":\"{link}\"}}"),
            &second.replace(link.as_str(), &link.as_str().to_uppercase()),
            &format!("{link}\"}}"),
        ] {
            assert_eq!(follow(link, line.as_bytes()), Err(Broken::NoLink), "{line}");
        }
    }
}
