//! What a finding costs in money, where the site of this agent has rates.

use std::collections::BTreeMap;

use explain::cost::{Host, Money, Rates, Waste};
use verdicts::{Report, Role, Verdict};

use super::super::Shared;

/// The cost of a report's verdict; none where the site has no rates that can be used, or nobody is
/// named. What a GPU's model costs is not asked for here: its name is in the stores of the hosts.
pub(super) fn of_site(shared: &Shared, report: &Report) -> Option<Money> {
    let rates = Rates::of_site()
        .inspect_err(|error| tracing::warn!("findings have no costs in money: {error}"))
        .ok()
        .flatten()?;
    let members = shared.coordinator.gossip.members();
    let host = |labels: &BTreeMap<String, String>| Host { labels: labels.clone(), model: None };
    let hosts = members.iter().map(|member| (member.name.clone(), host(&member.facts.labels))).collect();
    money(&rates, &hosts, report)
}

fn money(rates: &Rates, hosts: &BTreeMap<String, Host>, report: &Report) -> Option<Money> {
    let Verdict::Rank { culprit, .. } = &report.verdict else { return None };
    let waste = Waste {
        gpu_seconds: report.cost.gpu_seconds_wasted,
        gpus_lost: report.cost.gpus_lost,
        gpu_seconds_per_step: report.cost.per_step.map(|step| step.gpu_seconds_wasted),
        upper_bound: report.cost.upper_bound,
    };
    let comm = report.per_comm.iter().find(|comm| comm.comm_hash == culprit.comm_hash)?;
    let waiting: Vec<&str> =
        comm.ranks.iter().filter(|rank| rank.role != Role::Culprit).map(|rank| rank.node.as_str()).collect();
    rates.money(&waste, &waiting, hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_named_costs_nothing() {
        let rates = Rates::of_flag("2.49EUR").unwrap();
        assert_eq!(money(&rates, &BTreeMap::new(), &Report::default()), None);
    }
}
