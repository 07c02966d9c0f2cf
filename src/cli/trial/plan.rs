//! `seawall plan`: flags → scenarios → tables and files.

mod flags;

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

pub(in crate::cli) use self::flags::PlanFlags;
use self::flags::{Front, rate};
use super::TrialFailure;
use crate::config::{Mistakes, duration};
use crate::fleet::mix::MixError;
use crate::fleet::plan::advice::Advice;
use crate::fleet::plan::page::{self, Run};
use crate::fleet::plan::{self, Broker, Costs, Outage, ProxySettings, Scenario, Table, charts};

/// Runs `seawall plan`.
pub(super) fn plan(flags: &PlanFlags) -> Result<(), TrialFailure> {
    let mut runs = Vec::new();
    for (name, scenario) in flags.scenarios()? {
        let outcome = plan::run(&scenario)?;
        runs.push(Run {
            name,
            scenario,
            outcome,
        });
    }
    let json = flags
        .json
        .as_ref()
        .map(|path| page::json(&runs).map(|text| (path, text)))
        .transpose()
        .map_err(|error| TrialFailure::Output(error.into()))?;
    let mut out = io::stdout().lock();
    let text = match &json {
        Some((path, text)) if path.as_os_str() == "-" => format!("{text}\n"),
        _ => tables(flags, &runs),
    };
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(TrialFailure::Output)?;
    if let Some((path, text)) = json.filter(|(path, _)| path.as_os_str() != "-") {
        write(path, &text)?;
    }
    if let Some(path) = &flags.html {
        write(path, &page::html(&flags.question(), &runs))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), TrialFailure> {
    std::fs::write(path, text).map_err(|error| TrialFailure::File {
        path: path.to_owned(),
        error,
    })
}

/// Columns of the charts: what a terminal has at least, nearly always.
const WIDTH: usize = 100;

fn tables(flags: &PlanFlags, runs: &[Run]) -> String {
    let mut text = format!("{}\n\n", flags.question());
    if flags.sweep.is_some() {
        text.push_str(&page::comparison(runs));
        return text;
    }
    for Run {
        scenario, outcome, ..
    } in runs
    {
        let table = Table { scenario, outcome };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{table}\n{}", charts::logins(outcome).text(WIDTH, 2));
    }
    if let Some(Run {
        scenario, outcome, ..
    }) = runs.last()
    {
        let _ = write!(text, "{}", Advice::of(scenario, outcome));
    }
    text
}

impl PlanFlags {
    fn scenarios(&self) -> Result<Vec<(String, Scenario)>, TrialFailure> {
        let costs = self.proxy.costs()?;
        let Some(sweep) = &self.sweep else {
            return Ok(self.fronts(costs)?);
        };
        let mut all = Vec::new();
        for value in &sweep.values {
            let flags = self.with(&sweep.key, value).map_err(TrialFailure::Sweep)?;
            for (front, scenario) in flags.fronts(costs)? {
                all.push((format!("{} = {value}, {front}", sweep.key), scenario));
            }
        }
        Ok(all)
    }

    /// The same with one setting changed.
    fn with(&self, key: &str, value: &str) -> Result<Self, String> {
        let mut flags = self.clone();
        let time = || duration(value).map_err(|error| error.to_string());
        let count = || {
            value
                .parse()
                .map_err(|_| format!("{value:?} is no number of {key}"))
        };
        match key {
            "devices" => flags.fleet.devices = count()?,
            "mix" => flags.fleet.mix = value.parse().map_err(|error: MixError| error.to_string())?,
            "cap" => flags.fleet.cap = time()?,
            "base" => flags.fleet.base = time()?,
            "fixed" => flags.fleet.fixed = time()?,
            "patience" => flags.fleet.patience = time()?,
            "outage" => flags.outage.outage = time()?,
            "servers" => flags.broker.servers = count()?,
            "capacity" => flags.broker.capacity = rate(value)?,
            "rate" => flags.proxy.rate = Some(rate(value)?),
            key if key.contains('.') => flags.proxy.set.push(format!("{key}={value}")),
            key => flags.proxy.set.push(format!("admission.{key}={value}")),
        }
        Ok(flags)
    }

    /// One scenario for each front.
    fn fronts(&self, costs: Costs) -> Result<Vec<(String, Scenario)>, Mistakes> {
        let proxy = self.proxy.settings(costs)?;
        let fronts = match self.proxy.front {
            Front::Both => vec![None, Some(proxy)],
            Front::None => vec![None],
            Front::Seawall => vec![Some(proxy)],
        };
        let with = |proxy: Option<ProxySettings>| {
            let name = if proxy.is_some() {
                "through Seawall"
            } else {
                "without a proxy"
            };
            (name.to_owned(), self.scenario(proxy))
        };
        Ok(fronts.into_iter().map(with).collect())
    }

    fn scenario(&self, proxy: Option<ProxySettings>) -> Scenario {
        Scenario {
            fleet: self.fleet.settings(),
            outage: Outage {
                pattern: self.outage.pattern,
                lasts: self.outage.outage,
                over: self.outage.over,
            },
            round_trip: self.outage.round_trip,
            broker: Broker {
                capacity: self.broker.capacity,
                servers: self.broker.servers,
                queue: self.broker.queue,
            },
            proxy,
            watched: self.watch,
            seed: self.seed,
        }
    }

    /// What was asked for, in a sentence.
    fn question(&self) -> String {
        format!(
            "{} devices ({}; patience {} s) after an outage of {} s ({}), in front of a broker of {} logins a second; watched for {} s; seed {}.",
            self.fleet.devices,
            self.fleet.mix,
            self.fleet.patience.as_secs_f64(),
            self.outage.outage.as_secs_f64(),
            self.outage.pattern,
            self.broker.capacity,
            self.watch.as_secs_f64(),
            self.seed
        )
    }
}
