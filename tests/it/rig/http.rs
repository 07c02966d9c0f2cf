//! A raw HTTP GET, and the Prometheus text format.

use super::{PATIENCE, within};
use std::fmt;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What the server said.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

pub async fn get(address: SocketAddr, path: &str) -> Answer {
    request(
        address,
        &format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"),
    )
    .await
}

/// Sends bytes as they are and reads to the end.
pub async fn request(address: SocketAddr, bytes: &str) -> Answer {
    let exchange = async {
        let mut stream = TcpStream::connect(address)
            .await
            .expect("the admin address takes no connection");
        stream.write_all(bytes.as_bytes()).await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        String::from_utf8(all).unwrap()
    };
    let text = within(PATIENCE, bytes.lines().next().unwrap_or_default(), exchange).await;
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no HTTP answer: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    Answer {
        status: status.unwrap_or_else(|| panic!("no status: {head:?}")),
        head: head.to_owned(),
        body: if chunked { unchunk(body) } else { body.to_owned() },
    }
}

fn unchunk(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        whole.push_str(&rest[..size]);
        body = &rest[(size + 2).min(rest.len())..];
    }
    whole
}

/// The samples of one scrape.
pub struct Metrics(Vec<Sample>);

struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Metrics {
    pub fn parse(text: &str) -> Self {
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self(
            lines
                .map(|line| sample(line).unwrap_or_else(|| panic!("no sample: {line:?}")))
                .collect(),
        )
    }

    /// The sum of all series of that name which have these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        // `-0.0` is what an empty float sum gives.
        self.matching(name, labels)
            .map(|sample| sample.value)
            .sum::<f64>()
            + 0.0
    }

    /// Whether there is such a series, be it 0.
    pub fn has(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        self.matching(name, labels).next().is_some()
    }

    /// Every sample: name, labels, value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[(String, String)], f64)> {
        self.0
            .iter()
            .map(|sample| (sample.name.as_str(), sample.labels.as_slice(), sample.value))
    }

    /// Every name there is.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.0.iter().map(|sample| sample.name.as_str()).collect();
        names.dedup();
        names
    }

    /// How many series there are.
    pub fn series(&self) -> usize {
        self.0.len()
    }

    fn matching<'a>(&'a self, name: &'a str, labels: &'a [(&str, &str)]) -> impl Iterator<Item = &'a Sample> {
        self.0.iter().filter(move |sample| {
            sample.name == name
                && labels
                    .iter()
                    .all(|(key, value)| sample.labels.iter().any(|(k, v)| k == key && v == value))
        })
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for sample in self
            .0
            .iter()
            .filter(|sample| sample.value != 0.0 && !sample.name.ends_with("_bucket"))
        {
            writeln!(f, "{} {:?} {}", sample.name, sample.labels, sample.value)?;
        }
        Ok(())
    }
}

/// `name{key="value",…} 1.5`; no label here holds a quote, a comma or a brace.
fn sample(line: &str) -> Option<Sample> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = series
        .split_once('{')
        .map_or((series, ""), |(name, rest)| (name, rest));
    let labels = labels
        .trim_end_matches('}')
        .split(',')
        .filter(|label| !label.is_empty());
    let labels: Option<Vec<_>> = labels
        .map(|label| {
            let (key, value) = label.split_once('=')?;
            Some((key.to_owned(), value.trim_matches('"').to_owned()))
        })
        .collect();
    Some(Sample {
        name: name.to_owned(),
        labels: labels?,
        value: value.parse().ok()?,
    })
}
