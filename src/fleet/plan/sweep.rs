//! `--sweep rate=50..5000`: one setting, several values.

use std::str::FromStr;
use std::time::Duration;

/// Values of a range without a number of its own: enough to see a knee, few enough to wait for.
const STEPS: u32 = 7;

/// More are no answer but a table.
const MOST: u32 = 100;

/// One setting and the values that it is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// As it was typed.
    pub key: String,
    /// As each would be typed.
    pub values: Vec<String>,
}

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (key, values) = text
            .split_once('=')
            .filter(|(key, values)| !key.trim().is_empty() && !values.trim().is_empty())
            .ok_or("not KEY=FROM..TO, KEY=FROM..TO:STEPS or KEY=VALUE,VALUE")?;
        let values = match values.split_once("..") {
            Some((from, to)) => range(from.trim(), to.trim())?,
            None => values.split(',').map(|value| value.trim().to_owned()).collect(),
        };
        Ok(Self {
            key: key.trim().to_owned(),
            values,
        })
    }
}

/// Evenly spaced by ratio, as rates and times are judged.
fn range(from: &str, to: &str) -> Result<Vec<String>, String> {
    let (to, steps) = match to.split_once(':') {
        Some((to, steps)) => (
            to,
            steps
                .parse()
                .map_err(|_| format!("{steps:?} is no number of steps"))?,
        ),
        None => (to, STEPS),
    };
    if !(2..=MOST).contains(&steps) {
        return Err(format!("2 to {MOST} steps"));
    }
    let (from, to, is_time) = match (from.parse::<f64>(), to.parse::<f64>()) {
        (Ok(from), Ok(to)) => (from, to, false),
        _ => (seconds(from)?, seconds(to)?, true),
    };
    if !(from > 0.0 && from < to && to.is_finite()) {
        return Err("a range goes from a number above 0 to a larger one".to_owned());
    }
    let ratio = (to / from).powf(1.0 / f64::from(steps - 1));
    let value = |step: u32| {
        let value = if step + 1 == steps {
            to
        } else {
            from * ratio.powf(f64::from(step))
        };
        if is_time {
            format!("{}ms", (value * 1000.0).round())
        } else {
            rounded(value)
        }
    };
    Ok((0..steps).map(value).collect())
}

/// Whole where that is as good: counts are swept by the same words as rates.
fn rounded(value: f64) -> String {
    if value >= 10.0 {
        format!("{value:.0}")
    } else {
        format!("{}", (value * 1000.0).round() / 1000.0)
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    crate::config::duration(text)
        .map(|span: Duration| span.as_secs_f64())
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_lists_are_read() {
        for (text, key, values) in [
            ("rate=50..5000:3", "rate", vec!["50", "500", "5000"]),
            (
                "max_wait=1s..4s:3",
                "max_wait",
                vec!["1000ms", "2000ms", "4000ms"],
            ),
            (" cap = 1m , 10m ", "cap", vec!["1m", "10m"]),
            ("capacity=0.5..2:3", "capacity", vec!["0.5", "1", "2"]),
        ] {
            let sweep: Sweep = text.parse().unwrap();
            assert_eq!(
                (sweep.key.as_str(), sweep.values),
                (key, values.into_iter().map(str::to_owned).collect())
            );
        }
        assert_eq!("rate=50..5000".parse::<Sweep>().unwrap().values.len(), 7);
    }

    #[test]
    fn what_is_no_sweep_says_so() {
        for text in [
            "",
            "rate",
            "rate=",
            "=1..2",
            "rate=5..1",
            "rate=0..5",
            "rate=1..2:1",
            "rate=1..2:1000",
            "rate=a..b",
        ] {
            assert!(text.parse::<Sweep>().is_err(), "{text}");
        }
    }
}
