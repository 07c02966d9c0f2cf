//! Who a client is by its certificate.

use std::fmt::Write;
use std::net::IpAddr;

use rustls_pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use crate::telemetry::ending::Identity;

/// Most alternative names that are kept: a device has one or two.
const MOST_NAMES: usize = 16;

/// Longest name in bytes that is kept. A longer one is left out and not cut, for a name that was cut is another's name.
const LONGEST: usize = 256;

/// Reads a certificate that was verified.
pub(super) fn read(certificate: &CertificateDer<'_>) -> Option<Identity> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    let common_name = certificate
        .subject()
        .iter_common_name()
        .next()
        .and_then(|name| name.as_str().ok())
        .and_then(|name| printable("", name));
    let extension = certificate.subject_alternative_name().ok().flatten();
    let names = extension
        .iter()
        .flat_map(|extension| &extension.value.general_names);
    let alternative_names = names.filter_map(alternative_name).take(MOST_NAMES).collect();
    let digits = certificate
        .raw_serial()
        .iter()
        .skip_while(|byte| **byte == 0)
        .take(LONGEST);
    let mut serial = String::new();
    for byte in digits {
        // Writing to a String cannot fail.
        let _ = write!(serial, "{byte:02x}");
    }
    Some(Identity {
        common_name,
        alternative_names,
        serial,
    })
}

fn alternative_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => printable("DNS:", name),
        GeneralName::RFC822Name(name) => printable("email:", name),
        GeneralName::URI(name) => printable("URI:", name),
        GeneralName::IPAddress(bytes) => {
            let address = match bytes.len() {
                4 => IpAddr::from(<[u8; 4]>::try_from(*bytes).ok()?),
                16 => IpAddr::from(<[u8; 16]>::try_from(*bytes).ok()?),
                _ => return None,
            };
            Some(format!("IP:{address}"))
        }
        _ => None,
    }
}

/// The name with its kind before it, and with a mark in place of each character that would move a cursor or turn the
/// direction of writing. A mark, since leaving it out would make it another's name.
fn printable(kind: &str, name: &str) -> Option<String> {
    const MARK: char = char::REPLACEMENT_CHARACTER;
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{2069}' | '\u{FEFF}')
    };
    let shown = || name.chars().map(|c| if hidden(c) { MARK } else { c });
    (name.len() <= LONGEST).then(|| kind.chars().chain(shown()).collect())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType, SerialNumber, string::Ia5String};

    use super::*;

    fn certificate(common_names: &[&str], names: Vec<SanType>, serial: &[u8]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Fleet");
        for name in common_names {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        params.subject_alt_names = names;
        params.serial_number = Some(SerialNumber::from_slice(serial));
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn names_and_serial_are_those_of_the_certificate() {
        let text = |text: &str| Ia5String::try_from(text).unwrap();
        let names = vec![
            SanType::DnsName(text("sensor-1.example.com")),
            SanType::Rfc822Name(text("sensor-1@example.com")),
            SanType::URI(text("urn:uuid:0")),
            SanType::IpAddress("10.1.2.3".parse().unwrap()),
            SanType::IpAddress("2001:db8::1".parse().unwrap()),
        ];
        let identity = read(&certificate(&["sensor-1"], names, &[0x0A, 0, 0xFF])).unwrap();
        assert_eq!(
            identity,
            Identity {
                common_name: Some("sensor-1".to_owned()),
                alternative_names: [
                    "DNS:sensor-1.example.com",
                    "email:sensor-1@example.com",
                    "URI:urn:uuid:0",
                    "IP:10.1.2.3",
                    "IP:2001:db8::1"
                ]
                .map(str::to_owned)
                .to_vec(),
                serial: "0a00ff".to_owned(),
            }
        );
    }

    #[test]
    fn a_certificate_without_names_has_a_serial() {
        let identity = read(&certificate(&[], Vec::new(), &[1])).unwrap();
        assert_eq!(
            identity,
            Identity {
                serial: "01".to_owned(),
                ..Identity::default()
            }
        );
        assert_eq!(read(&CertificateDer::from(vec![0x30, 0x03, 1, 1, 1])), None);
    }

    #[test]
    fn what_a_name_could_do_to_a_reader_is_marked_and_not_left_out() {
        for (name, shown) in [
            ("plain", Some("plain")),
            ("grün 日本", Some("grün 日本")),
            ("admin\0.evil", Some("admin\u{FFFD}.evil")),
            ("a\r\nb\u{1b}[31m", Some("a\u{FFFD}\u{FFFD}b\u{FFFD}[31m")),
            ("a\u{202E}b\u{200D}", Some("a\u{FFFD}b\u{FFFD}")),
        ] {
            let identity = read(&certificate(&[name], Vec::new(), &[1])).unwrap();
            assert_eq!(identity.common_name.as_deref(), shown, "{name:?}");
        }
        let longest = "x".repeat(LONGEST);
        assert_eq!(printable("DNS:", &longest).unwrap().len(), LONGEST + 4);
        assert_eq!(printable("", &format!("{longest}x")), None);
        let many = vec![SanType::DnsName(Ia5String::try_from("a.example.com").unwrap()); 100];
        let identity = read(&certificate(&["x"], many, &[1])).unwrap();
        assert_eq!(identity.alternative_names.len(), MOST_NAMES);
    }
}
