//! What is wrong with a configuration, said so that it can be mended.

use std::fmt;
use std::path::PathBuf;

/// Mistakes printed at a time; the rest is counted. A file that is no configuration at all has one on each line.
const SHOWN: usize = 50;

/// Mistakes in a line of the log; `seawall check` shows the others.
const LOGGED: usize = 8;

/// Where something was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In a file as a whole.
    File(PathBuf),
    /// In a line of a file.
    Line {
        /// The file.
        file: PathBuf,
        /// From 1.
        line: usize,
        /// In characters, from 1.
        column: usize,
        /// Characters that it takes on that line.
        width: usize,
        /// The line as it is.
        source: String,
    },
    /// In an environment variable: its name and value.
    Variable(String, String),
    /// In a `--set`: all of it.
    Flag(String),
}

impl Place {
    /// The same place without the value that stands there.
    pub(super) fn hidden(self) -> Self {
        const HIDDEN: &str = "***";
        match self {
            Self::Line {
                file,
                line,
                column,
                source,
                ..
            } => Self::Line {
                source: source
                    .chars()
                    .take(column.saturating_sub(1))
                    .chain(HIDDEN.chars())
                    .collect(),
                width: HIDDEN.len(),
                file,
                line,
                column,
            },
            Self::Variable(name, _) => Self::Variable(name, HIDDEN.to_owned()),
            Self::Flag(flag) => {
                let key = flag.split('=').next().unwrap_or_default();
                Self::Flag(format!("{key}={HIDDEN}"))
            }
            file @ Self::File(_) => file,
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Where; `None` for what is missing everywhere.
    pub place: Option<Place>,
    /// Path of the key, such as `admission.rate`; empty where no key is concerned.
    pub path: String,
    /// What was found there.
    pub found: String,
    /// What is allowed; empty where there is nothing to choose.
    pub allowed: String,
    /// How to mend it.
    pub hint: Option<String>,
}

/// Everything that is wrong with a configuration, in the order of its lines; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes(Vec<Mistake>);

impl Mistakes {
    /// `None` when there are none.
    pub(super) fn of(mut mistakes: Vec<Mistake>) -> Option<Self> {
        if mistakes.is_empty() {
            return None;
        }
        mistakes.sort_by_key(Mistake::rank);
        let mut distinct: Vec<Mistake> = Vec::with_capacity(mistakes.len());
        for mistake in mistakes {
            if distinct.last() != Some(&mistake) {
                distinct.push(mistake);
            }
        }
        Some(Self(distinct))
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Mistake> {
        self.0.iter()
    }

    /// All of them in one line, for a log.
    pub fn in_a_line(&self) -> String {
        let first: Vec<String> = self.0.iter().take(LOGGED).map(Mistake::in_a_line).collect();
        let more = match self.0.len().saturating_sub(LOGGED) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        format!("{}{more}", first.join("; "))
    }
}

impl Mistake {
    /// One that concerns neither a place nor a key.
    pub(super) fn general(found: String, hint: Option<&str>) -> Self {
        Self {
            place: None,
            path: String::new(),
            found,
            allowed: String::new(),
            hint: hint.map(str::to_owned),
        }
    }

    fn in_a_line(&self) -> String {
        let place = self
            .place
            .as_ref()
            .map(|place| format!("{place}: "))
            .unwrap_or_default();
        let path = if self.path.is_empty() {
            String::new()
        } else {
            format!("{}: ", printable(&self.path))
        };
        let allowed = if self.allowed.is_empty() {
            String::new()
        } else {
            format!(", allowed: {}", self.allowed)
        };
        format!("{place}{path}{}{allowed}", printable(&self.found))
    }

    /// The line of the file that it is in; 0 where it is in none.
    pub(super) fn line(&self) -> usize {
        match &self.place {
            Some(Place::Line { line, .. }) => *line,
            _ => 0,
        }
    }

    /// Files first, by line; then variables, flags, and what is nowhere.
    fn rank(&self) -> (u8, Option<PathBuf>, usize, usize, String, String) {
        let (class, file, line, column) = match &self.place {
            Some(Place::File(file)) => (0, Some(file.clone()), 0, 0),
            Some(Place::Line {
                file, line, column, ..
            }) => (0, Some(file.clone()), *line, *column),
            Some(Place::Variable(..)) => (1, None, 0, 0),
            Some(Place::Flag(_)) => (2, None, 0, 0),
            None => (3, None, 0, 0),
        };
        (class, file, line, column, self.path.clone(), self.found.clone())
    }
}

impl std::error::Error for Mistakes {}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for mistake in self.0.iter().take(SHOWN) {
            writeln!(f, "{mistake}")?;
        }
        if let Some(more) = self.0.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            writeln!(f, "… and {more} more\n")?;
        }
        match self.0.len() {
            1 => write!(f, "1 mistake in the configuration"),
            count => write!(f, "{count} mistakes in the configuration"),
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", printable(&self.path))?;
        }
        writeln!(f, "{}", self.found)?;
        if let Some(Place::Line {
            line,
            column,
            width,
            source,
            ..
        }) = &self.place
        {
            let number = line.to_string();
            let gutter = " ".repeat(number.len());
            let before = " ".repeat(column.saturating_sub(1));
            writeln!(f, " {gutter} |")?;
            writeln!(f, " {number} | {}", printable(source))?;
            writeln!(f, " {gutter} | {before}{}", "^".repeat((*width).max(1)))?;
        }
        if !self.allowed.is_empty() {
            writeln!(f, "  allowed: {}", self.allowed)?;
        }
        if let Some(hint) = &self.hint {
            writeln!(f, "  hint: {hint}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => write!(f, "{}", file.display()),
            Self::Line {
                file, line, column, ..
            } => write!(f, "{}:{line}:{column}", file.display()),
            Self::Variable(name, value) => write!(f, "{}={}", printable(name), printable(value)),
            Self::Flag(flag) => write!(f, "--set {}", printable(flag)),
        }
    }
}

/// `text` as one line of bounded length that cannot move the cursor of a terminal: one character for one, so that
/// the caret under it stays right.
pub(super) fn printable(text: &str) -> String {
    const LONGEST: usize = 160;
    let mut shown: String = text
        .chars()
        .take(LONGEST)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

/// The candidate that `word` was probably meant to be.
pub(super) fn similar<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase().replace('-', "_");
    candidates
        .into_iter()
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(&word, &candidate.replace('-', "_")),
                candidate,
            )
        })
        .filter(|(distance, candidate)| *distance <= (word.len().max(candidate.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}
