//! Why there is no TLS with a broker, in words for the operator.

use std::borrow::Cow;
use std::io;
use std::net::IpAddr;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

/// No TLS with a broker came about. Its words say what an operator can do.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no name that its certificate could be for.
    #[error("no certificate can be for its name: set upstream.tls.server_name")]
    NoName,
    /// Signed by nobody who is trusted.
    #[error("its certificate is signed by no authority in upstream.tls.ca")]
    UnknownIssuer,
    /// It is somebody else's.
    #[error(
        "its certificate is for {found}, not for {wanted}: upstream.tls.server_name names what it must be for"
    )]
    OtherName {
        /// What was to be in it.
        wanted: String,
        /// What is.
        found: String,
    },
    /// It is past its time, or before it.
    #[error("its certificate is outside its time: {0}")]
    OutsideItsTime(CertificateError),
    /// Something else is wrong with it.
    #[error("its certificate is not good: {0}")]
    BadCertificate(CertificateError),
    /// The broker said no.
    #[error("it refuses us by the alert {}{}", name(*.0), hint(*.0))]
    Refused(AlertDescription),
    /// What it speaks is something else.
    #[error("it does not speak TLS there")]
    NotTls,
    /// It closed in the middle, as one does that expects something else than TLS.
    #[error("it closed the connection during the TLS handshake")]
    Closed,
    /// The library's word, or the system's.
    #[error("the TLS handshake failed: {0}")]
    Broken(io::Error),
    /// The library's word of what came behind a handshake.
    #[error("TLS with it broke off after the handshake: {0}")]
    BrokenOff(Error),
}

/// Longest list of names from a certificate that is shown: who is in between could make it endless.
const LONGEST: usize = 200;

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        // Who does not read all that we say before it closes resets.
        if let io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe =
            error.kind()
        {
            return Self::Closed;
        }
        let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
            return Self::Broken(error);
        };
        match tls {
            Error::InvalidCertificate(error) => of_certificate(error),
            Error::AlertReceived(alert) => Self::Refused(*alert),
            Error::InvalidMessage(
                InvalidMessage::InvalidContentType
                | InvalidMessage::UnknownProtocolVersion
                | InvalidMessage::MessageTooLarge
                | InvalidMessage::InvalidEmptyPayload,
            ) => Self::NotTls,
            _ => Self::Broken(error),
        }
    }
}

/// What TLS says of an error in an established session; `None`: it is not about TLS.
pub fn broken_off(error: &io::Error) -> Option<ConnectError> {
    match error.get_ref()?.downcast_ref::<Error>()? {
        Error::AlertReceived(alert) => Some(ConnectError::Refused(*alert)),
        other => Some(ConnectError::BrokenOff(other.clone())),
    }
}

fn of_certificate(error: &CertificateError) -> ConnectError {
    match error {
        CertificateError::UnknownIssuer => ConnectError::UnknownIssuer,
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => ConnectError::OutsideItsTime(error.clone()),
        CertificateError::NotValidForNameContext { expected, presented } => ConnectError::OtherName {
            wanted: expected.to_str().into_owned(),
            found: if presented.is_empty() {
                "nobody (it has no subjectAltName)".to_owned()
            } else {
                shown(presented)
            },
        },
        _ => ConnectError::BadCertificate(error.clone()),
    }
}

fn shown(names: &[String]) -> String {
    let all = names.iter().map(|name| bare(name)).collect::<Vec<_>>().join(", ");
    let mut shown: String = all.escape_debug().take(LONGEST).collect();
    if all.len() > LONGEST {
        shown.push('…');
    }
    shown
}

/// The library writes the kind of each name around it: `DnsName("broker.example")`, `IpAddress(0::1)`.
fn bare(name: &str) -> Cow<'_, str> {
    let inside = |before, behind| name.strip_prefix(before)?.strip_suffix(behind);
    let quoted = inside("DnsName(\"", "\")").or_else(|| inside("UniformResourceIdentifier(\"", "\")"));
    if let Some(text) = quoted {
        return text.into();
    }
    if let Some(text) = inside("IpAddress(", ")") {
        let address = text.parse::<IpAddr>();
        return address.map_or_else(|_| text.into(), |address| address.to_string().into());
    }
    // A directory name, an e-mail address: nothing that a broker is found by, and the library does not say it.
    "a name of another kind".into()
}

fn name(alert: AlertDescription) -> String {
    format!("{alert:?}")
}

/// What an operator would look at first.
fn hint(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::CertificateRequired => ": it wants a certificate, set upstream.tls.certificate",
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnknownCA => ": look at upstream.tls.certificate",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_as_an_operator_writes_them() {
        for (name, plain) in [
            (r#"DnsName("broker.example")"#, "broker.example"),
            ("IpAddress(192.0.2.1)", "192.0.2.1"),
            ("IpAddress(0::1)", "::1"),
            ("IpAddress(2001:db8:0:0:0:0:0:1)", "2001:db8::1"),
            ("IpAddress([invalid: 01, 02])", "[invalid: 01, 02]"),
            (
                r#"UniformResourceIdentifier("spiffe://example/broker")"#,
                "spiffe://example/broker",
            ),
            ("DirectoryName", "a name of another kind"),
            ("Unsupported(0x01)", "a name of another kind"),
        ] {
            assert_eq!(shown(&[name.to_owned()]), plain, "{name}");
        }
        let several = ["DnsName(\"one\u{7}\")", "IpAddress(0::1)"].map(str::to_owned);
        assert_eq!(shown(&several), "one\\u{7}, ::1");
    }

    /// The handshake is long over when a record can't be decrypted.
    #[test]
    fn what_breaks_off_later_is_no_handshake_that_failed() {
        for (error, words) in [
            (
                Error::DecryptError,
                "TLS with it broke off after the handshake: cannot decrypt peer's message",
            ),
            (
                Error::AlertReceived(AlertDescription::UnknownCA),
                "it refuses us by the alert UnknownCA: look at upstream.tls.certificate",
            ),
        ] {
            let told = broken_off(&io::Error::new(io::ErrorKind::InvalidData, error)).unwrap();
            assert_eq!(told.to_string(), words);
        }
        assert!(broken_off(&io::ErrorKind::ConnectionReset.into()).is_none());
    }
}
