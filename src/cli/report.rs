//! `seawall report`.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use super::Failure;
use crate::report;

/// Where `COLUMNS` says nothing: most terminals, and the width of a mail.
const WIDTH: usize = 100;

#[derive(Args, Debug)]
pub(super) struct ReportFlags {
    /// Audit logs: of one or several processes, current and rotated files in any order, plain or gzip
    ///
    /// Files of one folder that differ by what rotation added to their names are one log; replicas have folders or names
    /// of their own. Lines that devices wrote through `seawall::reconnect::audit` are read too.
    #[arg(required = true, value_name = "AUDIT")]
    audit: Vec<PathBuf>,
    /// Write the report as one HTML file with charts as well
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the figures as JSON instead of text
    #[arg(long)]
    json: bool,
    /// CONNECTs a second that the brokers can take [default: the admission rates in the logs]
    #[arg(long, value_name = "R", value_parser = positive)]
    capacity: Option<f64>,
}

pub(super) fn run(flags: &ReportFlags) -> Result<(), Failure> {
    let report = report::read(&flags.audit, flags.capacity)?;
    if let Some(path) = &flags.html {
        fs::write(path, report.to_html()).map_err(|error| Failure::File {
            path: path.clone(),
            error,
        })?;
    }
    let text = if flags.json {
        serde_json::to_string_pretty(&report)
            .map_err(io::Error::from)
            .map_err(Failure::Output)?
            + "\n"
    } else {
        report.to_text(width())
    };
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Whoever reads has seen enough; what is wrong with the chain is still told.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(Failure::Output(error)),
        _ => {}
    }
    match report.logs.iter().find_map(|log| log.first_break.as_ref()) {
        Some(first) => Err(Failure::ChainBroken {
            file: first.file.clone(),
            line: first.line,
        }),
        None => Ok(()),
    }
}

fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok();
    columns.and_then(|columns| columns.parse().ok()).unwrap_or(WIDTH)
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("a number of CONNECTs a second above 0 is needed, such as 200".to_owned()),
    }
}
