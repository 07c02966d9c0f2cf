//! From what was typed to what is meant.

use std::fs;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;

use super::StormFailure;
use super::flags::{PatternWord, ProtocolWord, StormFlags, TlsWord};
use crate::fleet::bystander;
use crate::fleet::client::{Target, Tls};
use crate::fleet::identity::Credentials;
use crate::fleet::mix::Pauses;
use crate::fleet::population::{Population, Protocol, Sources};
use crate::fleet::storm::{Pattern, Settings, StormError, cores};
use crate::fleet::trust::{self, Trust, TrustError, Versions};

impl StormFlags {
    pub(super) fn settings(self) -> Result<Settings, StormFailure> {
        let address = self.address()?;
        let target = Target {
            address,
            tls: self.transport()?,
        };
        let sources = self.sources(address)?;
        let credentials = self.credentials()?;
        let pattern = self.pattern();
        for (flag, span) in [
            ("--patience", self.device.patience),
            ("--publish-every", self.bystander.publish_every),
        ] {
            if span.is_zero() {
                return Err(usage(format!("{flag} must be above zero")));
            }
        }
        if self.rate.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
            return Err(usage("--rate must be above zero"));
        }
        let bystanders = (self.bystander.pairs > 0).then(|| bystander::Settings {
            pairs: count(self.bystander.pairs),
            pause: self.bystander.publish_every,
            prefix: self.device.client_id.clone(),
            credentials: credentials.clone(),
        });
        let population = Population {
            target,
            numbers: 0..count(self.devices),
            prefix: self.device.client_id,
            mix: self.device.mix,
            pauses: Pauses {
                fixed: self.device.retry,
                base: self.device.base,
                multiplier: self.device.multiplier,
                cap: self.device.cap,
            },
            patience: self.device.patience,
            keep_alive: keep_alive(self.device.keep_alive)?,
            protocol: match self.device.protocol {
                ProtocolWord::V3_1_1 => Protocol::V3_1_1,
                ProtocolWord::V5 => Protocol::V5,
                ProtocolWord::Both => Protocol::Both,
            },
            persistent: self.device.persistent,
            credentials,
            resumes: !self.transport.no_resumption,
            heeds_retry_after: self.device.heed_retry_after,
            sources,
            groups: pattern.groups(),
            boot: pattern.boot(),
            seed: self.device.seed,
        };
        population
            .mix
            .schedules(&population.pauses)
            .map_err(StormError::from)?;
        Ok(Settings {
            population,
            pattern,
            target: self.target,
            bystanders,
            threads: self.generator.threads.map_or_else(cores, count),
            processes: self.generator.processes.map(count),
            calm: self.what.calm,
            fill_limit: self.what.fill_limit,
            limit: self.limit,
            rate: self.rate,
        })
    }

    fn address(&self) -> Result<SocketAddr, StormFailure> {
        let Self { target, .. } = self;
        if host(target).is_none() {
            return Err(usage(format!(
                "--target {target:?} is no HOST:PORT, such as localhost:8883 or [::1]:8883"
            )));
        }
        let found = target.to_socket_addrs().map_err(|source| StormFailure::Unknown {
            target: target.clone(),
            source,
        })?;
        let mut found: Vec<SocketAddr> = found.collect();
        if !self.i_own_this
            && let Some(foreign) = found.iter().find(|address| !address.ip().is_loopback())
        {
            return Err(usage(format!(
                "--target {target} is {}, which is not this machine. A storm takes down what can't stand it, and all \
                 that depends on it. If it is yours, and those who use it know: --i-own-this",
                foreign.ip()
            )));
        }
        // Devices have addresses of their own in IPv4 only.
        found.sort_by_key(SocketAddr::is_ipv6);
        let none = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        found.first().copied().ok_or_else(|| StormFailure::Unknown {
            target: target.clone(),
            source: none(),
        })
    }

    fn transport(&self) -> Result<Option<Tls>, StormFailure> {
        let versions = match self.transport.tls {
            TlsWord::Any => Versions::Any,
            TlsWord::V1_2 => Versions::V1_2,
            TlsWord::V1_3 => Versions::V1_3,
            TlsWord::None => return Ok(None),
        };
        let trust = match (&self.transport.ca, self.transport.insecure) {
            (Some(ca), _) => Trust::Authorities(ca.clone()),
            (None, true) => Trust::Anybody,
            (None, false) => {
                return Err(usage(
                    "whom do the devices trust? --ca FILE, or --insecure for whatever the server presents \
                     (or --tls none)",
                ));
            }
        };
        let name = self
            .transport
            .server_name
            .as_deref()
            .or_else(|| host(&self.target));
        let name = name.unwrap_or_default().to_owned();
        let server_name = ServerName::try_from(name.clone()).map_err(|_| {
            usage(format!(
                "{name:?} is no name that a certificate bears: give another one by --server-name"
            ))
        })?;
        let config = trust::client_config(&trust::Settings {
            versions,
            trust,
            client: self.transport.cert.clone().zip(self.transport.key.clone()),
            resumes: !self.transport.no_resumption,
        })
        .map_err(|error: TrustError| usage(error.to_string()))?;
        Ok(Some(Tls {
            config: Arc::new(config),
            server_name,
        }))
    }

    fn sources(&self, target: SocketAddr) -> Result<Sources, StormFailure> {
        let has_loopback = target.is_ipv4() && target.ip().is_loopback();
        if !self.generator.source.is_empty() {
            return match self
                .generator
                .source
                .iter()
                .find(|own| own.is_ipv4() != target.is_ipv4())
            {
                Some(other) => Err(usage(format!("--source {other} can't reach {}", target.ip()))),
                None => Ok(Sources::These(self.generator.source.clone())),
            };
        }
        match self.generator.sources {
            Some(_) if !has_loopback => Err(usage(
                "--sources is for targets of 127/8; --source ADDRESS,… names addresses of this machine",
            )),
            sources if has_loopback => Ok(Sources::Loopback(count(sources.unwrap_or(self.devices)))),
            _ => Ok(Sources::System),
        }
    }

    fn credentials(&self) -> Result<Option<Credentials>, StormFailure> {
        let Some(username) = self.device.username.clone() else {
            return Ok(None);
        };
        let password = self.device.password_file.as_deref().map(first_line).transpose()?;
        Ok(Some(Credentials { username, password }))
    }

    fn pattern(&self) -> Pattern {
        match self.what.pattern {
            PatternWord::Cold => Pattern::Cold {
                spread: self.what.spread,
            },
            PatternWord::Tower => Pattern::Tower {
                share: self.what.share,
                outage: self.what.outage,
            },
            PatternWord::Restart => Pattern::Restart {
                command: self.what.restart_command.clone(),
            },
            PatternWord::Rolling => Pattern::Rolling {
                parts: self.what.parts,
                every: self.what.every,
                outage: self.what.outage,
            },
        }
    }
}

fn usage(text: impl Into<String>) -> StormFailure {
    StormFailure::Usage(text.into())
}

/// The host of `HOST:PORT`, without brackets.
fn host(target: &str) -> Option<&str> {
    let (host, port) = target.rsplit_once(':')?;
    port.parse::<u16>().ok().filter(|port| *port > 0)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match bare {
        Some(bare) => Some(bare),
        None => (!host.is_empty() && !host.contains(':')).then_some(host),
    }
}

fn first_line(path: &Path) -> Result<Vec<u8>, StormFailure> {
    let bytes = fs::read(path).map_err(|error| usage(format!("{}: {error}", path.display())))?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(line.strip_suffix(b"\r").unwrap_or(line).to_vec())
}

fn keep_alive(span: Duration) -> Result<u16, StormFailure> {
    u16::try_from(span.as_secs())
        .ok()
        .filter(|_| span.subsec_nanos() == 0)
        .ok_or_else(|| usage("--keep-alive is in whole seconds, up to 65535s"))
}

fn count(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::host;

    #[test]
    fn hosts_are_told_from_ports() {
        for (target, expected) in [
            ("localhost:8883", Some("localhost")),
            ("127.0.0.1:1", Some("127.0.0.1")),
            ("[::1]:8883", Some("::1")),
            ("::1:8883", None),
            ("localhost", None),
            ("localhost:", None),
            ("localhost:0", None),
            ("localhost:65536", None),
            (":8883", None),
        ] {
            assert_eq!(host(target), expected, "{target}");
        }
    }
}
