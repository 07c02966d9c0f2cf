//! `seawall storm`: flags to settings, a storm, its files, the exit code.

mod flags;
mod settings;

use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;

use self::flags::PartWord;
pub(in crate::cli) use self::flags::StormFlags;
use crate::fleet::storm::{self, Part, Report, StormError};

/// Why there is no report of a fleet that came back.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum StormFailure {
    #[error("{0}")]
    Usage(String),
    #[error("{target}: {source}")]
    Unknown { target: String, source: io::Error },
    #[error(transparent)]
    Storm(#[from] StormError),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("the fleet did not come back")]
    NotBack,
}

impl StormFailure {
    /// The exit code of the contract.
    pub(in crate::cli) const fn code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Storm(StormError::Schedule(_)) => super::USAGE,
            Self::Storm(StormError::System(_)) | Self::File { .. } => super::SYSTEM,
            Self::Unknown { .. }
            | Self::NotBack
            | Self::Storm(StormError::Bystanders(_) | StormError::NotFilled { .. }) => super::FAILED,
        }
    }
}

pub(super) async fn run(flags: StormFlags) -> Result<(), StormFailure> {
    let (part, json, html) = (flags.part, flags.json.clone(), flags.html.clone());
    let settings = flags.settings()?;
    if let Some(PartWord(part)) = part {
        return Ok(storm::run_part(&settings, part).await?);
    }
    // Before the storm, not after it.
    let json = json.map(Output::create).transpose()?;
    let html = html.map(Output::create).transpose()?;
    let report = storm::run(&settings, command_of, &mut io::stdout()).await?;
    if let Some(json) = json {
        json.write(&json_of(&report))?;
    }
    if let Some(html) = html {
        html.write(&report.page())?;
    }
    if report.all_back() {
        Ok(())
    } else {
        Err(StormFailure::NotBack)
    }
}

/// This very command, for a part of the fleet.
fn command_of(part: Part) -> io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command
        .args(env::args_os().skip(1))
        .arg("--part")
        .arg(format!("{}/{}", part.number, part.of));
    Ok(command)
}

fn json_of(report: &Report) -> String {
    // Numbers, strings and lists of them: nothing that JSON could not hold.
    serde_json::to_string_pretty(report).unwrap_or_default() + "\n"
}

struct Output {
    path: PathBuf,
    file: File,
}

impl Output {
    fn create(path: PathBuf) -> Result<Self, StormFailure> {
        match File::create(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(source) => Err(StormFailure::File { path, source }),
        }
    }

    fn write(mut self, text: &str) -> Result<(), StormFailure> {
        self.file
            .write_all(text.as_bytes())
            .map_err(|source| StormFailure::File {
                path: self.path,
                source,
            })
    }
}
