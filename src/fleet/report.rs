//! The closing table of a storm.

use std::fmt;
use std::time::Duration;

use super::broker;
use super::bystander::{Latency, Messages};
use super::storm::{Figures, Return};

/// What came of a storm.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Devices in the fleet.
    pub devices: usize,
    /// The shortest time that the admission rate (or the broker's own, where it is lower) allows for all of them.
    pub ideal: Duration,
    /// The returns, in the order of time.
    pub returns: Vec<Return>,
    /// What the devices counted from the loss of the tower on.
    pub devices_counted: Figures,
    /// CONNACK codes that refused, and how often each.
    pub refusals: Vec<(u8, u64)>,
    /// What the broker saw from the loss of the tower on; `None`: it was somebody else's.
    pub broker: Option<broker::Figures>,
    /// The bystanders' latency before the storm.
    pub calm: Latency,
    /// The bystanders' latency from the loss of the tower until all were back.
    pub storm: Latency,
    /// The bystanders' messages, before the storm and during it.
    pub messages: Messages,
}

impl Report {
    /// Whether every device was back in the end.
    pub fn all_back(&self) -> bool {
        self.returns.len() >= self.devices
    }

    /// When so many hundredths of the devices were back, after the tower; `None`: never.
    pub fn back(&self, hundredths: usize) -> Option<Duration> {
        let needed = (self.devices * hundredths).div_ceil(100).max(1);
        self.returns.get(needed - 1).map(|back| back.after)
    }

    /// Attempts of the device at this quantile (0 to 1) of those that are back; `None`: nobody is.
    pub fn attempts(&self, quantile: f64) -> Option<u32> {
        let mut attempts: Vec<u32> = self.returns.iter().map(|back| back.attempts).collect();
        attempts.sort_unstable();
        let last = attempts.len().checked_sub(1)?;
        attempts.get((quantile * last as f64).round() as usize).copied()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, label: &str, text: &str| writeln!(f, "  {label:<20} {text}");
        let back = |hundredths| {
            let after = self.back(hundredths).map_or("never".to_owned(), seconds);
            format!("{hundredths} % {after}")
        };
        let returned = self.returns.len();
        row(
            f,
            "back again",
            &format!("{returned} of {} devices", self.devices),
        )?;
        row(f, "after", &[50, 90, 99, 100].map(back).join("   "))?;
        let ideal = seconds(self.ideal);
        match self.back(100) {
            Some(all) => {
                let times = all.as_secs_f64() / self.ideal.as_secs_f64();
                row(
                    f,
                    "",
                    &format!("{times:.2} times the {ideal} that the rate allows at best"),
                )?;
            }
            None => row(f, "", &format!("the rate allows {ideal} at best"))?,
        }
        if let (Some(p50), Some(p99), Some(most)) =
            (self.attempts(0.5), self.attempts(0.99), self.attempts(1.0))
        {
            row(
                f,
                "attempts a device",
                &format!("p50 {p50}   p99 {p99}   most {most}"),
            )?;
        }
        let Figures {
            arrivals,
            admitted,
            refused,
            broken,
            gave_up,
            ..
        } = self.devices_counted;
        row(
            f,
            "attempts in all",
            &format!(
                "{arrivals}: {admitted} admitted, {refused} refused, {gave_up} given up, {broken} broken"
            ),
        )?;
        if !self.refusals.is_empty() {
            let codes = self
                .refusals
                .iter()
                .map(|(code, times)| format!("{code:#04x} {times}"));
            row(f, "refused by code", &codes.collect::<Vec<_>>().join("   "))?;
        }
        if let Some(broker) = self.broker {
            row(
                f,
                "the broker saw",
                &format!(
                    "{} CONNECTs, {} of them of clients that had left",
                    broker.connects, broker.wasted
                ),
            )?;
        }
        row(f, "bystanders, calm", &latency(self.calm))?;
        row(f, "bystanders, storm", &latency(self.storm))?;
        row(
            f,
            "",
            &format!("{} of {} messages lost", self.messages.lost(), self.messages.sent),
        )
    }
}

fn latency(latency: Latency) -> String {
    let Latency {
        p50_us,
        p99_us,
        max_us,
        ..
    } = latency;
    format!(
        "p50 {}   p99 {}   slowest {}",
        milliseconds(p50_us),
        milliseconds(p99_us),
        milliseconds(max_us)
    )
}

/// Microseconds as milliseconds.
pub(super) fn milliseconds(microseconds: u64) -> String {
    format!("{:.1} ms", microseconds as f64 / 1000.0)
}

fn seconds(span: Duration) -> String {
    format!("{:.1} s", span.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(devices: usize, back: usize) -> Report {
        let returns = (1..=back as u64).zip(1_u32..);
        Report {
            devices,
            ideal: Duration::from_secs(8),
            returns: returns
                .map(|(second, attempts)| Return {
                    after: Duration::from_secs(second),
                    attempts,
                })
                .collect(),
            devices_counted: Figures {
                arrivals: 30,
                admitted: 10,
                refused: 15,
                broken: 2,
                gave_up: 3,
                connected: back,
            },
            refusals: vec![(3, 8), (0x89, 7)],
            broker: Some(broker::Figures {
                connects: 11,
                wasted: 1,
                ..broker::Figures::default()
            }),
            calm: Latency {
                messages: 100,
                p50_us: 300,
                p99_us: 900,
                max_us: 1100,
            },
            storm: Latency {
                messages: 100,
                p50_us: 400,
                p99_us: 2100,
                max_us: 30_000,
            },
            messages: Messages {
                sent: 200,
                received: 198,
            },
        }
    }

    #[test]
    fn shares_are_of_the_devices_and_not_of_those_who_came() {
        let report = report(10, 9);
        assert_eq!(report.back(50), Some(Duration::from_secs(5)));
        assert_eq!(report.back(90), Some(Duration::from_secs(9)));
        assert_eq!(report.back(99), None);
        assert!(!report.all_back());
        assert_eq!(report.attempts(0.5), Some(5));
    }

    #[test]
    fn nobody_back_is_no_division_by_zero() {
        let report = report(10, 0);
        assert_eq!((report.back(50), report.attempts(0.5)), (None, None));
        assert!(report.to_string().contains("0 of 10 devices"), "{report}");
    }

    #[test]
    fn the_table_says_it_all() {
        let expected = "  back again           10 of 10 devices
  after                50 % 5.0 s   90 % 9.0 s   99 % 10.0 s   100 % 10.0 s
                       1.25 times the 8.0 s that the rate allows at best
  attempts a device    p50 6   p99 10   most 10
  attempts in all      30: 10 admitted, 15 refused, 3 given up, 2 broken
  refused by code      0x03 8   0x89 7
  the broker saw       11 CONNECTs, 1 of them of clients that had left
  bystanders, calm     p50 0.3 ms   p99 0.9 ms   slowest 1.1 ms
  bystanders, storm    p50 0.4 ms   p99 2.1 ms   slowest 30.0 ms
                       2 of 200 messages lost
";
        assert_eq!(report(10, 10).to_string(), expected);
    }
}
