//! What a handshake costs this machine: both ends in memory, the server's part timed.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, ServerConfig, ServerConnection};

use super::plan::Costs;

/// Handshakes of each kind that are timed; the median of so many is good to a few per cent on a quiet machine.
const SAMPLES: usize = 301;

/// Each way: two are a handshake with its tickets, one more for chance.
const FLIGHTS: usize = 3;

/// Why nothing was measured: a bug of ours, or of a library's.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// No certificate.
    #[error("no certificate can be made: {0}")]
    Certificate(#[from] rcgen::Error),
    /// No handshake.
    #[error("no handshake can be made: {0}")]
    Tls(#[from] rustls::Error),
    /// Memory that can't be read or written.
    #[error("a handshake in memory broke off: {0}")]
    Memory(#[from] io::Error),
    /// A handshake that should have been resumed was not, or the reverse.
    #[error("a handshake came out as another kind than was asked for")]
    Kind,
}

/// Measures full and resumed handshakes (TLS 1.3, P-256), and takes all other costs as those of the reference machine in proportion.
pub fn costs() -> Result<Costs, CalibrationError> {
    let bench = Bench::new()?;
    let stranger = bench.client(Resumption::disabled())?;
    let full = median(|| bench.handshake(&stranger, Some(HandshakeKind::Full)))?;
    let known = bench.client(Resumption::in_memory_sessions(4))?;
    // The first one fetches the ticket that the second resumes with, and so on.
    bench.handshake(&known, None)?;
    let resumed = median(|| bench.handshake(&known, Some(HandshakeKind::Resumed)))?;
    Ok(Costs::scaled(full, resumed))
}

fn median(
    mut sample: impl FnMut() -> Result<Duration, CalibrationError>,
) -> Result<Duration, CalibrationError> {
    let mut samples = (0..SAMPLES).map(|_| sample()).collect::<Result<Vec<_>, _>>()?;
    samples.sort_unstable();
    Ok(samples.get(SAMPLES / 2).copied().unwrap_or_default())
}

struct Bench {
    server: Arc<ServerConfig>,
    roots: Arc<RootCertStore>,
}

impl Bench {
    fn new() -> Result<Self, CalibrationError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = CertificateParams::new(vec!["localhost".to_owned()])?.self_signed(&key)?;
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone())?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        server.ticketer = aws_lc_rs::Ticketer::new()?;
        Ok(Self {
            server: Arc::new(server),
            roots: Arc::new(roots),
        })
    }

    fn client(&self, resumption: Resumption) -> Result<Arc<ClientConfig>, CalibrationError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(Arc::clone(&self.roots))
            .with_no_client_auth();
        client.resumption = resumption;
        Ok(Arc::new(client))
    }

    /// The server's time for one handshake, which must be of this `kind`; `None`: whatever it is.
    fn handshake(
        &self,
        client: &Arc<ClientConfig>,
        kind: Option<HandshakeKind>,
    ) -> Result<Duration, CalibrationError> {
        let name = ServerName::try_from("localhost").map_err(|_| CalibrationError::Kind)?;
        let mut client = ClientConnection::new(Arc::clone(client), name)?;
        let begun = Instant::now();
        let mut server = ServerConnection::new(Arc::clone(&self.server))?;
        let mut spent = begun.elapsed();
        for _ in 0..FLIGHTS {
            let mut flight = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut flight)?;
            }
            let mut answer = Vec::new();
            let begun = Instant::now();
            let mut rest = flight.as_slice();
            while !rest.is_empty() {
                server.read_tls(&mut rest)?;
                server.process_new_packets()?;
            }
            while server.wants_write() {
                server.write_tls(&mut answer)?;
            }
            spent += begun.elapsed();
            let mut rest = answer.as_slice();
            while !rest.is_empty() {
                client.read_tls(&mut rest)?;
                client.process_new_packets()?;
            }
        }
        match server.handshake_kind() {
            Some(found) if !server.is_handshaking() && kind.is_none_or(|kind| kind == found) => Ok(spent),
            _ => Err(CalibrationError::Kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_measured_and_the_rest_is_in_proportion() {
        let costs = costs().unwrap();
        assert!(!costs.full.is_zero() && !costs.resumed.is_zero());
        let factor = costs.full.as_secs_f64() / Costs::default().full.as_secs_f64();
        let expected = Costs::default().refused.mul_f64(factor);
        assert!(costs.refused.abs_diff(expected) < Duration::from_nanos(10));
    }
}
