//! The report as a page, and its charts.

use super::storm::Second;
use super::summary::{Row, Summary, Worst};
use super::text::{answers, chain, moment, pauses, totals};
use super::{Report, View};
use crate::chart::{Axis, Bar, Bars, Bin, Column, Distribution, Lines, Page, Series, Unit, grouped};

pub(super) fn write(report: &Report) -> String {
    let mut page = Page::new("Storm report");
    for log in &report.logs {
        let words = chain(log);
        if log.breaks > 0 {
            page.warning(&words);
        } else {
            page.paragraph(&words);
        }
    }
    for (name, view) in report.views() {
        if !name.is_empty() {
            page.heading(&capitalised(name));
        }
        write_view(&mut page, view);
    }
    page.finish()
}

fn write_view(page: &mut Page, view: &View) {
    page.paragraph(&totals(view));
    if view.storms.is_empty() {
        page.paragraph("No storm in it: nobody, or next to nobody, was turned away or kept waiting.");
    }
    for (number, storm) in view.storms.iter().enumerate() {
        page.heading(&format!("Storm {}: {}", number + 1, moment(storm.started)));
        write_storm(page, storm);
    }
}

fn write_storm(page: &mut Page, storm: &Summary) {
    let back = |hundredths: u8| {
        let share = storm
            .back_after
            .iter()
            .find(|share| share.hundredths == hundredths);
        let seconds = share.and_then(|share| share.seconds);
        seconds.map_or("never".to_owned(), |seconds| format!("{seconds:.1} s"))
    };
    page.figures(&[
        ("clients", grouped(storm.clients)),
        ("back", grouped(storm.back)),
        ("half back after", back(50)),
        ("90 % back after", back(90)),
        ("99 % back after", back(99)),
        ("all back after", back(100)),
        ("attempts", grouped(storm.attempts)),
        ("refused", grouped(storm.refused_in_all())),
        ("shed before TLS", grouped(storm.shed_in_all())),
    ]);
    let rows: Vec<Vec<String>> = answers(storm)
        .into_iter()
        .map(|(label, words)| vec![label.to_owned(), words])
        .collect();
    page.table("In short", &[Column::words("what"), Column::words("how")], &rows);

    page.subheading("Pauses between attempts");
    for sentence in pauses(storm, 40) {
        page.paragraph(&sentence);
    }
    page.subheading("Over time");
    for chart in [arrivals(storm), rate(storm), latency(storm), back_chart(storm)] {
        page.titled_chart(&chart.title, &chart.svg());
    }
    for chart in [times_back(storm, 40), attempts_chart(storm)] {
        page.titled_chart(&chart.title, &chart.svg());
    }
    page.subheading("Who");
    for (what, rows) in [
        ("lane", &storm.by_lane),
        ("protocol", &storm.by_protocol),
        ("source", &storm.by_source),
    ] {
        let chart = by(what, rows);
        page.titled_chart(&chart.title, &chart.svg());
        table(page, what, rows);
    }
    worst(page, "Waited longest", &storm.waited_longest);
    worst(page, "Came most often", &storm.hammered);
}

fn table(page: &mut Page, what: &str, rows: &[Row]) {
    let after = |seconds: Option<f64>| seconds.map_or("–".to_owned(), |seconds| format!("{seconds:.2} s"));
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                row.name.clone(),
                grouped(row.clients),
                grouped(row.back),
                grouped(row.attempts),
                grouped(row.refused),
                after(row.half_after),
                after(row.last_after),
            ]
        })
        .collect();
    let figures = [
        "clients",
        "back",
        "attempts",
        "refused",
        "half back after",
        "last back after",
    ];
    let columns: Vec<Column<'_>> = [Column::words(what)]
        .into_iter()
        .chain(figures.map(Column::figures))
        .collect();
    page.table(&format!("By {what}"), &columns, &cells);
}

fn worst(page: &mut Page, caption: &str, clients: &[Worst]) {
    let cells: Vec<Vec<String>> = clients
        .iter()
        .map(|client| {
            vec![
                client.client.clone(),
                client.source.clone(),
                if client.is_back { "yes" } else { "no" }.to_owned(),
                grouped(u64::from(client.attempts)),
                format!("{:.2} s", client.seconds),
            ]
        })
        .collect();
    let columns = [
        Column::words("client"),
        Column::words("source"),
        Column::words("back"),
        Column::figures("attempts"),
        Column::figures("over"),
    ];
    page.table(caption, &columns, &cells);
}

pub(super) fn arrivals(storm: &Summary) -> Lines {
    let series = |name, value: fn(&Second) -> u32| {
        Series::line(name, points(storm, |second| f64::from(value(second))))
    };
    let arrived = series("arrived", |second| second.arrived);
    Lines {
        title: "Arrivals, and what became of them".into(),
        description: format!(
            "{} attempts in {}, each second of it.",
            grouped(storm.attempts),
            Unit::Seconds.show(storm.seconds)
        ),
        x: since_start(),
        y: Axis::new("attempts", Unit::PerSecond),
        series: vec![
            Series::area(arrived.name, arrived.points),
            series("connected", |second| second.connected),
            series("refused", |second| second.refused),
            series("held", |second| second.held),
            series("shed", |second| second.shed),
        ],
    }
}

/// The rate as steps: it holds until the next is told.
fn rate(storm: &Summary) -> Lines {
    let rates = &storm.curves.rates;
    let ends = rates.iter().skip(1).map(|(at, _)| *at).chain([storm.seconds]);
    let steps = rates
        .iter()
        .zip(ends)
        .flat_map(|((at, rate), end)| [(at.max(0.0), *rate), (end.max(0.0), *rate)]);
    Lines {
        title: "Admitted, and the rate that allowed it".into(),
        description: "CONNECTs forwarded to brokers in each second, and tokens a second.".into(),
        x: since_start(),
        y: Axis::new("CONNECTs", Unit::PerSecond),
        series: vec![
            Series::area("admitted", points(storm, |second| f64::from(second.admitted))),
            Series::line("rate", steps.collect()),
        ],
    }
}

fn latency(storm: &Summary) -> Lines {
    let mean = |second: &Second| match second.connacks {
        0 => f64::NAN,
        connacks => f64::from(second.connack_sum) / f64::from(connacks),
    };
    let most = |second: &Second| match second.connacks {
        0 => f64::NAN,
        _ => f64::from(second.connack_most),
    };
    Lines {
        title: "CONNACK latency of the brokers".into(),
        description: "From the CONNECT that was forwarded to its CONNACK; mean and slowest of each second."
            .into(),
        x: since_start(),
        y: Axis::new("latency", Unit::Seconds),
        series: vec![
            Series::line("mean", points(storm, mean)),
            Series::line("slowest", points(storm, most)),
        ],
    }
}

/// How many were back by when.
pub(super) fn back_chart(storm: &Summary) -> Lines {
    let back = &storm.curves.back;
    let every = back.len().div_ceil(1000).max(1);
    let all = storm.clients.max(1) as f64;
    let mut points: Vec<(f64, f64)> = vec![(0.0, 0.0)];
    let last = back.len().saturating_sub(1);
    points.extend(
        back.iter()
            .enumerate()
            .filter(|(number, _)| number % every == 0 || *number == last)
            .map(|(number, after)| (*after, (number + 1) as f64 / all * 100.0)),
    );
    Lines {
        title: "Clients that were back".into(),
        description: format!(
            "{} of {} clients in the end.",
            grouped(storm.back),
            grouped(storm.clients)
        ),
        x: since_start(),
        y: Axis::new("of all clients", Unit::Percent),
        series: vec![Series::area("back", points)],
    }
}

pub(super) fn times_back(storm: &Summary, most: usize) -> Distribution {
    Distribution {
        title: "Time back of each client".into(),
        description: "How many clients were back within each span after the start.".into(),
        values: since_start(),
        counted: "clients".into(),
        bins: Distribution::bins(Unit::Seconds, &storm.curves.back, most),
    }
}

pub(super) fn attempts_chart(storm: &Summary) -> Distribution {
    let counts = &storm.curves.attempts;
    let used = counts
        .iter()
        .rposition(|count| *count > 0)
        .map_or(0, |last| last + 1);
    let bins = counts.iter().take(used).enumerate().map(|(place, count)| Bin {
        from: (place + 1) as f64,
        to: (place + 2) as f64,
        count: *count,
    });
    Distribution {
        title: format!("Attempts of each client (the last: {} and more)", counts.len()),
        description: "How many clients needed how many attempts.".into(),
        values: Axis::new("attempts", Unit::Count),
        counted: "clients".into(),
        bins: bins.collect(),
    }
}

fn by(what: &str, rows: &[Row]) -> Bars {
    Bars {
        title: format!("Attempts by {what}"),
        description: format!("Attempts of the clients of each {what}, most first."),
        names: what.to_owned(),
        values: Axis::new("attempts", Unit::Count),
        bars: rows
            .iter()
            .map(|row| Bar::new(&*row.name, row.attempts as f64))
            .collect(),
    }
}

fn points(storm: &Summary, value: impl Fn(&Second) -> f64) -> Vec<(f64, f64)> {
    let seconds = &storm.curves.seconds;
    seconds
        .iter()
        .enumerate()
        .map(|(second, counts)| (second as f64, value(counts)))
        .collect()
}

fn since_start() -> Axis {
    Axis::new("since the start of the storm", Unit::Seconds)
}

fn capitalised(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(characters).collect()
    })
}
