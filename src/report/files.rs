//! Which of the named files belong together, and in which order they were written.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::ReportError;

/// Read at once: few system calls for a file of gigabytes.
const READ: usize = 1024 * 1024;

/// The files of one process, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Files {
    /// The path that the process writes: without what rotation and compression added.
    pub(super) path: PathBuf,
    /// At least one.
    pub(super) files: Vec<PathBuf>,
}

/// Puts the files of each log together. Files of one folder whose names differ by a rotation's time or number and by
/// ".gz" are one log; replicas have a folder or a name of their own. Heads are no logs, and skipped: a pattern of the
/// shell names them too.
pub(super) fn group(paths: &[PathBuf]) -> Result<Vec<Files>, ReportError> {
    let mut logs: BTreeMap<PathBuf, BTreeMap<Age, PathBuf>> = BTreeMap::new();
    for path in paths {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let plain = name.strip_suffix(".new").unwrap_or(&name);
        if Path::new(plain)
            .extension()
            .is_some_and(|extension| extension == "head")
        {
            continue;
        }
        // Here, so that a name that leads nowhere is told of before gigabytes are read.
        let real = path.canonicalize().map_err(|source| ReportError::Read {
            path: path.clone(),
            source,
        })?;
        let (stem, age) = parse(&name);
        let log = real.with_file_name(stem);
        logs.entry(log).or_default().insert(age, path.clone());
    }
    if logs.is_empty() {
        return Err(ReportError::NoFile);
    }
    let named = |files: BTreeMap<Age, PathBuf>| {
        let files: Vec<PathBuf> = files.into_values().collect();
        let last = files.last().cloned().unwrap_or_default();
        let name = last
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Files {
            path: last.with_file_name(parse(&name).0),
            files,
        }
    };
    Ok(logs.into_values().map(named).collect())
}

/// Opens a file, compressed or not: its first bytes tell.
pub(super) fn open(path: &Path) -> io::Result<Box<dyn BufRead + Send>> {
    let mut file = BufReader::with_capacity(READ, File::open(path)?);
    if file.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
        return Ok(Box::new(BufReader::with_capacity(
            READ,
            MultiGzDecoder::new(file),
        )));
    }
    Ok(Box::new(file))
}

/// Sorts the files of one log: those with a time by it, then those with a number (the higher the older), then the one
/// that is written. The name is what tells two of one age apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Age {
    Timed(String),
    Numbered(Reverse<u32>, String),
    Current(String),
}

/// The name that is written, and how old the file is among those of its log.
fn parse(name: &str) -> (String, Age) {
    let plain = name.strip_suffix(".gz").unwrap_or(name);
    if let Some((stem, number)) = plain.rsplit_once('.')
        && let Ok(number) = number.parse()
    {
        return (stem.to_owned(), Age::Numbered(Reverse(number), name.to_owned()));
    }
    let (body, extension) = match plain.strip_suffix(".jsonl") {
        Some(body) => (body, ".jsonl"),
        None => (plain, ""),
    };
    // As the daemon names them: -20261129T101500Z-0001; as others do: -20261129.
    let is_stamp = |text: &str| {
        text.len() >= 8
            && text
                .bytes()
                .all(|byte| byte.is_ascii_digit() || b"TZ".contains(&byte))
    };
    let without_number = body
        .rsplit_once('-')
        .filter(|(_, number)| number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_digit()))
        .map_or(body, |(rest, _)| rest);
    match without_number.rsplit_once('-') {
        Some((stem, stamp)) if is_stamp(stamp) => {
            (format!("{stem}{extension}"), Age::Timed(plain.to_owned()))
        }
        _ => (plain.to_owned(), Age::Current(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn files_of_a_log_are_put_in_order_whatever_rotated_them() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("b")).unwrap();
        let names = [
            "audit.jsonl",
            "audit.jsonl.head",
            "audit-20261129T101501Z-0001.jsonl",
            "audit-20261129T101500Z-0002.jsonl.gz",
            "audit-20261129T101500Z-0001.jsonl.gz",
            "b/audit.jsonl",
            "east.log.2.gz",
            "east.log",
            "east.log.1",
            "east.log.10.gz",
        ];
        let paths: Vec<PathBuf> = names.iter().map(|name| folder.path().join(name)).collect();
        for path in &paths {
            fs::write(path, "").unwrap();
        }
        let twice: Vec<PathBuf> = paths.iter().chain(&paths).cloned().collect();
        let logs = group(&twice).unwrap();
        let found: Vec<Vec<&str>> = logs
            .iter()
            .map(|log| {
                let relative = |path: &'_ PathBuf| -> &str {
                    let whole = path.strip_prefix(folder.path()).unwrap().to_str().unwrap();
                    names.iter().find(|name| **name == whole).copied().unwrap()
                };
                log.files.iter().map(relative).collect()
            })
            .collect();
        assert_eq!(
            found,
            [
                vec![
                    "audit-20261129T101500Z-0001.jsonl.gz",
                    "audit-20261129T101500Z-0002.jsonl.gz",
                    "audit-20261129T101501Z-0001.jsonl",
                    "audit.jsonl"
                ],
                vec!["b/audit.jsonl"],
                vec!["east.log.10.gz", "east.log.2.gz", "east.log.1", "east.log"],
            ]
        );
        assert_eq!(logs[0].path, folder.path().join("audit.jsonl"));
        assert_eq!(logs[2].path, folder.path().join("east.log"));
        let nowhere = group(&[folder.path().join("nowhere")]).unwrap_err().to_string();
        assert!(nowhere.contains("nowhere"), "{nowhere}");
        assert!(matches!(group(&paths[1..2]), Err(ReportError::NoFile)));
    }

    #[test]
    fn compressed_files_are_told_by_their_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("any name");
        let member = |text: &str| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(text.as_bytes()).unwrap();
            encoder.finish().unwrap()
        };
        fs::write(&path, [member("one\n"), member("two\n")].concat()).unwrap();
        let mut text = String::new();
        open(&path).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\ntwo\n");
        fs::write(&path, "plain\n").unwrap();
        text.clear();
        open(&path).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "plain\n");
    }
}
