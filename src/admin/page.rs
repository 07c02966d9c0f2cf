//! The live page: one document with its style and its script in it, so that it works where nothing else can be
//! reached. The policy that goes with it allows these two by their hashes, and to ask this address for events; whatever
//! else finds its way into the page neither runs nor is fetched.

use std::fmt::Write;

use aws_lc_rs::digest::{SHA256, digest};

const DOCUMENT: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// The document as it is served, and the value of its `Content-Security-Policy`.
pub(super) struct LivePage {
    pub(super) document: String,
    pub(super) policy: String,
}

impl LivePage {
    pub(super) fn new() -> Self {
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; \
             img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            base64(digest(&SHA256, SCRIPT.as_bytes()).as_ref()),
            base64(digest(&SHA256, STYLE.as_bytes()).as_ref()),
        );
        Self {
            document: DOCUMENT.replace("/*style*/", STYLE).replace("/*script*/", SCRIPT),
            policy,
        }
    }
}

/// RFC 4648 section 4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let padded = group.iter().chain([&0; 2]).take(3);
        let bits = padded.fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte));
        for place in 0..4 {
            let letter = ALPHABET
                .get(bits >> (18 - 6 * place) & 63)
                .filter(|_| place <= group.len());
            // Writing to a String cannot fail.
            let _ = write!(text, "{}", letter.map_or('=', |letter| char::from(*letter)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4648 section 10.
    #[test]
    fn base64_is_that_of_its_specification() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xFB, 0xFF]), "+/8=");
    }

    #[test]
    fn the_page_names_no_other_host_and_keeps_its_style_and_script_in_one_place_each() {
        let page = LivePage::new();
        for (begin, end) in [("<style>", "</style>"), ("<script>", "</script>")] {
            assert_eq!(page.document.matches(begin).count(), 1);
            assert_eq!(page.document.matches(end).count(), 1);
        }
        for forbidden in [
            "http:", "https:", "style=\"", "onclick", "onload", "<form", "<button", "<input",
        ] {
            assert!(!page.document.contains(forbidden), "{forbidden}");
        }
        assert!(page.document.len() < 32 * 1024, "{} bytes", page.document.len());
    }
}
