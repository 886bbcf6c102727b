//! Money next to a verdict: which rates apply, and the facts about hosts that they need.

use std::collections::BTreeMap;
use std::time::Duration;

use ask::rows::Client;
use ask::{Target, UsageError};
use explain::cost::{Host, Money, Rates, Waste};
use model::LocalRequest;
use model::cells::text;
use serde_json::Value;

use super::args::RateArgs;

/// Time for asking hosts which GPUs they have.
const PATIENCE: Duration = Duration::from_secs(3);

/// Rates with the facts about hosts that they need.
pub struct Priced {
    rates: Rates,
    hosts: BTreeMap<String, Host>,
}

impl Priced {
    /// The rates that apply; none where none are given.
    pub fn of(args: &RateArgs, target: &Target) -> anyhow::Result<Option<Self>> {
        let wrong = |error: explain::cost::RatesError| UsageError(error.to_string());
        let rates = match (&args.gpu_hour, &args.rates) {
            (Some(price), _) => Some(Rates::of_flag(price).map_err(wrong)?),
            (None, Some(file)) => Some(Rates::of_file(file).map_err(wrong)?),
            // A mistake in the site's file does not keep anybody from a verdict.
            (None, None) => Rates::of_site().unwrap_or_else(|error| {
                eprintln!("rankmesh: no costs in money: {error}");
                None
            }),
        };
        let Some(rates) = rates else { return Ok(None) };
        let hosts = if rates.differ() { hosts(target) } else { BTreeMap::new() };
        Ok(Some(Self { rates, hosts }))
    }

    /// The money of a waste, priced by the hosts that waited.
    pub fn money(&self, waste: &Waste, waiting: &[&str]) -> Option<Money> {
        self.rates.money(waste, waiting, &self.hosts)
    }

    /// What the verdict of a report (as JSON) costs; none where no rank is named.
    pub fn of_report(&self, report: &Value) -> Option<Money> {
        let cost = &report["cost"];
        let gpu_seconds = cost["gpu_seconds_wasted"].as_f64().filter(|seconds| *seconds > 0.0)?;
        let waste = Waste {
            gpu_seconds,
            gpus_lost: cost["gpus_lost"].as_f64().unwrap_or(0.0),
            gpu_seconds_per_step: cost["per_step"]["gpu_seconds_wasted"].as_f64(),
            upper_bound: cost["upper_bound"].as_bool().unwrap_or(false),
        };
        let comms = report["per_comm"].as_array()?;
        let comm = comms.iter().find(|comm| comm["comm_hash"] == report["verdict"]["comm_hash"]).or(comms.first())?;
        let ranks = comm["ranks"].as_array()?.iter().filter(|rank| rank["role"] != "culprit");
        let waiting: Vec<&str> = ranks.filter_map(|rank| rank["node"].as_str()).collect();
        self.money(&waste, &waiting)
    }
}

/// Labels and GPU models by host, as far as they are known.
fn hosts(target: &Target) -> BTreeMap<String, Host> {
    let mut hosts: BTreeMap<String, Host> = BTreeMap::new();
    if let Ok(json) = target.document(LocalRequest::Nodes) {
        let nodes: Vec<Value> = serde_json::from_str(&json).unwrap_or_default();
        for node in nodes {
            let labels = node["labels"].as_object().into_iter().flatten();
            let labels = labels.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()));
            let name = node["name"].as_str().unwrap_or_default().to_owned();
            hosts.insert(name, Host { labels: labels.collect(), model: None });
        }
    }
    let client = Client::of_all(target, PATIENCE);
    let models = client.ask("SELECT DISTINCT node, model FROM gpu_samples WHERE model IS NOT NULL".to_owned());
    for row in models.map(|found| found.rows).unwrap_or_default() {
        hosts.entry(text(&row, 0)).or_default().model = Some(text(&row, 1));
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_costs_what_those_who_wait_cost() {
        let priced = Priced { rates: Rates::of_flag("3.60EUR").unwrap(), hosts: BTreeMap::new() };
        let report = serde_json::json!({
            "verdict": { "kind": "rank", "comm_hash": "c" },
            "cost": { "gpu_seconds_wasted": 1000.0, "gpus_lost": 2.0, "upper_bound": true, "per_step": null },
            "per_comm": [{ "comm_hash": "c", "ranks": [{ "node": "a", "role": "culprit" }, { "node": "b", "role": "victim" }] }],
        });
        let money = priced.of_report(&report).unwrap();
        assert!((money.total - 1.0).abs() < 1e-9 && (money.per_hour - 7.2).abs() < 1e-9, "{money:?}");
        assert!(money.upper_bound && money.per_step.is_none());
        let nobody =
            serde_json::json!({ "verdict": { "kind": "none" }, "cost": { "gpu_seconds_wasted": 0.0 }, "per_comm": [] });
        assert_eq!(priced.of_report(&nobody), None);
    }
}
