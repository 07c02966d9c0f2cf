//! The log, on stderr, without colours: journald and containers take it from there. Nothing that a peer can cause at
//! will is above `debug`, so a blocked stderr can't stop the daemon unless an operator asked for `debug`.

use std::io;

use tracing_subscriber::filter::{Filtered, LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

/// `[log]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Least level that is written; also `tracing` filter directives.
    pub level: String,
    /// How a line looks.
    pub format: Format,
}

/// `log.format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people and journald.
    Text,
    /// One JSON object a line.
    Json,
}

/// Why there is no log: the first is the operator's fault, the second ours.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// See [`BadLevel`].
    #[error("log.level: {0}")]
    Level(#[from] BadLevel),
    /// A subscriber was installed before.
    #[error("the log was set up twice")]
    Twice,
    /// The subscriber is not there any more.
    #[error("the log is gone")]
    Gone,
}

/// `log.level` is neither a level nor a list of directives.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is neither a level (off, error, warn, info, debug, trace) nor TARGET=LEVEL, like \"seawall::relay=debug\""
)]
pub struct BadLevel {
    /// The part between two commas that was not understood.
    pub found: String,
}

/// The running log.
pub struct Handle(reload::Handle<Lines, Registry>);

type Lines = Filtered<Box<dyn Layer<Registry> + Send + Sync>, Targets, Registry>;

/// Sends the process's log to stderr from here on; once a process.
pub fn start(settings: &Settings) -> Result<Handle, LogError> {
    let (lines, handle) = reloadable(settings, io::stderr)?;
    let subscriber = tracing_subscriber::registry().with(lines);
    subscriber.try_init().map_err(|_| LogError::Twice)?;
    Ok(handle)
}

impl Handle {
    /// Goes by other settings from here on.
    pub fn reconfigure(&self, settings: &Settings) -> Result<(), LogError> {
        self.write_to(settings, io::stderr)
    }

    fn write_to<W>(&self, settings: &Settings, writer: W) -> Result<(), LogError>
    where
        W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
    {
        let filter = filter(&settings.level)?;
        let changed = self.0.modify(|kept| {
            // Not another layer as a whole: this one is known to its subscriber.
            *kept.filter_mut() = filter;
            *kept.inner_mut() = lines(settings.format, writer);
        });
        changed.map_err(|_| LogError::Gone)
    }
}

fn reloadable<W>(settings: &Settings, writer: W) -> Result<(reload::Layer<Lines, Registry>, Handle), BadLevel>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = filter(&settings.level)?;
    let (layer, handle) = reload::Layer::new(lines(settings.format, writer).with_filter(filter));
    Ok((layer, Handle(handle)))
}

/// Whether [`start`] would take this level.
pub fn check(level: &str) -> Result<(), BadLevel> {
    filter(level).map(|_| ())
}

/// How a line looks and where it goes. Strings of peers are fields, which both formats quote and escape.
fn lines<W>(format: Format, writer: W) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(false);
    match format {
        Format::Text => lines.boxed(),
        Format::Json => lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .boxed(),
    }
}

/// `LEVEL`, or `TARGET=LEVEL` and `LEVEL` in any order with commas between. Stricter than `tracing` itself, which
/// takes a mistyped level for the name of a target and then writes nothing.
fn filter(level: &str) -> Result<Targets, BadLevel> {
    let mut targets = Targets::new();
    for directive in level.split(',').map(str::trim) {
        let (target, level) = match directive.split_once('=') {
            Some((target, level)) => (Some(target.trim()), level.trim()),
            None => (None, directive),
        };
        let bad = || BadLevel {
            found: directive.to_owned(),
        };
        let level = level_filter(level).ok_or_else(bad)?;
        targets = match target {
            None => targets.with_default(level),
            Some("") => return Err(bad()),
            Some(target) => targets.with_target(target, level),
        };
    }
    Ok(targets)
}

fn level_filter(word: &str) -> Option<LevelFilter> {
    Some(match word.to_ascii_lowercase().as_str() {
        "off" => LevelFilter::OFF,
        "error" => LevelFilter::ERROR,
        "warn" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tracing::Level;

    use super::*;
    use crate::telemetry::Telemetry;
    use crate::telemetry::ending::{Attempt, Decision, Ending, Phase, Side};
    use crate::telemetry::metrics::Metrics;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The debug line of a connection whose client id is `client_id`.
    fn line(format: Format, client_id: &str) -> String {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::registry().with(lines(format, move || writer.clone()));
        let mut attempt = Attempt::new(7, (Ipv4Addr::LOCALHOST, 4000).into());
        attempt.client_id = Some(client_id.to_owned());
        attempt.decision = Some(Decision::TimedOut);
        let ending = Ending {
            side: Side::Proxy,
            phase: Phase::Connect,
            cause: "no CONNECT in time",
            lasted: Duration::from_millis(15_001),
            bytes_up: 2,
            bytes_down: 0,
        };
        tracing::subscriber::with_default(subscriber, || {
            Telemetry::new(Metrics::new(&[], &[]).unwrap()).record(&mut attempt, &ending);
        });
        let bytes = written.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_client_id_can_neither_forge_a_line_nor_steer_a_terminal() {
        let client_id = "a\" side=\"broker\"\n2026-11-29 ERROR \u{1b}[31m\u{202e}";
        let text = line(Format::Text, client_id);
        assert_eq!(text.lines().count(), 1, "{text:?}");
        let quoted = r#"client_id="a\" side=\"broker\"\n2026-11-29 ERROR \u{1b}[31m\u{202e}""#;
        assert!(text.contains(quoted), "{text:?}");
        assert!(
            text.contains("cause=\"no CONNECT in time\" lasted_ms=15001"),
            "{text:?}"
        );

        let json = line(Format::Json, client_id);
        assert_eq!(json.lines().count(), 1, "{json:?}");
        assert!(!json.contains('\u{1b}'), "{json:?}");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["client_id"], client_id);
        assert_eq!(
            (&json["message"], &json["connection"]),
            (&"connection ended".into(), &7.into())
        );
    }

    #[test]
    fn a_level_and_directives_are_taken() {
        for (text, target, level, written) in [
            ("info", "seawall", Level::INFO, true),
            ("info", "seawall", Level::DEBUG, false),
            ("WARN", "seawall", Level::INFO, false),
            ("off", "seawall", Level::ERROR, false),
            ("warn,seawall::relay=debug", "seawall::relay", Level::DEBUG, true),
            ("warn,seawall::relay=debug", "seawall::tls", Level::INFO, false),
            ("seawall::relay=trace , error", "seawall::tls", Level::ERROR, true),
        ] {
            assert_eq!(
                filter(text).unwrap().would_enable(target, &level),
                written,
                "{text} {target} {level}"
            );
        }
    }

    #[test]
    fn level_and_format_change_while_it_runs() {
        let settings = |level: &str, format| Settings {
            level: level.to_owned(),
            format,
        };
        let written = Written::default();
        let writer = written.clone();
        let writer = move || writer.clone();
        let (lines, handle) = reloadable(&settings("warn", Format::Text), writer.clone()).unwrap();
        let subscriber = tracing_subscriber::registry().with(lines);
        tracing::subscriber::with_default(subscriber, || {
            for (number, level, format) in [
                (1, "warn", Format::Text),
                (2, "info", Format::Json),
                (3, "error", Format::Json),
                (4, "info", Format::Text),
            ] {
                handle.write_to(&settings(level, format), writer.clone()).unwrap();
                tracing::info!(number, "said");
            }
        });
        let bytes = written.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        let json: serde_json::Value = serde_json::from_str(lines[0]).unwrap();
        assert_eq!(json["number"], 2);
        assert!(lines[1].ends_with("said number=4"), "{text}");
    }

    #[test]
    fn a_mistyped_level_is_named_instead_of_silencing_the_log() {
        for (text, found) in [
            ("inof", "inof"),
            ("", ""),
            ("info,", ""),
            ("warn,seawall=loud", "seawall=loud"),
            ("=debug", "=debug"),
        ] {
            assert_eq!(
                check(text),
                Err(BadLevel {
                    found: found.to_owned()
                }),
                "{text}"
            );
        }
        let message = LogError::from(check("inof").unwrap_err()).to_string();
        assert!(
            message.starts_with("log.level: \"inof\" is neither a level (off, error, warn,"),
            "{message}"
        );
    }
}
