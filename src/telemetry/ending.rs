//! How a connection ended: which side, in which phase, why. Metrics, audit line and debug line come from here alone.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use crate::admission::sources::Exceeded;
use crate::mqtt::Protocol;
use crate::reason::Reason;

/// Where a connection is in its life: label `phase`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Accepted, TLS not up yet.
    Handshake,
    /// TLS is up, the CONNECT is not whole yet.
    Connect,
    /// The CONNECT waits for its turn.
    Held,
    /// Refused, the answer waits for its time.
    Delayed,
    /// The answer is being written and lingered over.
    Refusing,
    /// Admitted: dialling, or waiting for the broker's CONNACK.
    Dialing,
    /// Bytes go both ways.
    Relaying,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Self; 7] = [
        Self::Handshake,
        Self::Connect,
        Self::Held,
        Self::Delayed,
        Self::Refusing,
        Self::Dialing,
        Self::Relaying,
    ];

    /// The metric label and audit word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::Connect => "connect",
            Self::Held => "held",
            Self::Delayed => "delayed",
            Self::Refusing => "refusing",
            Self::Dialing => "dialing",
            Self::Relaying => "relaying",
        }
    }
}

/// Which side ended a connection: label `side`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The downstream peer.
    Client,
    /// The upstream peer.
    Broker,
    /// Seawall.
    Proxy,
}

impl Side {
    /// Every side.
    pub const ALL: [Self; 3] = [Self::Client, Self::Broker, Self::Proxy];

    /// The metric label and audit word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Broker => "broker",
            Self::Proxy => "proxy",
        }
    }
}

/// Why a handshake did not come about: a closed set for the counter's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandshakeFailure {
    /// The deadline passed.
    Timeout,
    /// Its place was taken away: it was the slowest, and others waited.
    TooSlow,
    /// The client went away.
    Gone,
    /// The first bytes are no TLS record: plain MQTT, HTTP, SSH, a scanner.
    NotTls,
    /// No version in common.
    Version,
    /// No cipher suite, group or signature scheme in common.
    NoSharedParameters,
    /// The client sent an alert: it does not accept our certificate, or the like.
    ClientAlert,
    /// A client certificate is required, and the client sent none.
    ClientCertificateMissing,
    /// The client's certificate, or one above it, has expired or is not valid yet.
    ClientCertificateExpired,
    /// No authority of ours signed the client's certificate.
    ClientCertificateUnknownIssuer,
    /// The client's certificate, or one above it, is on a revocation list.
    ClientCertificateRevoked,
    /// The revocation list that would have to say so is past its time: the operator's to renew.
    ClientCrlExpired,
    /// The client's certificate was not accepted for another reason.
    ClientCertificate,
    /// Anything else that breaks TLS.
    Protocol,
}

impl HandshakeFailure {
    /// Every cause.
    pub const ALL: [Self; 14] = [
        Self::Timeout,
        Self::TooSlow,
        Self::Gone,
        Self::NotTls,
        Self::Version,
        Self::NoSharedParameters,
        Self::ClientAlert,
        Self::ClientCertificateMissing,
        Self::ClientCertificateExpired,
        Self::ClientCertificateUnknownIssuer,
        Self::ClientCertificateRevoked,
        Self::ClientCrlExpired,
        Self::ClientCertificate,
        Self::Protocol,
    ];

    /// The metric label.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::TooSlow => "too-slow",
            Self::Gone => "gone",
            Self::NotTls => "not-tls",
            Self::Version => "version",
            Self::NoSharedParameters => "no-shared-parameters",
            Self::ClientAlert => "client-alert",
            Self::ClientCertificateMissing => "client-certificate-missing",
            Self::ClientCertificateExpired => "client-certificate-expired",
            Self::ClientCertificateUnknownIssuer => "client-certificate-unknown-issuer",
            Self::ClientCertificateRevoked => "client-certificate-revoked",
            Self::ClientCrlExpired => "client-crl-expired",
            Self::ClientCertificate => "client-certificate",
            Self::Protocol => "protocol",
        }
    }
}

/// Kind of a finished handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandshakeKind {
    /// With certificate and key exchange.
    Full,
    /// From a ticket.
    Resumed,
}

impl HandshakeKind {
    /// The metric label.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Resumed => "resumed",
        }
    }
}

/// TLS version of a finished handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsVersion {
    /// TLS 1.2.
    V1_2,
    /// TLS 1.3.
    V1_3,
}

impl TlsVersion {
    /// The metric label.
    pub const fn word(self) -> &'static str {
        match self {
            Self::V1_2 => "1.2",
            Self::V1_3 => "1.3",
        }
    }
}

/// A finished handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// Full or resumed.
    pub kind: HandshakeKind,
    /// 1.2 or 1.3.
    pub version: TlsVersion,
    /// Accepted socket to the end of the handshake.
    pub took: Duration,
}

/// Who a client is by its certificate, which was verified. Fit to be logged: control characters are replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The first common name of its subject.
    pub common_name: Option<String>,
    /// Its subject alternative names in the order of the certificate, each with its kind: `DNS:`, `email:`, `URI:`
    /// or `IP:`.
    pub alternative_names: Vec<String>,
    /// Its serial number in lower-case hexadecimal digits, two for each byte.
    pub serial: String,
}

/// What admission made of a CONNECT: label `decision`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Forwarded to a broker.
    Admitted {
        /// In a dry run: why it would have been refused.
        would_refuse: Option<Reason>,
    },
    /// Answered by the proxy.
    Refused(Reason),
    /// Not a legal CONNECT: [`Reason`] says which answer it got, `None` means closed without one as no MQTT at all.
    Invalid(Option<Reason>),
    /// No whole CONNECT within `connect.timeout`.
    TimedOut,
    /// The client left before it was decided.
    Left,
}

/// What is known of one attempt, filled in as the connection goes along.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Number of the connection in this process, from 1.
    pub connection: u64,
    /// When its socket was accepted, by the wall clock; `None`: not known.
    pub accepted: Option<SystemTime>,
    /// The client's address.
    pub source: SocketAddr,
    /// The limit of its address that it is beyond, where a dry run let it in all the same.
    pub would_shed: Option<Exceeded>,
    /// The handshake, once it is over.
    pub handshake: Option<Result<Handshake, HandshakeFailure>>,
    /// Who the client is, where it has shown a certificate.
    pub identity: Option<Box<Identity>>,
    /// Protocol of the CONNECT, once it is read.
    pub protocol: Protocol,
    /// Client identifier, once it is read.
    pub client_id: Option<String>,
    /// Clean session or Clean Start, once it is read.
    pub clean: Option<bool>,
    /// The label of its lane, once it is classified; `None`: "default".
    pub lane: Option<usize>,
    /// The decision, once it is made.
    pub decision: Option<Decision>,
    /// Time spent in the hold, where there was any.
    pub held: Option<Duration>,
    /// The broker's index, once it is dialled.
    pub server: Option<usize>,
    /// The broker's CONNACK code and its latency.
    pub connack: Option<(u8, Duration)>,
    /// What metrics and audit have taken down of it so far.
    pub(super) counted: Counted,
}

/// Which parts of an [`Attempt`] are taken down already: each goes in once, as soon as it is known.
#[derive(Clone, Copy, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "four independent facts, no state machine"
)]
pub(super) struct Counted {
    pub(super) handshake: bool,
    pub(super) decision: bool,
    pub(super) connack: bool,
    /// Whether its line is in the audit log.
    pub(super) audit: bool,
}

impl Counted {
    /// Whether `part` was not taken down before; it is from here on.
    pub(super) fn first(part: &mut bool) -> bool {
        !std::mem::replace(part, true)
    }
}

impl Attempt {
    /// An attempt that has just been accepted.
    pub fn new(connection: u64, source: SocketAddr) -> Self {
        Self {
            connection,
            accepted: None,
            source,
            handshake: None,
            identity: None,
            protocol: Protocol::Other,
            client_id: None,
            clean: None,
            lane: None,
            decision: None,
            held: None,
            server: None,
            connack: None,
            would_shed: None,
            counted: Counted::default(),
        }
    }
}

/// The end of a connection.
#[derive(Clone, Debug)]
pub struct Ending {
    /// Which side ended it.
    pub side: Side,
    /// In which phase.
    pub phase: Phase,
    /// Why, in a few words from a closed set, for the debug line and the audit.
    pub cause: &'static str,
    /// Seconds from accept to the end.
    pub lasted: Duration,
    /// Bytes of the session that went to the broker, from the CONNECT on, without PROXY header and TLS.
    pub bytes_up: u64,
    /// Bytes that went to the client, from the broker's first AUTH or CONNACK on, without TLS.
    pub bytes_down: u64,
}
