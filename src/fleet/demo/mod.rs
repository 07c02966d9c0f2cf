//! Everything in one process: certificates, a broker, Seawall in front of it, and a fleet that loses its tower and
//! comes back.

mod stage;

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::signal::unix::{SignalKind, signal};

use super::broker::{self, Behaviour, Broker};
use super::bystander::BystanderError;
use super::certificates::{self, Certificates, CertificatesError};
use super::client::{Target, Tls};
pub use super::storm::Report;
use super::trust::{self, Trust, TrustError, Versions};
use crate::app::{self, Running, StartError};
use crate::config::{self, Config, Mistakes, Sources};
use crate::listener;
use crate::reconnect::{Policy, ScheduleError};
use stage::{FILL_LIMIT, Stage};

/// CONNECTs a second that the embedded broker's authentication serves: that of a Mosquitto whose password hashes take
/// 10 ms. 2,000 devices then need 20 s at best, which is long enough to watch.
const CAPACITY: f64 = 100.0;
/// Share of the broker's capacity that is let through: the rest is for those who come by another way, and for error.
const RATE_SHARE: f64 = 0.8;
/// Unanswered CONNECTs at the broker: one that is served, and enough behind it that it is never idle.
const MAX_IN_FLIGHT: u32 = 4;
/// A device gives up after 5 s. What is held longer than this would be served for nobody.
const MAX_WAIT: Duration = Duration::from_secs(4);
/// Publisher and subscriber pairs that are connected throughout.
const PAIRS: usize = 20;
/// Descriptors that are not a device's: listeners, runtimes, bystanders, sockets that linger after a refusal.
const RESERVED_DESCRIPTORS: u64 = 512;

/// What the demo shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Devices in the fleet, at least one; fewer where the descriptor limit asks for it.
    pub devices: usize,
    /// When they try again.
    pub policy: Policy,
    /// `admission.rate`; `None`: 80 % of the embedded broker's capacity.
    pub rate: Option<f64>,
    /// Keep running after the storm, until interrupted.
    pub stay: bool,
    /// `HOST:PORT` of a broker that is used instead of the embedded one.
    pub upstream: Option<String>,
    /// Folder for the certificates.
    pub certificates: PathBuf,
    /// `audit.path` of the proxy; `None`: no audit log.
    pub audit: Option<PathBuf>,
}

/// Why there was nothing to see.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The certificates can't be written: the folder's, mostly.
    #[error(transparent)]
    Certificates(#[from] CertificatesError),
    /// A rate or an upstream that the configuration refuses: the caller's.
    #[error(transparent)]
    Configuration(#[from] Mistakes),
    /// The proxy can't be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The operating system's: no port, no thread, no output.
    #[error("the operating system refuses: {0}")]
    System(#[from] io::Error),
    /// No way through proxy and broker: with `--upstream` the broker's, mostly.
    #[error(transparent)]
    Bystanders(#[from] BystanderError),
    /// Not all devices could connect even without a storm.
    #[error("only {connected} of {devices} devices could connect within {} s", FILL_LIMIT.as_secs())]
    NotFilled {
        /// Devices that did.
        connected: usize,
        /// Devices in the fleet.
        devices: usize,
    },
    /// A bug of ours, or of the TLS library's.
    #[error(transparent)]
    Tls(#[from] TrustError),
    /// A bug of ours.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

/// Runs the demo and tells `out` how it goes, a line a second and a table at the end.
pub async fn run(options: &Options, out: &mut impl Write) -> Result<Report, DemoError> {
    let descriptors = listener::raise_descriptor_limit();
    let devices = fitted(options.devices, descriptors, options.upstream.is_none());
    let certificates = certificates::write(&options.certificates, &[])?;
    let broker = match options.upstream {
        None => Some(embedded_broker().await?),
        Some(_) => None,
    };
    let config = configuration(options, devices, &certificates, broker.as_ref())?;
    let storm_rules = config.admission.clone();
    let proxy = app::start(config).await?;
    let target = target(&proxy, &certificates)?;
    let stage = Stage {
        options,
        devices,
        descriptors,
        certificates,
        broker,
        proxy,
        target,
        storm_rules,
    };
    stage.introduce(out)?;

    let (report, fleet) = stage.storm(out).await?;
    writeln!(out, "\n{}\n{report}", report.charts())?;
    if options.stay {
        writeln!(out, "The fleet stays connected. Ctrl-C ends.")?;
        out.flush()?;
        interrupted().await?;
    }
    drop(fleet);
    stage.proxy.drain().await;
    Ok(report)
}

/// Ctrl-C, or the SIGTERM of a service manager.
async fn interrupted() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupt = tokio::signal::ctrl_c() => interrupt,
        _ = terminate.recv() => Ok(()),
    }
}

/// As many devices as the descriptors are good for. In one process each costs its own socket, the proxy's two, and the
/// embedded broker's.
fn fitted(wanted: usize, descriptors: u64, embedded: bool) -> usize {
    let each = if embedded { 4 } else { 3 };
    let enough_for = descriptors.saturating_sub(RESERVED_DESCRIPTORS) / each;
    wanted
        .min(usize::try_from(enough_for).unwrap_or(usize::MAX))
        .max(1)
}

async fn embedded_broker() -> io::Result<Broker> {
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    Broker::start(broker::Settings {
        address,
        servers: 1,
        behaviour: UNHURRIED,
    })
    .await
}

fn configuration(
    options: &Options,
    devices: usize,
    certificates: &Certificates,
    broker: Option<&Broker>,
) -> Result<Config, Mistakes> {
    let rate = options.rate.unwrap_or(CAPACITY * RATE_SHARE);
    let upstream = match (&options.upstream, broker) {
        (Some(upstream), _) => upstream.clone(),
        (None, broker) => broker
            .map(|broker| broker.address().to_string())
            .unwrap_or_default(),
    };
    let mut set = vec![
        "listen.addresses=127.0.0.1:0".to_owned(),
        // Whoever ends the demo is not to wait.
        "drain.spread=0s".to_owned(),
        format!("listen.max_connections={}", devices + 2 * PAIRS + 100),
        format!("tls.certificate={}", certificates.server.display()),
        format!("tls.private_key={}", certificates.server_key.display()),
        format!("admission.rate={rate}"),
        format!("admission.burst={}", rate.max(1.0)),
        format!("admission.max_in_flight={MAX_IN_FLIGHT}"),
        format!("admission.max_wait={}s", MAX_WAIT.as_secs()),
        format!("upstream.servers={upstream}"),
        "admin.address=127.0.0.1:0".to_owned(),
    ];
    set.extend(
        options
            .audit
            .iter()
            .map(|path| format!("audit.path={}", path.display())),
    );
    config::load(&Sources {
        set,
        ..Sources::default()
    })
}

fn target(proxy: &Running, certificates: &Certificates) -> Result<Target, DemoError> {
    let address = proxy
        .addresses()
        .first()
        .copied()
        .ok_or_else(|| io::Error::other("no address is bound"))?;
    let config = trust::client_config(&trust::Settings {
        versions: Versions::Any,
        trust: Trust::Authorities(certificates.ca.clone()),
        client: None,
        resumes: true,
    })?;
    let tls = Tls {
        config: Arc::new(config),
        server_name: ServerName::IpAddress(address.ip().into()),
    };
    Ok(Target {
        address,
        tls: Some(tls),
    })
}

/// While the fleet fills.
const UNHURRIED: Behaviour = Behaviour {
    service_time: Duration::ZERO,
    answer: broker::Answer::Accept,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_is_fitted_to_the_descriptors() {
        assert_eq!(fitted(2000, 20_000, true), 2000);
        assert_eq!(fitted(2000, 4096, true), 896);
        assert_eq!(fitted(2000, 4096, false), 1194);
        assert_eq!(fitted(2000, 100, true), 1);
        assert_eq!(
            fitted(usize::MAX, u64::MAX, true),
            usize::try_from((u64::MAX - 512) / 4).unwrap()
        );
    }
}
