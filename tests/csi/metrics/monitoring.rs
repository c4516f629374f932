//! The alerts and the dashboard in `deploy/monitoring` ask for metrics that the driver has, by labels that these have.
#![allow(clippy::disallowed_methods, reason = "the files of the repository are read")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use hostloop::cluster::identity::PeerRole;
use serde_json::Value;

use crate::harness::{machine, settings};
use crate::metrics::expiry::Certified;
use crate::metrics::scrape::*;
use crate::requests::*;

/// Beginnings of names that are ours.
const OURS: [&str; 2] = ["hostloop_", "process_"];
/// Labels that Prometheus adds to each target.
const OF_THE_TARGET: [&str; 5] = ["job", "instance", "namespace", "pod", "node"];
/// Labels whose values are all shown from the start, so that another one is a typing error.
const CLOSED: [&str; 6] = ["kind", "phase", "backend", "severity", "to", "le"];

/// Labels by name of the metric, with the values that were seen.
type Shown = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Everything that a driver with a volume and copies of it shows, and what the processes of a cluster have besides.
fn shown() -> Shown {
    let (kernel, address) = (machine(), address());
    let server = watched(kernel.os(), &settings(), address);
    let ext4 = Spec::new(Kind::Ext4);
    let id = server.call(ext4.create("a")).unwrap().volume.unwrap().volume_id;
    server.call(stage(&id, ext4.capability())).unwrap();
    server.call(snapshot("s", &id)).unwrap();
    let mut samples = scrape(&server, address);
    server.stop();
    for role in [PeerRole::Node, PeerRole::Controller] {
        samples.0.extend(Certified::new(role).serve(|server, address| scrape(server, address).0));
    }
    let mut shown = Shown::new();
    for key in samples.0.keys() {
        let (name, labels) = key.split_once('{').unwrap_or((key, "}"));
        let known = shown.entry(name.to_owned()).or_default();
        for (label, _, value) in matchers(labels.trim_end_matches('}')) {
            known.entry(label).or_default().insert(value);
        }
    }
    // Of a volume that is not healthy: `metrics::volumes` shows it.
    let labels = shown["hostloop_volume_capacity_bytes"].clone();
    let unhealthy = shown.entry("hostloop_volume_unhealthy".to_owned()).or_insert(labels);
    let severities = ["degraded", "inaccessible", "data_loss"].map(str::to_owned);
    unhealthy.insert("severity".to_owned(), severities.into());
    unhealthy.insert("reason".to_owned(), BTreeSet::new());
    // These are there only if there is a standby copy or a cutover: the unit tests of the metrics show them.
    for name in ["hostloop_standby_age_seconds", "hostloop_standby_interval_seconds", "hostloop_move_cutover"]
    {
        shown.entry(name.to_owned()).or_default().entry("claim".to_owned()).or_default();
    }
    let phases = shown["hostloop_moves"]["phase"].clone();
    shown.entry("hostloop_move_cutover".to_owned()).or_default().insert("phase".to_owned(), phases);
    shown
}

/// What is asked of a label: its name, the operator, the value.
type Matcher = (String, String, String);

/// The parts of `a="b",c=~"d"`.
fn matchers(text: &str) -> Vec<Matcher> {
    let mut rest = text.trim();
    let mut found = Vec::new();
    while !rest.is_empty() {
        let at = rest.find(['=', '!']).expect("an operator");
        let quote = rest.find('"').expect("a value");
        let end = quote + 1 + rest[quote + 1..].find('"').expect("the end of a value");
        let part = |from: usize, to: usize| rest[from..to].trim().to_owned();
        found.push((part(0, at), part(at, quote), part(quote + 1, end)));
        rest = rest[end + 1..].trim_start().trim_start_matches(',').trim_start();
    }
    found
}

/// The metrics of ours in an expression, each with what is asked of its labels.
fn metrics(expression: &str) -> Vec<(String, Vec<Matcher>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = expression[at..].find(is_name).map(|start| at + start) {
        let name: String = expression[start..].chars().take_while(|c| is_name(*c)).collect();
        at = start + name.len();
        let before = expression[..start].chars().next_back();
        if before == Some('"') || !OURS.iter().any(|ours| name.starts_with(ours)) {
            continue;
        }
        let selector = expression[at..].strip_prefix('{');
        let labels = selector.map_or("", |rest| &rest[..rest.find('}').expect("the end of a selector")]);
        found.push((name, matchers(labels)));
    }
    found
}

/// What is wrong with an expression, where it stands.
fn wrong(place: &str, expression: &str, shown: &Shown) -> Vec<String> {
    let mut wrong = Vec::new();
    for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
        if expression.matches(open).count() != expression.matches(close).count() {
            wrong.push(format!("{place}: {open} and {close} do not match"));
        }
    }
    for (name, labels) in metrics(expression) {
        let Some(known) = shown.get(&name) else {
            wrong.push(format!("{place}: the driver has no {name}"));
            continue;
        };
        for (label, operator, value) in labels {
            let alternatives = || value.split('|').all(|one| known[&label].contains(one));
            if OF_THE_TARGET.contains(&label.as_str()) {
                continue;
            }
            if !known.contains_key(&label) {
                wrong.push(format!("{place}: {name} has no label {label}"));
            } else if CLOSED.contains(&label.as_str()) && !alternatives() {
                wrong.push(format!("{place}: {name}: {label}{operator}{value:?} is never so"));
            }
        }
    }
    wrong
}

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/monitoring").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// The values of every `key` in a document, with the nearest title before them.
fn values_of(key: &str, document: &Value, title: &str, found: &mut Vec<(String, String)>) {
    match document {
        Value::Object(object) => {
            let own = object.get("title").or(object.get("alert")).and_then(Value::as_str).unwrap_or(title);
            for (name, value) in object {
                match value.as_str().filter(|_| name == key) {
                    Some(text) => found.push((own.to_owned(), text.to_owned())),
                    None => values_of(key, value, own, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| values_of(key, value, title, found)),
        _ => {}
    }
}

#[test]
fn alerts_and_dashboard_ask_for_what_is_shown() {
    let shown = shown();
    let alerts: Value = serde_saphyr::from_str(&file("hostloop-alerts.yaml")).expect("YAML");
    let dashboard: Value = serde_json::from_str(&file("hostloop-dashboard.json")).expect("JSON");
    let mut expressions = Vec::new();
    values_of("expr", &alerts, "", &mut expressions);
    assert!(expressions.len() > 10, "{expressions:?}");
    let in_alerts = expressions.len();
    values_of("expr", &dashboard, "", &mut expressions);
    assert!(expressions.len() > in_alerts + 20, "{expressions:?}");
    let mut queries = Vec::new();
    values_of("query", &dashboard, "", &mut queries);
    expressions.extend(queries.into_iter().filter(|(_, query)| query.contains("label_values")));
    let wrong: Vec<_> = expressions.iter().flat_map(|(at, text)| wrong(at, text, &shown)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}\n{shown:#?}");
    let used: usize = expressions.iter().map(|(_, text)| metrics(text).len()).sum();
    assert!(used >= expressions.len() - 1, "every expression but that of `up` has a metric of ours: {used}");
}

/// The anchors of the headings of a document, as GitHub and GitLab make them.
fn anchors(path: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| -> String {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        title
            .chars()
            .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    };
    headings.map(anchor).collect()
}

/// Labels with the name of a claim.
const CLAIMS: [&str; 2] = ["persistentvolumeclaim", "claim"];

#[test]
fn alerts_name_claims_and_sections_that_exist() {
    let (shown, alerts) =
        (shown(), serde_saphyr::from_str::<Value>(&file("hostloop-alerts.yaml")).expect("YAML"));
    let groups = alerts["spec"]["groups"].as_array().expect("groups");
    let mut of_claims = 0;
    for rule in groups.iter().flat_map(|group| group["rules"].as_array().expect("rules")) {
        let url = rule["annotations"]["runbook_url"].as_str().unwrap_or_else(|| panic!("no runbook: {rule}"));
        let (path, anchor) = url.split_once('#').expect("an anchor");
        assert!(anchors(path).contains(anchor), "{url}: there is no such heading");
        let metrics = metrics(rule["expr"].as_str().expect("an expression"));
        let mut labels =
            metrics.iter().filter_map(|(name, _)| shown.get(name)).flat_map(|labels| labels.keys());
        if let Some(claim) = labels.find(|label| CLAIMS.contains(&label.as_str())) {
            let summary = rule["annotations"]["summary"].as_str().expect("a summary");
            assert!(summary.contains(&format!("$labels.{claim} ")), "the claim is not named: {rule}");
            of_claims += 1;
        }
    }
    assert!(of_claims >= 4, "unhealthy and lost volumes, late copies, and cutovers");
}

#[test]
fn the_dashboard_has_tables_of_volumes_and_nodes() {
    let dashboard: Value = serde_json::from_str(&file("hostloop-dashboard.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let asks = |panel: &Value| panel["targets"].to_string();
    for metric in ["hostloop_volume_allocated_bytes", "hostloop_volume_unhealthy"] {
        let table = panels.iter().find(|panel| panel["type"] == "table" && asks(panel).contains(metric));
        table.unwrap_or_else(|| panic!("no table of {metric}"));
    }
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    assert!(variables.iter().any(|variable| variable["name"] == "node"), "{variables:?}");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        assert!(
            asks(panel).contains("node=~"),
            "it shows all nodes, whatever was chosen: {}",
            panel["title"]
        );
    }
    let ids: BTreeSet<i64> = panels.iter().filter_map(|panel| panel["id"].as_i64()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has a number of its own");
}

#[test]
fn every_alert_says_what_to_do() {
    let alerts: Value = serde_saphyr::from_str(&file("hostloop-alerts.yaml")).expect("YAML");
    assert_eq!(alerts["kind"], "PrometheusRule");
    let groups = alerts["spec"]["groups"].as_array().expect("groups");
    let rules: Vec<&Value> =
        groups.iter().flat_map(|group| group["rules"].as_array().expect("rules")).collect();
    let names: BTreeSet<&str> = rules.iter().filter_map(|rule| rule["alert"].as_str()).collect();
    assert_eq!(names.len(), rules.len(), "each alert has a name of its own");
    for rule in rules {
        let text = |of: &Value| of.as_str().map_or(0, str::len);
        assert!(["warning", "critical"].contains(&rule["labels"]["severity"].as_str().unwrap()), "{rule}");
        let annotations = &rule["annotations"];
        assert!(text(&annotations["summary"]) > 20 && text(&annotations["description"]) > 20, "{rule}");
    }
}

/// The documentation names every metric, and none that is not there.
#[test]
fn the_documentation_is_of_these_metrics() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/monitoring.md");
    let documentation = std::fs::read_to_string(path).unwrap();
    let of_histograms = ["_bucket", "_count", "_sum"];
    let family = |name: &String| {
        let end = of_histograms
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .filter(|base| base.ends_with("_seconds"));
        end.unwrap_or(name).to_owned()
    };
    let shown: BTreeSet<String> = shown().keys().map(family).collect();
    let words = documentation.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let named: BTreeSet<String> = words
        .filter(|word| OURS.iter().any(|ours| word.starts_with(ours)))
        .map(|word| family(&word.to_owned()))
        .collect();
    assert_eq!(named, shown);
}

#[test]
fn a_wrong_expression_is_found() {
    let names: BTreeMap<_, _> =
        [("kind".to_owned(), BTreeSet::from(["free".to_owned(), "size".to_owned()]))].into();
    let shown = Shown::from([("hostloop_pool_bytes".to_owned(), names)]);
    for (expression, hint) in [
        ("rate(hostloop_pools_bytes[5m])", "has no hostloop_pools_bytes"),
        ("hostloop_pool_bytes{type=\"free\"}", "has no label type"),
        ("hostloop_pool_bytes{job=~\"a\", kind=\"fre\"} > 0", "kind=\"fre\" is never so"),
        ("sum(hostloop_pool_bytes{kind=~\"free|sise\"})", "free|sise"),
        ("sum(hostloop_pool_bytes", "do not match"),
    ] {
        let found = wrong("here", expression, &shown);
        assert!(found.len() == 1 && found[0].contains(hint), "{expression}: {found:?}");
    }
    let good = "sum by (kind) (hostloop_pool_bytes{instance=~\"hostloop_x\",kind=~\"free|size\"}) / hostloop_pool_bytes";
    assert_eq!(wrong("here", good, &shown), Vec::<String>::new());
}
