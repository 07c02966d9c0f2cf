//! Runs as a page of HTML with charts, and as JSON.

use serde::Serialize;

use super::advice::Advice;
use super::report::{duration, percent};
use super::{Outcome, Scenario, charts};
use crate::chart::{Column, Page, grouped};

/// One scenario with what came of it.
#[derive(Debug)]
pub struct Run {
    /// Its name: what it differs in from the others.
    pub name: String,
    /// What was run.
    pub scenario: Scenario,
    /// What came of it.
    pub outcome: Outcome,
}

/// A self-contained page about some runs; `question`: what was asked for.
pub fn html(question: &str, runs: &[Run]) -> String {
    let mut page = Page::new("Plan of a storm");
    page.paragraph(question);
    page.table(
        "What came of it",
        &COLUMNS.map(|(name, is_number)| column(name, is_number)),
        &runs.iter().map(row).collect::<Vec<_>>(),
    );
    let named: Vec<(String, &Outcome)> = runs.iter().map(|run| (run.name.clone(), &run.outcome)).collect();
    page.chart(&charts::returned(&named).svg());
    // Of a sweep the comparison is the point; a page with charts of each is for a few.
    if runs.len() <= MOST_SHOWN {
        for run in runs {
            page.heading(&run.name);
            for chart in [
                charts::logins(&run.outcome),
                charts::arrivals(&run.outcome),
                charts::queued(&run.outcome),
            ] {
                page.titled_chart(&chart.title, &chart.svg());
            }
            page.preformatted(&Advice::of(&run.scenario, &run.outcome).to_string());
        }
    }
    page.finish()
}

/// Runs that get charts of their own.
const MOST_SHOWN: usize = 4;

const COLUMNS: [(&str, bool); 10] = [
    ("run", false),
    ("back", true),
    ("50 %", true),
    ("99 %", true),
    ("all", true),
    ("capacity used", true),
    ("of what could be filled", true),
    ("refused", true),
    ("logins for nobody", true),
    ("most at the broker", true),
];

fn column(name: &str, is_number: bool) -> Column<'_> {
    if is_number {
        Column::figures(name)
    } else {
        Column::words(name)
    }
}

fn row(run: &Run) -> Vec<String> {
    let outcome = &run.outcome;
    let [half, _, most, all] = outcome
        .back
        .map(|after| after.map_or_else(|| "never".to_owned(), duration));
    vec![
        run.name.clone(),
        grouped(u64::from(outcome.returned)),
        half,
        most,
        all,
        percent(outcome.goodput),
        percent(outcome.used),
        grouped(outcome.sums.refused + outcome.sums.shed),
        grouped(outcome.sums.wasted),
        grouped(u64::from(outcome.peak_queued)),
    ]
}

/// The same table for a terminal.
pub fn comparison(runs: &[Run]) -> String {
    let mut rows: Vec<Vec<String>> = vec![COLUMNS.map(|(name, _)| name.to_owned()).to_vec()];
    rows.extend(runs.iter().map(row));
    let widths: Vec<usize> = (0..COLUMNS.len())
        .map(|place| {
            rows.iter()
                .filter_map(|row| row.get(place))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).zip(COLUMNS);
        let text: Vec<String> = cells
            .map(|((cell, width), (_, is_number))| {
                if is_number {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:<width$}")
                }
            })
            .collect();
        format!("  {}\n", text.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[derive(Serialize)]
struct Machine<'a> {
    run: &'a str,
    settings: Settings,
    outcome: &'a Outcome,
    advice: Advice,
}

/// What a reader of the JSON needs to know of the scenario. Times in seconds.
#[derive(Serialize)]
struct Settings {
    devices: u32,
    mix: String,
    patience: f64,
    pattern: &'static str,
    outage: f64,
    capacity: f64,
    proxy: bool,
    rate: Option<f64>,
    max_in_flight: Option<u32>,
    max_wait: Option<f64>,
    seed: u64,
}

/// All runs as JSON: a list of objects with `run`, `settings`, `outcome` and `advice`.
pub fn json(runs: &[Run]) -> Result<String, serde_json::Error> {
    let machine = |run: &Run| -> Result<serde_json::Value, serde_json::Error> {
        serde_json::to_value(Machine {
            run: &run.name,
            settings: settings(&run.scenario),
            outcome: &run.outcome,
            advice: Advice::of(&run.scenario, &run.outcome),
        })
    };
    let runs: Vec<serde_json::Value> = runs.iter().map(machine).collect::<Result<_, _>>()?;
    serde_json::to_string(&runs)
}

fn settings(scenario: &Scenario) -> Settings {
    let admission = scenario.proxy.as_ref().map(|proxy| &proxy.admission);
    Settings {
        devices: scenario.fleet.devices,
        mix: scenario.fleet.mix.to_string(),
        patience: scenario.fleet.patience.as_secs_f64(),
        pattern: scenario.outage.pattern.word(),
        outage: scenario.outage.lasts.as_secs_f64(),
        capacity: scenario.broker.capacity,
        proxy: scenario.proxy.is_some(),
        rate: admission.map(|admission| admission.rate),
        max_in_flight: admission.map(|admission| admission.max_in_flight),
        max_wait: admission.map(|admission| admission.max_wait.as_secs_f64()),
        seed: scenario.seed,
    }
}
