//! What is shipped beside the binary names only what exists: the queries of dashboard and rules against
//! `docs/metrics.md`, the alerts against their runbook, the files that mount each other against the folder, ports against each other, links of the documentation against its
//! files and headings.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "reads the repository's own files; a panic is a failed test"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use seawall::config::{self, Sources};
use serde_json::Value;

const DASHBOARD: &str = "deploy/grafana/seawall.json";
const RULES: &str = "deploy/prometheus/rules.yml";

/// Metrics that Prometheus adds to every target.
const OF_THE_SCRAPE: &[&str] = &["up", "scrape_duration_seconds"];

#[test]
fn queries_of_the_dashboard_name_documented_metrics() {
    let (seen, unknown) = undocumented(queries(&read_dashboard()));
    assert!(
        seen > 20,
        "only {seen} metrics in {DASHBOARD}: does the reader still find its queries?"
    );
    assert!(unknown.is_empty(), "not in docs/metrics.md: {unknown:#?}");
}

#[test]
fn rules_name_documented_metrics() {
    let (seen, unknown) = undocumented(rules().into_iter().map(|rule| rule.expr).collect());
    assert!(seen > 20, "only {seen} metrics in {RULES}");
    assert!(unknown.is_empty(), "not in docs/metrics.md: {unknown:#?}");
}

/// An alert without a runbook wakes people who then do not know what to do, and a runbook without its alert wakes nobody.
#[test]
fn every_alert_has_its_runbook_and_a_recording_that_sets_it_off() {
    let rules = rules();
    let alerts: BTreeMap<&str, &Value> = rules
        .iter()
        .filter_map(|rule| rule.alert.as_deref().map(|alert| (alert, &rule.annotations)))
        .collect();
    let page = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let (_, rest) = page.split_once("\n## Alerts\n").unwrap();
    let (section, _) = rest.split_once("\n## ").unwrap();
    let runbooks: BTreeSet<&str> = section
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .collect();
    assert_eq!(alerts.keys().copied().collect::<BTreeSet<_>>(), runbooks);

    let mut set_off = BTreeSet::new();
    for entry in fs::read_dir(root().join("deploy/prometheus/tests")).unwrap() {
        let path = entry.unwrap().path();
        let recording = yaml(&path);
        assert_eq!(recording["rule_files"][0], "../rules.yml", "{}", path.display());
        let expected = recording["tests"][0]["promql_expr_test"].as_array().unwrap();
        for sample in expected
            .iter()
            .filter_map(|test| test["exp_samples"].as_array())
            .flatten()
        {
            let alert = sample["labels"].as_str().unwrap().split('"').nth(1).unwrap();
            set_off.insert(alert.to_owned());
        }
    }
    for (alert, annotations) in alerts {
        let runbook = format!("docs/operations.md#{}", alert.to_lowercase());
        assert_eq!(annotations["runbook"], runbook, "{alert}");
        assert!(!annotations["summary"].as_str().unwrap().is_empty(), "{alert}");
        assert!(set_off.contains(alert), "no recording sets {alert} off");
    }
}

/// What holds for one unit holds for the other: who hardens one and forgets the other finds it here.
#[test]
fn the_two_units_differ_in_how_they_are_upgraded_alone() {
    const OF_TWO_INSTANCES: [&str; 3] = ["RuntimeDirectory", "RuntimeDirectoryPreserve", "Environment"];
    let settings = |name: &str| {
        let text = fs::read_to_string(root().join("deploy/systemd").join(name)).unwrap();
        let lines = text
            .lines()
            .filter(|line| line.contains('=') && !line.starts_with('#'));
        let own = |line: &&str| !OF_TWO_INSTANCES.contains(&line.split('=').next().unwrap());
        lines
            .filter(own)
            .map(|line| line.replace(" (%i)", ""))
            .collect::<Vec<_>>()
    };
    assert!(settings("seawall.service").len() > 30);
    assert_eq!(settings("seawall.service"), settings("seawall@.service"));
}

struct Rule {
    alert: Option<String>,
    record: Option<String>,
    expr: String,
    annotations: Value,
}

fn rules() -> Vec<Rule> {
    let rules = yaml(&root().join(RULES));
    let groups = rules["groups"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
    groups
        .flat_map(|group| group["rules"].as_array().unwrap())
        .map(|rule| Rule {
            alert: text(&rule["alert"]),
            record: text(&rule["record"]),
            expr: text(&rule["expr"]).unwrap(),
            annotations: rule["annotations"].clone(),
        })
        .collect()
}

fn yaml(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap();
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// How many metrics the queries name, and which of them and of their labels `docs/metrics.md` does not.
fn undocumented(queries: Vec<String>) -> (usize, BTreeSet<String>) {
    let documented = documented_metrics();
    let recorded: BTreeSet<String> = rules().into_iter().filter_map(|rule| rule.record).collect();
    let mut unknown = BTreeSet::new();
    let mut seen = 0;
    for query in queries {
        let metrics = metrics_of(&query);
        assert!(!metrics.is_empty(), "no metric in {query}");
        seen += metrics.len();
        for (metric, labels) in metrics {
            if OF_THE_SCRAPE.contains(&metric.as_str()) || recorded.contains(&metric) {
                continue;
            }
            let Some(row) = documented.get(base_name(&metric, &documented)) else {
                unknown.insert(format!("`{metric}` in {query}"));
                continue;
            };
            // `instance` and `job` come from the scrape, `le` from the histogram.
            for label in labels
                .iter()
                .filter(|label| !["instance", "job", "le"].contains(&label.as_str()))
            {
                if !row.contains(&format!("`{label}`")) {
                    unknown.insert(format!("label `{label}` of `{metric}` in {query}"));
                }
            }
        }
    }
    (seen, unknown)
}

#[test]
fn panels_of_the_dashboard_are_whole_and_do_not_overlap() {
    let dashboard = read_dashboard();
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36);
    let mut ids = BTreeSet::new();
    let mut taken = BTreeMap::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(
            !title.is_empty() && ids.insert(panel["id"].as_u64().unwrap()),
            "id or title of {panel}"
        );
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{title} is wider than the page");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                let other = taken.insert((x, y), title.to_owned());
                assert_eq!(other, None, "{title} lies on another panel");
            }
        }
        let targets = panel["targets"].as_array();
        assert_eq!(
            targets.is_none_or(Vec::is_empty),
            panel["type"] == "row",
            "{title} has no query"
        );
        for target in targets.into_iter().flatten() {
            assert_eq!(
                target["datasource"]["uid"], "${datasource}",
                "{title} is tied to one data source"
            );
        }
    }
}

#[test]
fn files_and_volumes_that_compose_mounts_exist() {
    let folder = root().join("deploy/compose");
    let compose = yaml(&folder.join("docker-compose.yml"));
    let mounts = mounts(&compose);
    assert!(
        mounts.len() >= 9,
        "only {mounts:?}: does the reader still find the mounts?"
    );
    for (service, source, _) in &mounts {
        if source.starts_with('.') {
            assert!(
                folder.join(source).exists(),
                "{service} mounts {source}, which does not exist"
            );
        } else {
            assert!(
                compose["volumes"].get(source).is_some(),
                "{service} mounts {source}, which is no volume"
            );
        }
    }
    for (name, service) in compose["services"].as_object().unwrap() {
        assert!(service["image"].is_string(), "{name} has no image");
        let needed = match &service["depends_on"] {
            Value::Array(names) => names.iter().map(|name| name.as_str().unwrap()).collect(),
            Value::Object(names) => names.keys().map(String::as_str).collect(),
            _ => Vec::new(),
        };
        for other in needed {
            assert!(
                compose["services"].get(other).is_some(),
                "{name} depends on {other}"
            );
        }
    }
}

/// What is mounted where, against where the programs look.
#[test]
fn prometheus_finds_its_rules_and_grafana_its_dashboard() {
    let deploy = root().join("deploy");
    let compose = yaml(&deploy.join("compose/docker-compose.yml"));
    let mounts = mounts(&compose);
    let is_mounted = |service: &str, source: &str, target: &str| {
        mounts
            .iter()
            .any(|(by, from, to)| by == service && from.ends_with(source) && to == target)
    };
    let prometheus = yaml(&deploy.join("prometheus/prometheus.yml"));
    assert!(is_mounted(
        "prometheus",
        "prometheus/prometheus.yml",
        "/etc/prometheus/prometheus.yml"
    ));
    for file in prometheus["rule_files"].as_array().unwrap() {
        let file = file.as_str().unwrap();
        assert!(deploy.join("prometheus").join(file).exists());
        let target = format!("/etc/prometheus/{file}");
        assert!(
            is_mounted("prometheus", &format!("prometheus/{file}"), &target),
            "{file}"
        );
    }
    assert_eq!(prometheus["scrape_configs"][0]["job_name"], "seawall");

    let provisioning = deploy.join("grafana/provisioning");
    let source = &yaml(&provisioning.join("datasources/prometheus.yml"))["datasources"][0];
    assert_eq!(source["type"], "prometheus");
    assert_eq!(source["url"], "http://prometheus:9090");
    assert!(compose["services"].get("prometheus").is_some());
    let provider = &yaml(&provisioning.join("dashboards/seawall.yml"))["providers"][0];
    let folder = provider["options"]["path"].as_str().unwrap();
    let dashboard = format!("{folder}/seawall.json");
    assert!(is_mounted("grafana", "grafana/seawall.json", &dashboard));
    assert!(is_mounted(
        "grafana",
        "grafana/provisioning",
        "/etc/grafana/provisioning"
    ));
    let home = &compose["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"];
    assert_eq!(*home, dashboard);
}

#[test]
fn ports_of_the_trial_stack_fit_together() {
    let folder = root().join("deploy");
    let read = |path: &str| fs::read_to_string(folder.join(path)).unwrap();
    let seawall: toml::Table = read("compose/seawall.toml").parse().unwrap();
    let admin = seawall["admin"]["address"].as_str().unwrap();
    let (_, admin_port) = admin.rsplit_once(':').unwrap();
    let broker = seawall["upstream"]["servers"][0].as_str().unwrap();
    let (broker_name, broker_port) = broker.rsplit_once(':').unwrap();

    let compose = yaml(&folder.join("compose/docker-compose.yml"));
    assert!(
        compose["services"].get(broker_name).is_some(),
        "compose has no service `{broker_name}`"
    );
    let ports = compose["services"]["seawall"]["ports"].as_array().unwrap();
    assert!(
        ports.contains(&format!("127.0.0.1:{admin_port}:{admin_port}").into()),
        "the admin port is not published"
    );
    assert!(
        read("compose/mosquitto.conf")
            .lines()
            .any(|line| line == format!("listener {broker_port}"))
    );
    let prometheus = yaml(&folder.join("prometheus/prometheus.yml"));
    let targets = &prometheus["scrape_configs"][0]["static_configs"][0]["targets"];
    assert_eq!(targets[0], format!("seawall:{admin_port}"));
    for (name, service) in compose["services"].as_object().unwrap() {
        for port in service["ports"].as_array().into_iter().flatten() {
            let port = port.as_str().unwrap();
            assert!(
                name == "seawall" || port.starts_with("127.0.0.1:"),
                "{name} publishes {port} to everybody"
            );
        }
    }
}

/// Service, source and target of every mount.
fn mounts(compose: &Value) -> Vec<(String, String, String)> {
    let services = compose["services"].as_object().unwrap().iter();
    services
        .flat_map(|(name, service)| {
            let volumes = service["volumes"].as_array().into_iter().flatten();
            volumes.map(move |volume| {
                let mut parts = volume.as_str().unwrap().split(':').map(ToOwned::to_owned);
                (name.clone(), parts.next().unwrap(), parts.next().unwrap())
            })
        })
        .collect()
}

#[test]
fn configurations_that_are_shown_are_legal() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, block) = readme.split_once("```toml\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let shown = folder.path().join("readme.toml");
    fs::write(&shown, block.split_once("```").unwrap().0).unwrap();
    let shipped =
        ["deploy/compose/seawall.toml", "deploy/kubernetes/seawall.toml"].map(|file| root().join(file));
    for file in shipped.into_iter().chain([shown]) {
        let sources = Sources {
            file: Some(file.clone()),
            ..Sources::default()
        };
        if let Err(mistakes) = config::load(&sources) {
            panic!("{}: {mistakes}", file.display());
        }
    }
}

#[test]
fn links_of_the_documentation_resolve() {
    let mut broken = Vec::new();
    let mut seen = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            seen += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() {
                page.clone()
            } else {
                page.parent().unwrap().join(path)
            };
            if !file.exists() || !anchor.is_empty() && !anchors(&file).contains(anchor) {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(seen > 30, "only {seen} links: does the reader still find them?");
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_reader_takes_a_query_apart() {
    let query = r#"histogram_quantile(0.9, sum by (le, server) (rate(seawall_x_seconds_bucket{instance=~"$i",code!="seawall_y"}[5m]))) / up"#;
    let found: Vec<(String, Vec<String>)> = metrics_of(query)
        .into_iter()
        .map(|(metric, labels)| (metric, labels.into_iter().collect()))
        .collect();
    let labels = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        found,
        [
            (
                "seawall_x_seconds_bucket".to_owned(),
                labels(&["code", "instance", "le", "server"])
            ),
            ("up".to_owned(), labels(&["le", "server"])),
        ]
    );
}

/// Every page of the documentation.
fn pages() -> Vec<PathBuf> {
    let folders = ["", "docs", "docs/decisions"].map(|folder| root().join(folder));
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect()
}

/// The anchors of a page's headings, made as code hosts make them: lower case, punctuation dropped, blanks to hyphens.
fn anchors(page: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(page).unwrap();
    let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
    headings
        .map(|heading| heading.trim_start_matches('#').trim().to_lowercase())
        .map(|heading| heading.replace(' ', "-"))
        .map(|heading| {
            heading
                .chars()
                .filter(|letter| letter.is_alphanumeric() || "-_".contains(*letter))
                .collect()
        })
        .collect()
}

/// Metric name to its row of `docs/metrics.md`.
fn documented_metrics() -> BTreeMap<String, String> {
    let text = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    text.lines()
        .filter_map(|line| {
            let name = line.strip_prefix("| `")?.split('`').next()?;
            let is_name = name
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
            is_name.then(|| (name.to_owned(), line.to_owned()))
        })
        .collect()
}

/// A histogram is documented under its name, and queried under its parts.
fn base_name<'a>(metric: &'a str, documented: &BTreeMap<String, String>) -> &'a str {
    ["_bucket", "_sum", "_count"]
        .iter()
        .filter_map(|part| metric.strip_suffix(part))
        .find(|base| documented.contains_key(*base))
        .unwrap_or(metric)
}

fn read_dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(root().join(DASHBOARD)).unwrap()).unwrap()
}

fn queries(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    panels
        .filter_map(|panel| panel["targets"].as_array())
        .flatten()
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .collect()
}

/// The metrics of a query, each with the labels that it is selected and grouped by.
fn metrics_of(query: &str) -> Vec<(String, BTreeSet<String>)> {
    let mut grouped = BTreeSet::new();
    let mut found: Vec<(String, BTreeSet<String>)> = Vec::new();
    let mut rest = query;
    while let Some(start) = rest.find(|letter: char| letter.is_ascii_alphabetic() || letter == '"') {
        rest = &rest[start..];
        if let Some(quoted) = rest.strip_prefix('"') {
            rest = &quoted[quoted.find('"').unwrap() + 1..];
            continue;
        }
        let end = rest
            .find(|letter: char| !letter.is_ascii_alphanumeric() && !"_:".contains(letter))
            .unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        if word == "by" {
            let (labels, after) = after
                .trim_start()
                .trim_start_matches('(')
                .split_once(')')
                .unwrap();
            grouped.extend(labels.split(',').map(|label| label.trim().to_owned()));
            rest = after;
        } else if after.starts_with('=') || after.starts_with('!') {
            found.last_mut().unwrap().1.insert(word.to_owned());
        } else if OF_THE_SCRAPE.contains(&word)
            || word.starts_with("seawall_")
            || word.starts_with("seawall:")
            || word.starts_with("process_")
        {
            found.push((word.to_owned(), BTreeSet::new()));
        }
    }
    for (_, labels) in &mut found {
        labels.extend(grouped.iter().cloned());
    }
    found
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
