//! A report as charts: on a page of its own, and for the terminal.

use super::live::Second;
use super::report::{Report, seconds};
use crate::chart::{Axis, Distribution, Lines, Page, Series, Unit, grouped};

/// Columns of a chart in a terminal: what most are wide.
const WIDTH: usize = 100;
/// Lines of each series there.
const ROWS: usize = 3;
/// Points of the curve of returns: more than a screen shows.
const MOST_POINTS: usize = 500;
/// Bars of a histogram.
const MOST_BINS: usize = 24;

impl Report {
    /// Charts for a terminal: what came in, and who was back when.
    pub fn charts(&self) -> String {
        let mut text = String::new();
        if self.seconds.len() > 1 {
            text += &self.outcomes().text(WIDTH, ROWS);
        }
        if self.returns.len() > 1 {
            text += "\n";
            text += &self.curve().text(WIDTH, ROWS);
        }
        text
    }

    /// One HTML file that needs nothing else.
    pub fn page(&self) -> String {
        let mut page = Page::new(&format!("Storm on {}", self.target));
        page.paragraph(&format!(
            "{} devices, policy {}; {}.",
            self.devices, self.mix, self.pattern
        ));
        if self.interrupted {
            page.warning("Interrupted: this is the report so far.");
        }
        let generator = &self.generator;
        if generator.bottleneck_seconds > 0 {
            page.warning(&format!(
                "The generator was the bottleneck in {} of {} s: the target was offered less than this fleet would.",
                generator.bottleneck_seconds, generator.seconds
            ));
        }
        let back = |after: Option<f64>| after.map_or("never".to_owned(), seconds);
        page.figures(&[
            (
                "back",
                format!(
                    "{} of {}",
                    grouped(self.back.devices as u64),
                    grouped(self.hit as u64)
                ),
            ),
            ("half after", back(self.back.p50_s)),
            ("99 % after", back(self.back.p99_s)),
            ("all after", back(self.back.all_s)),
            ("attempts", grouped(self.storm.arrivals)),
            ("refused", grouped(self.storm.refused_in_all())),
            (
                "generator's share of the processors",
                format!("{:.0} %", generator.share * 100.0),
            ),
        ]);
        page.preformatted(&self.to_string());

        page.heading("Over time");
        for chart in [self.outcomes(), self.connected(), self.latency(), self.load()] {
            if chart.series.iter().any(|series| !series.points.is_empty()) {
                page.subheading(&chart.title).chart(&chart.svg());
            }
        }
        if !self.returns.is_empty() {
            page.heading("Coming back");
            let curve = self.curve();
            page.subheading(&curve.title).chart(&curve.svg());
            let attempts = self.attempts();
            page.subheading(&attempts.title).chart(&attempts.svg());
        }
        page.finish()
    }

    fn outcomes(&self) -> Lines {
        let rate = |name: &str, count: fn(&Second) -> u64| {
            let mut before = 0.0;
            let points = self.seconds.iter().map(|second| {
                let span = (second.at_s - before).max(0.001);
                before = second.at_s;
                (second.at_s, count(second) as f64 / span)
            });
            Series::line(name, points.collect())
        };
        Lines {
            title: "Attempts".to_owned(),
            description: "Attempts a second, and what became of them.".to_owned(),
            x: Axis::new("since the start", Unit::Seconds),
            y: Axis::new("attempts", Unit::PerSecond),
            series: vec![
                rate("arrivals", |second| second.arrivals),
                rate("admitted", |second| second.admitted),
                rate("refused", |second| second.refused),
                rate("without an answer", |second| second.gave_up + second.broken),
            ],
        }
    }

    fn connected(&self) -> Lines {
        Lines {
            title: "Devices connected".to_owned(),
            description: format!("Of {}, at the end of each second.", self.devices),
            x: Axis::new("since the start", Unit::Seconds),
            y: Axis::new("devices", Unit::Count),
            series: vec![Series::area(
                "connected",
                self.points(|second| Some(second.connected as f64)),
            )],
        }
    }

    fn latency(&self) -> Lines {
        let of = |read: fn(&Second) -> Option<u64>| {
            self.points(|second| read(second).map(|microseconds| microseconds as f64 / 1e6))
        };
        Lines {
            title: "Bystanders' latency".to_owned(),
            description: "From the moment at which a message was due to its arrival; clients that have nothing to do with \
                          the storm."
                .to_owned(),
            x: Axis::new("since the start", Unit::Seconds),
            y: Axis::new("latency", Unit::Seconds),
            series: vec![
                Series::line("p50", of(|second| second.bystanders.map(|latency| latency.p50_us))),
                Series::line("p99", of(|second| second.bystanders.map(|latency| latency.p99_us))),
            ],
        }
    }

    fn load(&self) -> Lines {
        Lines {
            title: "The generator".to_owned(),
            description: "How busy its busiest thread was, and the whole machine. A thread without room for more offers \
                          less than the fleet would."
                .to_owned(),
            x: Axis::new("since the start", Unit::Seconds),
            y: Axis::new("busy", Unit::Percent),
            series: vec![
                Series::line(
                    "busiest thread",
                    self.points(|second| Some(100.0 * second.generator.busiest)),
                ),
                Series::line(
                    "machine",
                    self.points(|second| second.machine_busy.map(|busy| 100.0 * busy)),
                ),
            ],
        }
    }

    /// Share of the devices that are back, over time.
    fn curve(&self) -> Lines {
        let step = self.returns.len().div_ceil(MOST_POINTS).max(1);
        let last = self.returns.len().saturating_sub(1);
        let points = self.returns.iter().enumerate();
        let points = points
            .filter(|(place, _)| place.is_multiple_of(step) || *place == last)
            .map(|(place, back)| {
                let share = 100.0 * (place + 1) as f64 / self.hit.max(1) as f64;
                (back.after.as_secs_f64(), share)
            });
        Lines {
            title: "Devices back".to_owned(),
            description: format!(
                "Of the {} that were hit, by the time since they could come back.",
                self.hit
            ),
            x: Axis::new("since they could come back", Unit::Seconds),
            y: Axis::new("back", Unit::Percent),
            series: vec![Series::area("back", points.collect())],
        }
    }

    fn attempts(&self) -> Distribution {
        let attempts: Vec<f64> = self.returns.iter().map(|back| f64::from(back.attempts)).collect();
        Distribution {
            title: "Attempts a device".to_owned(),
            description: "How many attempts it took the devices that are back.".to_owned(),
            values: Axis::new("attempts", Unit::Count),
            counted: "devices".to_owned(),
            bins: Distribution::bins(Unit::Count, &attempts, MOST_BINS),
        }
    }

    fn points(&self, value: impl Fn(&Second) -> Option<f64>) -> Vec<(f64, f64)> {
        self.seconds
            .iter()
            .filter_map(|second| value(second).map(|value| (second.at_s, value)))
            .collect()
    }
}
