//! Why a handshake failed: the library's errors sorted into the closed set that is counted.

use std::io;

use rustls::{CertificateError, Error, InvalidMessage, PeerIncompatible};

use crate::telemetry::ending::HandshakeFailure;

/// The cause behind an error of a handshake.
pub(super) fn classify(error: &io::Error) -> HandshakeFailure {
    let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return HandshakeFailure::Gone;
    };
    match error {
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType
            | InvalidMessage::UnknownProtocolVersion
            | InvalidMessage::MessageTooLarge
            | InvalidMessage::InvalidEmptyPayload,
        ) => HandshakeFailure::NotTls,
        Error::PeerIncompatible(
            PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::Tls13RequiredForQuic
            | PeerIncompatible::SupportedVersionsExtensionRequired,
        ) => HandshakeFailure::Version,
        Error::PeerIncompatible(_) => HandshakeFailure::NoSharedParameters,
        Error::AlertReceived(_) => HandshakeFailure::ClientAlert,
        Error::NoCertificatesPresented => HandshakeFailure::ClientCertificateMissing,
        Error::InvalidCertificate(error) => of_certificate(error),
        Error::InvalidCertRevocationList(_) => HandshakeFailure::ClientCertificate,
        _ => HandshakeFailure::Protocol,
    }
}

fn of_certificate(error: &CertificateError) -> HandshakeFailure {
    match error {
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => HandshakeFailure::ClientCertificateExpired,
        CertificateError::UnknownIssuer => HandshakeFailure::ClientCertificateUnknownIssuer,
        CertificateError::Revoked => HandshakeFailure::ClientCertificateRevoked,
        CertificateError::ExpiredRevocationList | CertificateError::ExpiredRevocationListContext { .. } => {
            HandshakeFailure::ClientCrlExpired
        }
        _ => HandshakeFailure::ClientCertificate,
    }
}
