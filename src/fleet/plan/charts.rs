//! An outcome as charts.

use super::{Outcome, Second};
use crate::chart::{Axis, Lines, Series, Unit};

/// A figure of a second.
type Figure = fn(&Second) -> u32;

/// What the broker worked on, by second.
pub fn logins(outcome: &Outcome) -> Lines {
    Lines {
        title: "Logins a second".into(),
        description: "Logins of devices that were still there, and of devices that had given up.".into(),
        x: since_return(),
        y: Axis::new("logins", Unit::PerSecond),
        series: vec![
            Series::area("useful", by_second(outcome, |second| f64::from(second.logins))),
            Series::line(
                "for nobody",
                by_second(outcome, |second| f64::from(second.wasted)),
            ),
        ],
    }
}

/// What reached the front, by second, and how it was answered.
pub fn arrivals(outcome: &Outcome) -> Lines {
    let series: [(&str, Figure); 5] = [
        ("arrivals", |second| second.knocks),
        ("shed", |second| second.shed),
        ("refused", |second| second.refused),
        ("given up", |second| second.gave_up),
        ("broken", |second| second.broken),
    ];
    let used = series
        .into_iter()
        .filter(|(_, of)| outcome.seconds.iter().any(|second| of(second) > 0));
    Lines {
        title: "Attempts a second".into(),
        description: "Attempts that reached the front, and what became of those that were not admitted."
            .into(),
        x: since_return(),
        y: Axis::new("attempts", Unit::PerSecond),
        series: used
            .map(|(name, of)| Series::line(name, by_second(outcome, |second| f64::from(of(second)))))
            .collect(),
    }
}

/// The share of the fleet that is back, for each of some outcomes with their names.
pub fn returned(outcomes: &[(String, &Outcome)]) -> Lines {
    let series = |(name, outcome): &(String, &Outcome)| {
        let mut sum = 0.0;
        let points = by_second(outcome, |second| f64::from(second.logins));
        let share = |(at, logins): (f64, f64)| {
            sum += logins;
            (at, 100.0 * sum / f64::from(outcome.devices))
        };
        Series::line(name.clone(), points.into_iter().map(share).collect())
    };
    Lines {
        title: "Back again".into(),
        description: "Share of the fleet that is connected.".into(),
        x: since_return(),
        y: Axis::new("connected", Unit::Percent),
        series: outcomes.iter().map(series).collect(),
    }
}

/// Most CONNECTs at the broker, by second.
pub fn queued(outcome: &Outcome) -> Lines {
    Lines {
        title: "CONNECTs at the broker".into(),
        description: "Most CONNECTs that the broker had without an answer, by second.".into(),
        x: since_return(),
        y: Axis::new("CONNECTs", Unit::Count),
        series: vec![Series::area(
            "at the broker",
            by_second(outcome, |second| f64::from(second.queued)),
        )],
    }
}

fn since_return() -> Axis {
    Axis::new("since the network was back", Unit::Seconds)
}

/// Before the network's return there is something to see only where the broker was what failed.
fn by_second(outcome: &Outcome, of: impl Fn(&Second) -> f64) -> Vec<(f64, f64)> {
    (0_u32..)
        .zip(&outcome.seconds)
        .map(|(number, second)| (f64::from(number) - outcome.outage, of(second)))
        .filter(|(at, value)| *at >= 0.0 || *value > 0.0)
        .collect()
}
