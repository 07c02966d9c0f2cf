//! Names those whose pauses have no jitter: clients by kind of id, by protocol and by source, with their policy.

use std::collections::HashMap;

use serde::Serialize;

use super::clients::{Client, Clients};
use super::line::SECOND;
use super::pauses::{self, Policy};
use crate::chart::grouped;

/// Kinds of ids, sources: what is more is summed up.
const MOST_GROUPS: usize = 20_000;
/// Shown of each kind of group.
const SHOWN: usize = 40;
/// From here on a group comes together rather than by chance: for evenly spread clients it is below 0.2 from 25 on.
const LOCKSTEP: f64 = 0.5;

/// Clients of one kind with one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pattern {
    /// What they have in common: `sensor-*`, a protocol, a network.
    pub name: String,
    /// How many.
    pub devices: u64,
    /// How they pause: the median of them.
    #[serde(flatten)]
    pub policy: Policy,
    /// From attempt to attempt, in seconds: the median.
    pub period: f32,
    /// How much they come together within the period, from 0 (spread) to 1 (in one instant). For fixed timers only.
    pub concentration: Option<f64>,
}

/// The patterns of a storm, largest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Patterns {
    /// By kind of client id.
    pub by_client_id: Vec<Pattern>,
    /// By protocol.
    pub by_protocol: Vec<Pattern>,
    /// By source network.
    pub by_source: Vec<Pattern>,
    /// Clients with too few attempts to tell.
    pub unknown: u64,
}

impl Patterns {
    pub(super) fn of(clients: &Clients) -> Self {
        let known: Vec<(&Client, Policy)> = clients
            .iter()
            .map(|client| (client, client.policy()))
            .filter(|(_, policy)| *policy != Policy::Unknown)
            .collect();
        Self {
            by_client_id: patterns(&known, |client| kind_of(clients.name(client))),
            by_protocol: patterns(&known, |client| clients.words.get(client.protocol).to_owned()),
            by_source: patterns(&known, |client| client.source.to_string()),
            unknown: clients.iter().count() as u64 - known.len() as u64,
        }
    }
}

impl Pattern {
    /// In a sentence: "1,204 devices of `sensor-*` retry every 5.00 s in lockstep (phase concentration 0.97)".
    pub fn sentence(&self, of: &str) -> String {
        let who = match self.devices {
            1 => format!("1 device {of} `{}`", self.name),
            devices => format!("{} devices {of} `{}`", grouped(devices), self.name),
        };
        let s = if self.devices == 1 { "s" } else { "" };
        match self.policy {
            Policy::Fixed { pause } => {
                let concentration = self.concentration.unwrap_or_default();
                let how = if self.devices > 1 && concentration >= LOCKSTEP {
                    "in lockstep"
                } else {
                    "without jitter"
                };
                let verb = if self.devices == 1 { "retries" } else { "retry" };
                format!("{who} {verb} every {pause:.2} s {how} (phase concentration {concentration:.2})")
            }
            Policy::Exponential { pause, factor } => {
                format!(
                    "{who} back{s} off without jitter, from {pause:.2} s and {factor} times longer each time"
                )
            }
            Policy::Jittered { pause } => format!("{who} jitter{s} the pauses, {pause:.2} s long on average"),
            Policy::Unknown => format!("{who}: too few attempts to tell"),
        }
    }

    /// Whether these have no jitter.
    pub fn is_unjittered(&self) -> bool {
        matches!(self.policy, Policy::Fixed { .. } | Policy::Exponential { .. })
    }
}

/// What clients of one group share beside its name. Fixed timers are set to round times: half a second below ten, a
/// second below a minute, ten above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shape {
    Fixed { halves: u32 },
    Exponential { tenths: u32 },
    Jittered,
}

impl Shape {
    fn of(policy: Policy) -> Option<Self> {
        match policy {
            Policy::Fixed { pause } => {
                let grain = match pause {
                    ..10.0 => 1.0,
                    ..60.0 => 2.0,
                    _ => 20.0,
                };
                Some(Self::Fixed {
                    halves: ((pause * 2.0 / grain).round() * grain) as u32,
                })
            }
            Policy::Exponential { factor, .. } => Some(Self::Exponential {
                tenths: (factor * 10.0).round() as u32,
            }),
            Policy::Jittered { .. } => Some(Self::Jittered),
            Policy::Unknown => None,
        }
    }
}

#[derive(Default)]
struct Group {
    pauses: Vec<f32>,
    periods: Vec<f32>,
    /// Of the second attempts, in seconds. The first ones tell of the outage, later ones drift.
    moments: Vec<f64>,
}

fn patterns(clients: &[(&Client, Policy)], name: impl Fn(&Client) -> String) -> Vec<Pattern> {
    let mut groups: HashMap<(String, Shape), Group> = HashMap::new();
    for (client, policy) in clients {
        let Some(shape) = Shape::of(*policy) else { continue };
        let mut key = (name(client), shape);
        if groups.len() >= MOST_GROUPS && !groups.contains_key(&key) {
            "others".clone_into(&mut key.0);
        }
        let group = groups.entry(key).or_default();
        group.pauses.push(pause_of(*policy));
        group.periods.push(client.period().unwrap_or_default());
        if matches!(shape, Shape::Fixed { .. }) {
            group.moments.push(client.second as f64 / SECOND as f64);
        }
    }
    let mut found: Vec<Pattern> = groups
        .into_iter()
        .map(|((name, shape), group)| pattern(name, shape, group))
        .collect();
    found.sort_by(|a, b| b.devices.cmp(&a.devices).then_with(|| a.name.cmp(&b.name)));
    found.truncate(SHOWN);
    found
}

fn pattern(name: String, shape: Shape, mut group: Group) -> Pattern {
    let pause = median(&mut group.pauses);
    let period = median(&mut group.periods);
    let (policy, concentration) = match shape {
        Shape::Fixed { .. } => (
            Policy::Fixed { pause },
            Some(pauses::concentration(
                group.moments.into_iter(),
                f64::from(period),
            )),
        ),
        Shape::Exponential { tenths } => {
            let factor = tenths as f32 / 10.0;
            (Policy::Exponential { pause, factor }, None)
        }
        Shape::Jittered => (Policy::Jittered { pause }, None),
    };
    Pattern {
        name,
        devices: group.periods.len() as u64,
        policy,
        period,
        concentration,
    }
}

fn pause_of(policy: Policy) -> f32 {
    match policy {
        Policy::Fixed { pause } | Policy::Exponential { pause, .. } | Policy::Jittered { pause } => pause,
        Policy::Unknown => 0.0,
    }
}

fn median(values: &mut [f32]) -> f32 {
    values.sort_unstable_by(f32::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The part of a client id that its kind has in common: what stands before the first part that counts or identifies.
/// `sensor-000042` and `sensor-7f3a` are `sensor-*`, `esp32_AABBCC` is `esp32_*`, `kitchen-lamp` is `kitchen-*`.
pub(super) fn kind_of(id: &str) -> String {
    const SEPARATORS: [char; 6] = ['-', '_', ':', '/', '.', '@'];
    let mut kept = 0;
    let mut rest = id;
    while let Some(end) = rest.find(SEPARATORS) {
        let (part, after) = rest.split_at(end);
        if part.is_empty() || identifies(part) {
            break;
        }
        let separator = after.chars().next().map_or(0, char::len_utf8);
        kept += end + separator;
        rest = after.get(separator..).unwrap_or_default();
    }
    if kept == 0 {
        let letters = id
            .find(|character: char| !character.is_alphabetic())
            .unwrap_or(id.len());
        let word = id.get(..letters).unwrap_or_default();
        // A word alone, or with its number behind it. Letters of a hash are no word.
        let is_word =
            word.chars().count() >= 2 && !(identifies(id) && word.chars().all(|c| c.is_ascii_hexdigit()));
        kept = if is_word { letters } else { 0 };
        if kept == id.len() && kept > 0 {
            return id.to_owned();
        }
    }
    format!("{}*", id.get(..kept).unwrap_or_default())
}

/// A number, or digits that look like those of a hash or an address.
fn identifies(part: &str) -> bool {
    let digits = part.bytes().filter(u8::is_ascii_digit).count();
    let hexadecimal = part.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits == part.len() || (hexadecimal && (digits > 0 || part.len() >= 8) && part.len() >= 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_a_kind_share_their_beginning() {
        for (id, expected) in [
            ("sensor-000042", "sensor-*"),
            ("sensor-7f3a", "sensor-*"),
            ("esp32_AABBCC", "esp32_*"),
            ("kitchen-lamp", "kitchen-*"),
            ("site-north-pump-7", "site-north-pump-*"),
            ("site-12-pump-7", "site-*"),
            ("sensor42", "sensor*"),
            ("3f2504e0-4f89-11d3-9a0c-0305e82c3301", "*"),
            ("deadbeef01", "*"),
            ("00:1B:44:11:3A:B7", "*"),
            ("gateway", "gateway"),
            ("Zähler/7", "Zähler/*"),
            ("", "*"),
            ("7", "*"),
            ("-", "*"),
        ] {
            assert_eq!(kind_of(id), expected, "{id}");
        }
    }

    #[test]
    fn a_pattern_is_a_sentence() {
        let pattern = |devices, policy, concentration| Pattern {
            name: "sensor-*".into(),
            devices,
            policy,
            period: 5.0,
            concentration,
        };
        for (pattern, expected) in [
            (
                pattern(1204, Policy::Fixed { pause: 5.0 }, Some(0.974)),
                "1,204 devices of `sensor-*` retry every 5.00 s in lockstep (phase concentration 0.97)",
            ),
            (
                pattern(7, Policy::Fixed { pause: 5.0 }, Some(0.1)),
                "7 devices of `sensor-*` retry every 5.00 s without jitter (phase concentration 0.10)",
            ),
            (
                pattern(
                    1,
                    Policy::Exponential {
                        pause: 1.0,
                        factor: 2.0,
                    },
                    None,
                ),
                "1 device of `sensor-*` backs off without jitter, from 1.00 s and 2 times longer each time",
            ),
            (
                pattern(2, Policy::Jittered { pause: 3.21 }, None),
                "2 devices of `sensor-*` jitter the pauses, 3.21 s long on average",
            ),
        ] {
            assert_eq!(pattern.sentence("of"), expected);
        }
    }
}
