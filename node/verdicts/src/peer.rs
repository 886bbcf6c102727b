//! With whom a named rank is compared to find out why it is late.

use observed::RankRef;

use super::report::{Culprit, Report, Role};

/// With whom to compare a culprit: a rank of the same communicator that is not late, on another
/// host where there is one (what befalls the whole host is then seen), and of those the one whose
/// compute time is most like the others'. None of a host that is missing in the report's coverage:
/// it cannot be asked.
#[must_use]
pub fn peer(report: &Report, culprit: &Culprit) -> Option<RankRef> {
    peer_of_hosts(report, culprit, |_| true)
}

/// As [`peer`], of the hosts that `answers` is true of.
#[must_use]
pub fn peer_of_hosts(report: &Report, culprit: &Culprit, answers: impl Fn(&str) -> bool) -> Option<RankRef> {
    let comm = report.per_comm.iter().find(|comm| comm.comm_hash == culprit.comm_hash)?;
    comm.ranks
        .iter()
        .filter(|rank| matches!(rank.role, Role::Victim | Role::Peer))
        .filter(|rank| (&rank.node, rank.pid) != (&culprit.node, culprit.pid))
        .filter(|rank| answers(&rank.node) && !report.coverage.is_missing(&rank.node))
        .min_by_key(|rank| {
            let own = rank.own_excess_ns.unwrap_or(rank.excess_ns).unsigned_abs();
            (rank.node == culprit.node, own, rank.rank)
        })
        .map(|rank| RankRef { rank: rank.rank, node: rank.node.clone(), pid: rank.pid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CommReport, RankScore};

    #[test]
    fn no_rank_of_a_host_that_does_not_answer_is_compared_with() {
        let score = |(rank, node): (i32, &str)| RankScore {
            rank,
            node: node.into(),
            pid: i64::from(rank),
            role: Role::Victim,
            own_excess_ns: Some(i64::from(rank)),
            ..RankScore::default()
        };
        let ranks = [(1, "a"), (2, "b"), (3, "c"), (4, "d")].map(score).into();
        let comm = CommReport { comm_hash: "f".into(), ranks, ..CommReport::default() };
        let mut report = Report { per_comm: vec![comm], ..Report::default() };
        let culprit = Culprit { node: "a".into(), pid: 1, comm_hash: "f".into(), ..Culprit::default() };
        let node = |peer: Option<RankRef>| peer.map(|peer| peer.node);
        assert_eq!(node(peer(&report, &culprit)).as_deref(), Some("b"));
        report.coverage.missing.push(("b".into(), "dead".into()));
        assert_eq!(node(peer(&report, &culprit)).as_deref(), Some("c"));
        assert_eq!(node(peer_of_hosts(&report, &culprit, |node| node != "c")).as_deref(), Some("d"));
    }
}
