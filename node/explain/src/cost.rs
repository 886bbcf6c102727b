//! The cost of waiting: GPU-seconds into money, by the rates that the site or the requester gives.
//!
//! There is no price in the program and none is fetched. A rate comes from `--gpu-hour 2.49EUR`, or
//! from a file such as [`SITE_FILE`]:
//!
//! ```toml
//! currency = "EUR"
//! gpu_hour = 1.10                                 # where nothing below matches
//! labels = [{ label = "partition=h100", gpu_hour = 2.49 }]
//! models = [{ model = "A100", gpu_hour = 1.50 }]  # a part of the GPU's name
//! ```
//!
//! The first label that a host has wins, then the first model that its GPU's name contains.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Where a site's file of rates is.
pub const SITE_FILE: &str = "/etc/rankmesh/rates.toml";
/// Largest file of rates.
const MOST_BYTES: u64 = 1 << 20;
/// A price above this is taken for a typing error.
const MOST: f64 = 1e6;

/// Rates that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}; wanted is a price of one GPU for one hour such as 2.49EUR, or a file as docs/cost.md shows")]
pub struct RatesError {
    what: String,
    why: String,
}

/// What a GPU costs for an hour.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Currency of all rates.
    pub currency: String,
    /// Where no label and no model matches.
    #[serde(default)]
    gpu_hour: Option<f64>,
    #[serde(default)]
    labels: Vec<LabelRate>,
    #[serde(default)]
    models: Vec<ModelRate>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct LabelRate {
    label: String,
    gpu_hour: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelRate {
    model: String,
    gpu_hour: f64,
}

/// Facts about a host that rates refer to.
#[derive(Debug, Clone, Default)]
pub struct Host {
    /// Its labels in the mesh.
    pub labels: BTreeMap<String, String>,
    /// Its GPU's model.
    pub model: Option<String>,
}

/// A cost in money.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Money {
    /// Currency of all amounts.
    pub currency: String,
    /// What a GPU costs for an hour, mean over the ranks that wait.
    pub gpu_hour: f64,
    /// Of the span.
    pub total: f64,
    /// For each hour that it goes on.
    pub per_hour: f64,
    /// For each step, where steps are known.
    pub per_step: Option<f64>,
    /// The amounts are at most these.
    pub upper_bound: bool,
    /// Waiting ranks on hosts without a rate; they are not in the amounts' mean.
    pub without_rate: usize,
}

impl Rates {
    /// Reads `2.49EUR`.
    ///
    /// # Errors
    /// It is no price.
    pub fn of_flag(text: &str) -> Result<Self, RatesError> {
        let error = |why: &str| RatesError { what: text.escape_debug().to_string(), why: why.to_owned() };
        let text = text.trim();
        let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(|| error("no currency"))?;
        let (amount, currency) = text.split_at(at);
        let amount: f64 = amount.parse().map_err(|_| error("no amount"))?;
        Self { currency: currency.trim().to_owned(), gpu_hour: Some(amount), labels: Vec::new(), models: Vec::new() }
            .checked()
            .map_err(|why| error(&why))
    }

    /// Reads a file of rates.
    ///
    /// # Errors
    /// It cannot be read, or is not valid.
    pub fn of_file(path: &Path) -> Result<Self, RatesError> {
        let error = |why: String| RatesError { what: path.display().to_string(), why };
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(|why| error(why.to_string()))?;
        file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(|why| error(why.to_string()))?;
        if text.len() as u64 > MOST_BYTES {
            return Err(error(format!("more than {MOST_BYTES} bytes")));
        }
        Self::of_toml(&text).map_err(error)
    }

    /// The site's rates; none where it has no file of them.
    ///
    /// # Errors
    /// As [`Rates::of_file`].
    pub fn of_site() -> Result<Option<Self>, RatesError> {
        let path = Path::new(SITE_FILE);
        if path.exists() { Self::of_file(path).map(Some) } else { Ok(None) }
    }

    fn of_toml(text: &str) -> Result<Self, String> {
        toml::from_str::<Self>(text).map_err(|error| error.to_string().trim().replace('\n', " "))?.checked()
    }

    fn checked(self) -> Result<Self, String> {
        let letters = |c: char| c.is_alphabetic() || matches!(c, '€' | '$' | '£' | '¥');
        if self.currency.is_empty() || self.currency.chars().count() > 8 || !self.currency.chars().all(letters) {
            return Err(format!("no currency: {:?}", self.currency));
        }
        let amounts = self.labels.iter().map(|rate| rate.gpu_hour).chain(self.models.iter().map(|rate| rate.gpu_hour));
        if let Some(wrong) = amounts.chain(self.gpu_hour).find(|amount| !(0.0..=MOST).contains(amount)) {
            return Err(format!("an hour for {wrong}"));
        }
        if let Some(wrong) =
            self.labels.iter().find(|rate| rate.label.split_once('=').is_none_or(|(k, _)| k.is_empty()))
        {
            return Err(format!("the label {:?} is not KEY=VALUE", wrong.label));
        }
        if self.models.iter().any(|rate| rate.model.is_empty()) {
            return Err("a model without a name".to_owned());
        }
        if self.gpu_hour.is_none() && self.labels.is_empty() && self.models.is_empty() {
            return Err("no rate".to_owned());
        }
        Ok(self)
    }

    /// Whether hosts have to be asked for their labels and models.
    #[must_use]
    pub fn differ(&self) -> bool {
        !self.labels.is_empty() || !self.models.is_empty()
    }

    /// What a GPU of this host costs for an hour.
    #[must_use]
    pub fn of(&self, host: &Host) -> Option<f64> {
        let has = |label: &str| {
            label.split_once('=').is_some_and(|(key, value)| host.labels.get(key).is_some_and(|found| found == value))
        };
        let by_label = self.labels.iter().find(|rate| has(&rate.label)).map(|rate| rate.gpu_hour);
        let model = host.model.as_deref().unwrap_or_default();
        let by_model = || self.models.iter().find(|rate| model.contains(&rate.model)).map(|rate| rate.gpu_hour);
        by_label.or_else(by_model).or(self.gpu_hour)
    }

    /// What waiting costs. `waiting` names the host of each rank that waits.
    #[must_use]
    pub fn money(&self, waste: &Waste, waiting: &[&str], hosts: &BTreeMap<String, Host>) -> Option<Money> {
        let unknown = Host::default();
        let of = |node: &&str| self.of(hosts.get(*node).unwrap_or(&unknown));
        let known: Vec<f64> = waiting.iter().filter_map(of).collect();
        let gpu_hour = if known.is_empty() && waiting.is_empty() {
            self.of(&unknown)?
        } else if known.is_empty() {
            return None;
        } else {
            known.iter().sum::<f64>() / known.len() as f64
        };
        Some(Money {
            currency: self.currency.clone(),
            gpu_hour,
            total: waste.gpu_seconds / 3600.0 * gpu_hour,
            per_hour: waste.gpus_lost * gpu_hour,
            per_step: waste.gpu_seconds_per_step.map(|seconds| seconds / 3600.0 * gpu_hour),
            upper_bound: waste.upper_bound,
            without_rate: waiting.len() - known.len(),
        })
    }
}

/// Time that ranks waited.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Waste {
    /// Sum over the ranks, seconds.
    pub gpu_seconds: f64,
    /// The same as a number of idle ranks.
    pub gpus_lost: f64,
    /// Seconds of each step, where steps are known.
    pub gpu_seconds_per_step: Option<f64>,
    /// The true value is at most this.
    pub upper_bound: bool,
}

impl Money {
    /// One sentence for a person.
    #[must_use]
    pub fn text(&self) -> String {
        let (most, currency) = (if self.upper_bound { "at most " } else { "" }, &self.currency);
        let step = self.per_step.map_or_else(String::new, |step| format!(", {most}{} {currency} a step", amount(step)));
        let without = match self.without_rate {
            0 => String::new(),
            n => format!(" ({n} ranks wait on hosts without a rate)"),
        };
        format!(
            "At {} {currency} a GPU hour: {most}{} {currency} in that time, {most}{} {currency} an hour{step}{without}.",
            amount(self.gpu_hour),
            amount(self.total),
            amount(self.per_hour)
        )
    }
}

/// An amount of money: two digits after the point, small ones with two significant digits.
#[must_use]
pub fn amount(value: f64) -> String {
    let small = value.abs() > 0.0 && value.abs() < 0.1;
    let digits = if small { (1.0 - value.abs().log10().floor()).clamp(2.0, 12.0) as usize } else { 2 };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WASTE: Waste =
        Waste { gpu_seconds: 3_600.0, gpus_lost: 6.5, gpu_seconds_per_step: Some(1.8), upper_bound: false };

    fn hosts() -> BTreeMap<String, Host> {
        let host = |label: &str, model: &str| Host {
            labels: [("partition".to_owned(), label.to_owned())].into(),
            model: Some(model.to_owned()),
        };
        [("a".to_owned(), host("h100", "NVIDIA A100-SXM4")), ("b".to_owned(), host("x", "NVIDIA A100-SXM4"))].into()
    }

    #[test]
    fn one_rate_makes_money_of_seconds() {
        let money = Rates::of_flag("2.49EUR").unwrap().money(&WASTE, &["a", "b"], &BTreeMap::new()).unwrap();
        assert_eq!((money.total, money.without_rate), (2.49, 0));
        assert_eq!(
            money.text(),
            "At 2.49 EUR a GPU hour: 2.49 EUR in that time, 16.19 EUR an hour, 0.0012 EUR a step."
        );
        let most = Money { upper_bound: true, per_step: None, ..money };
        assert!(most.text().contains("at most 2.49 EUR in that time"), "{}", most.text());
    }

    #[test]
    fn labels_come_before_models_and_these_before_the_rest() {
        let text = "currency = \"EUR\"\nlabels = [{ label = \"partition=h100\", gpu_hour = 3.0 }]\n\
                    models = [{ model = \"A100\", gpu_hour = 1.5 }]";
        let rates = Rates::of_toml(text).unwrap();
        let hosts = hosts();
        assert_eq!(
            (rates.of(&hosts["a"]), rates.of(&hosts["b"]), rates.of(&Host::default())),
            (Some(3.0), Some(1.5), None)
        );
        let money = rates.money(&WASTE, &["a", "b", "c"], &hosts).unwrap();
        assert_eq!((money.gpu_hour, money.without_rate), (2.25, 1));
        assert!(money.text().contains("1 ranks wait on hosts without a rate"));
        assert_eq!(rates.money(&WASTE, &["c"], &hosts), None, "no host with a rate");
    }

    #[test]
    fn wrong_rates_say_what_is_wanted() {
        for wrong in ["", "2.49", "EUR", "-1EUR", "1e3EUR", "2.4.9EUR", "1 2", "NaNEUR", "99999999EUR", "1EUR\u{1b}[2J"]
        {
            let error = Rates::of_flag(wrong).unwrap_err().to_string();
            assert!(error.contains("such as 2.49EUR") && !error.contains('\u{1b}'), "{wrong:?}: {error}");
        }
        for wrong in [
            "gpu_hour = 1",
            "currency = \"EUR\"",
            "currency = \"EUR\"\ngpu_hour = -1",
            "currency = \"EUR\"\ngpu_hour = nan",
            "currency = \"EUR\"\ngpuhour = 1",
            "currency = \"EUR\"\nlabels = [{ label = \"h100\", gpu_hour = 1 }]",
            "currency = \"\"\ngpu_hour = 1",
            "[",
        ] {
            assert!(Rates::of_toml(wrong).is_err(), "{wrong}");
        }
        let missing = Rates::of_file(Path::new("/no/such/file")).unwrap_err().to_string();
        assert!(missing.contains("/no/such/file"), "{missing}");
    }
}
