//! What happens to a fleet.

use std::fmt;
use std::time::Duration;

/// What happens to a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Nobody is connected; all are switched on within this time.
    Cold {
        /// How long booting takes at most, uniform.
        spread: Duration,
    },
    /// A share of the fleet loses its network and gets it back.
    Tower {
        /// In hundredths, 1 to 100.
        share: u8,
        /// How long the network is away. The devices' policies go on meanwhile.
        outage: Duration,
    },
    /// All connections end at once, and the target is there again at once.
    Restart {
        /// Ends the connections, by a shell; the devices find out by themselves. `None`: the devices close them.
        command: Option<String>,
    },
    /// The fleet loses its network part by part.
    Rolling {
        /// How many parts, at least one.
        parts: u32,
        /// From the loss of one part to that of the next.
        every: Duration,
        /// How long the network of a part is away.
        outage: Duration,
    },
}

impl Pattern {
    /// Relative sizes of the groups that lose their networks together, for [`super::super::population::Population`].
    pub fn groups(&self) -> Vec<u32> {
        match self {
            Self::Cold { .. } | Self::Restart { .. } => vec![1],
            Self::Tower { share, .. } if *share >= 100 => vec![1],
            Self::Tower { share, .. } => vec![u32::from(*share), 100 - u32::from(*share)],
            Self::Rolling { parts, .. } => vec![1; usize::try_from(*parts).unwrap_or(1).max(1)],
        }
    }

    /// Groups that are hit: the first so many.
    pub fn hit(&self) -> usize {
        match self {
            Self::Cold { .. } | Self::Restart { .. } | Self::Tower { .. } => 1,
            Self::Rolling { .. } => self.groups().len(),
        }
    }

    /// For the population: within which time devices are switched on.
    pub fn boot(&self) -> Option<Duration> {
        match self {
            Self::Cold { spread } => Some(*spread),
            _ => None,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cold { spread } => {
                write!(f, "cold start, all switched on within {}", seconds(*spread))
            }
            Self::Tower { share, outage } => {
                write!(f, "{share} % lose their tower for {}", seconds(*outage))
            }
            Self::Restart { command: None } => f.write_str("all connections end at once"),
            Self::Restart {
                command: Some(command),
            } => write!(f, "broker restart by `{command}`"),
            Self::Rolling { parts, every, outage } => write!(
                f,
                "in {parts} parts, one every {}, each away for {}",
                seconds(*every),
                seconds(*outage)
            ),
        }
    }
}

fn seconds(span: Duration) -> String {
    format!("{} s", span.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_that_are_hit_and_the_rest() {
        let outage = Duration::from_secs(5);
        let every = Duration::from_secs(2);
        let tower = |share| Pattern::Tower { share, outage };
        let parts = 3;
        for (pattern, groups, hit) in [
            (Pattern::Cold { spread: every }, vec![1], 1),
            (tower(100), vec![1], 1),
            (tower(30), vec![30, 70], 1),
            (Pattern::Restart { command: None }, vec![1], 1),
            (Pattern::Rolling { parts, every, outage }, vec![1, 1, 1], 3),
        ] {
            assert_eq!((pattern.groups(), pattern.hit()), (groups, hit), "{pattern}");
        }
    }
}
