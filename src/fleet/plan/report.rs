//! An outcome as a table.

use std::fmt;

use super::{Outcome, Scenario};
use crate::fleet::plan::outcome::HUNDREDTHS;

/// What came of one scenario, for a terminal.
#[derive(Debug)]
pub struct Table<'a> {
    /// What was run.
    pub scenario: &'a Scenario,
    /// What came of it.
    pub outcome: &'a Outcome,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, outcome } = self;
        let row = |f: &mut fmt::Formatter<'_>, label: &str, text: &str| writeln!(f, "  {label:<20} {text}");
        let front = if scenario.proxy.is_some() {
            "through Seawall"
        } else {
            "without a proxy"
        };
        writeln!(f, "{front}")?;
        row(
            f,
            "back again",
            &format!("{} of {} devices", outcome.returned, outcome.devices),
        )?;
        let back = |(hundredths, after): (u64, &Option<f64>)| {
            format!(
                "{hundredths} % {}",
                after.map_or_else(|| "never".to_owned(), duration)
            )
        };
        let backs: Vec<String> = HUNDREDTHS.into_iter().zip(&outcome.back).map(back).collect();
        row(f, "after", &backs.join("   "))?;
        let ideal = f64::from(outcome.devices) / scenario.broker.capacity;
        row(
            f,
            "",
            &format!("the broker could do it in {} at best", duration(ideal)),
        )?;
        row(
            f,
            "broker's capacity",
            &format!(
                "{} of all of it, {} of what those who knocked could fill",
                percent(outcome.goodput),
                percent(outcome.used)
            ),
        )?;
        let [p50, p99, most] = outcome.attempts;
        row(
            f,
            "attempts a device",
            &format!("p50 {p50}   p99 {p99}   most {most}"),
        )?;
        self.sums(f)
    }
}

impl Table<'_> {
    fn sums(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, outcome } = self;
        let sums = outcome.sums;
        let row = |f: &mut fmt::Formatter<'_>, label: &str, text: &str| writeln!(f, "  {label:<20} {text}");
        row(
            f,
            "attempts in all",
            &format!("{}: busiest second {}", sums.knocks, outcome.peak_knocks),
        )?;
        row(
            f,
            "",
            &format!(
                "{} logged in, {} refused, {} shed, {} given up, {} broken",
                sums.logins, sums.refused, sums.shed, sums.gave_up, sums.broken
            ),
        )?;
        row(
            f,
            "the broker saw",
            &format!(
                "{} CONNECTs, at most {} at a time; {} logins were for devices that had left",
                sums.sent, outcome.peak_queued, sums.wasted
            ),
        )?;
        if let Some(proxy) = &scenario.proxy {
            row(
                f,
                "Seawall's CPU",
                &format!(
                    "{} in all, {:.2} cores in the busiest second; a full handshake is {} µs of it",
                    duration(sums.cpu().as_secs_f64()),
                    outcome.peak_cores,
                    proxy.costs.full.as_micros()
                ),
            )?;
            let turned_away = proxy.costs.full + proxy.costs.refused;
            let refusals = turned_away.as_secs_f64() * sums.refused as f64;
            row(
                f,
                "",
                &format!(
                    "{} of it for handshakes of those who were refused then",
                    duration(refusals)
                ),
            )?;
        }
        Ok(())
    }
}

/// Seconds, or minutes where those are easier to read.
pub(super) fn duration(seconds: f64) -> String {
    if seconds < 10.0 {
        format!("{seconds:.1} s")
    } else if seconds < 600.0 {
        format!("{seconds:.0} s")
    } else if seconds < 36_000.0 {
        format!("{:.1} min", seconds / 60.0)
    } else {
        format!("{:.1} h", seconds / 3600.0)
    }
}

/// Of 1.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
