//! Whether an answer is right: its rows by the oracle over exactly the hosts that are in it by its
//! coverage, its coverage by the timeline.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use model::Coverage;
use query_planner::Value;

use super::oracle::{Oracle, same, unions};
use super::questions::{Drawn, Scope, name_of};
use super::relay::HostId;
use super::timeline::Timeline;

/// Combinations of versions of rows that are tried, where hosts returned with other rows during the
/// question.
const WAYS: usize = 64;

/// How long two hosts must have been up and joined before a question if the coordinator lists the
/// other as live: an older connection may first have to be found dead.
const SETTLED: Duration = Duration::from_secs(4);

/// How long they must have been so that the coordinator has to list the other as live: halves of a mesh
/// are one again by then.
const KNOWN: Duration = Duration::from_secs(30);

/// A question with its result.
#[derive(Debug)]
pub struct Put {
    /// The question.
    pub drawn: Drawn,
    /// The coordinator.
    pub coordinator: HostId,
    /// Begin and end.
    pub began: Instant,
    /// When the answer was there.
    pub ended: Instant,
    /// Its deadline.
    pub timeout: Duration,
    /// Members that the coordinator listed before the question, at its begin and after it.
    pub listed: Vec<BTreeSet<HostId>>,
    /// Those of them that it listed before as live, at their present addresses.
    pub live: BTreeSet<HostId>,
    /// How late this machine was with other work during the question.
    pub lag: Duration,
    /// The result.
    pub came: Came,
}

/// The result of a question.
#[derive(Debug)]
pub enum Came {
    /// Rows and coverage.
    Answer(Vec<Vec<Value>>, Coverage),
    /// Wrong SQL, or a wrong choice of nodes.
    Wrong(String),
    /// No answer.
    Failed(String),
    /// The coordinator was killed meanwhile.
    Nobody,
}

/// The judgement on an answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Judgement {
    /// The rows differ from the oracle's.
    pub wrong_rows: Option<String>,
    /// Coverage does not fit the timeline.
    pub wrong_coverage: Option<String>,
    /// It failed although the coordinator itself could answer.
    pub failed: Option<String>,
    /// By how much it exceeded its deadline and a tenth.
    pub late: Option<Duration>,
    /// Hosts that were missing, with good reason.
    pub missing: usize,
    /// Whether every host that was asked answered.
    pub complete: bool,
}

/// Judges one question.
pub fn judge(put: &Put, timeline: &Timeline, oracle: &mut Oracle) -> Judgement {
    let mut judgement = Judgement::default();
    let coordinator_up = timeline.up(put.coordinator, put.began, put.ended);
    let allowed = put.timeout.mul_f64(1.1);
    let took = put.ended.duration_since(put.began);
    if coordinator_up && took > allowed {
        judgement.late = Some(took - allowed);
    }
    match &put.came {
        Came::Nobody => {}
        Came::Wrong(message) => judgement.failed = Some(format!("taken for wrong: {message}")),
        Came::Failed(message) => {
            let own_part = match &put.drawn.scope {
                Scope::Hosts(hosts) => hosts.contains(&put.coordinator),
                Scope::All | Scope::AnyOne => true,
            };
            // A machine that was late with everything may be late with the coordinator's own part.
            if coordinator_up && own_part && put.lag < put.timeout / 4 {
                judgement.failed = Some(message.clone());
            }
        }
        Came::Answer(rows, coverage) => {
            judgement.complete = coverage.is_complete();
            judgement.missing = coverage.missing.len();
            match covered(put, coverage, timeline) {
                Ok(answered) => {
                    judgement.wrong_rows = wrong_rows(put, rows, &answered, timeline, oracle).err();
                }
                Err(why) => judgement.wrong_coverage = Some(why),
            }
        }
    }
    judgement
}

/// The hosts that answered by the coverage, or what is wrong with it.
fn covered(put: &Put, coverage: &Coverage, timeline: &Timeline) -> Result<BTreeSet<HostId>, String> {
    let mut missing = BTreeSet::new();
    for gone in &coverage.missing {
        let host = gone.node.strip_prefix('n').and_then(|id| id.parse().ok());
        let host: HostId = host.ok_or_else(|| format!("{} is missing, which there is not", gone.node))?;
        if gone.reason.is_empty() || !missing.insert(host) {
            return Err(format!("{} is missing twice or for no reason", gone.node));
        }
    }
    if coverage.answered + missing.len() != coverage.asked {
        return Err(format!("{} answered and {} missing of {}", coverage.answered, missing.len(), coverage.asked));
    }
    let asked: BTreeSet<HostId> = match &put.drawn.scope {
        // Equal everywhere: any host may have answered.
        Scope::AnyOne => return Ok(BTreeSet::new()),
        Scope::Hosts(hosts) => {
            let hosts: BTreeSet<HostId> = hosts.iter().copied().collect();
            // Not listed: the coordinator has just been started and cannot know it. One that knows
            // no other asks itself, whatever the question names, and its coverage shows that.
            let alone = BTreeSet::from([put.coordinator]);
            let of = |listed: &BTreeSet<HostId>| if *listed == alone { alone.clone() } else { &hosts & listed };
            put.listed
                .iter()
                .map(of)
                .find(|asked| asked.len() == coverage.asked)
                .ok_or_else(|| format!("{} asked of {hosts:?}, listed {:?}", coverage.asked, put.listed))?
        }
        Scope::All => put
            .listed
            .iter()
            .find(|listed| listed.len() == coverage.asked)
            .cloned()
            .ok_or_else(|| format!("{} asked, listed {:?}", coverage.asked, put.listed))?,
    };
    if !missing.is_subset(&asked) {
        return Err(format!("missing {missing:?}, asked {asked:?}"));
    }
    let answered = &asked - &missing;
    for host in &answered {
        if timeline.parted(put.coordinator, *host, put.began, put.ended) {
            return Err(format!("{} is said to have answered and could not", name_of(*host)));
        }
    }
    for host in &missing {
        let joined = |margin| timeline.joined(put.coordinator, *host, put.began, put.ended, margin);
        let well = joined(KNOWN) || (joined(SETTLED) && put.live.contains(host));
        if well && put.lag < put.timeout / 4 {
            let reason = coverage.missing.iter().find(|gone| gone.node == name_of(*host)).map(|gone| &gone.reason);
            return Err(format!("{} was well all the time and is missing: {reason:?}", name_of(*host)));
        }
    }
    Ok(answered)
}

fn wrong_rows(
    put: &Put,
    rows: &[Vec<Value>],
    answered: &BTreeSet<HostId>,
    timeline: &Timeline,
    oracle: &mut Oracle,
) -> Result<(), String> {
    let versions = |host| timeline.versions(host, put.began, put.ended);
    let mut expected = None;
    for union in unions(answered, versions, WAYS) {
        let answer = oracle.answer(&union, &put.drawn.sql).map_err(|error| format!("the oracle says: {error}"))?;
        if same(rows, &answer, put.drawn.ordered) {
            return Ok(());
        }
        expected.get_or_insert(answer);
    }
    Err(format!("answered {answered:?}: {rows:?}, the oracle says {:?}", expected.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use model::Missing;

    use super::super::timeline::HostState;
    use super::*;

    fn put(came: Came, timeout: Duration) -> Put {
        let all: BTreeSet<HostId> = [0, 1].into();
        let sql = "SELECT count(*), sum(v) FROM t".to_owned();
        Put {
            drawn: Drawn { sql, ordered: true, scope: Scope::All },
            coordinator: 0,
            began: Instant::now(),
            ended: Instant::now(),
            timeout,
            listed: vec![all.clone(), all.clone()],
            live: all,
            lag: Duration::ZERO,
            came,
        }
    }

    fn coverage(missing: &[&str]) -> Coverage {
        let missing: Vec<Missing> =
            missing.iter().map(|node| Missing { node: (*node).to_owned(), reason: "timeout".into() }).collect();
        Coverage { asked: 2, answered: 2 - missing.len(), missing, notes: Vec::new() }
    }

    fn timeline() -> Timeline {
        let mut timeline = Timeline::default();
        for host in [0, 1] {
            timeline.host(host, HostState::Up);
            timeline.version(host, 0);
        }
        timeline
    }

    #[test]
    fn rows_are_judged_by_the_hosts_that_answered() {
        let (mut timeline, mut oracle) = (timeline(), Oracle::new(3));
        let sql = "SELECT count(*), sum(v) FROM t";
        let both = oracle.answer(&vec![(0, 0), (1, 0)], sql).unwrap();
        let one = oracle.answer(&vec![(0, 0)], sql).unwrap();
        let second = Duration::from_secs(1);
        let mut judged = |rows: &Vec<Vec<Value>>, missing: &[&str], timeline: &Timeline| {
            judge(&put(Came::Answer(rows.clone(), coverage(missing)), second), timeline, &mut oracle)
        };
        assert_eq!(judged(&both, &[], &timeline), Judgement { complete: true, ..Judgement::default() });
        assert!(judged(&one, &[], &timeline).wrong_rows.is_some(), "a host's rows are not there");
        assert!(judged(&both, &["n1"], &timeline).wrong_rows.is_some(), "rows of a host that did not answer");
        assert!(judged(&one, &["n1"], &timeline).wrong_rows.is_none());
        assert!(judged(&one, &["n7"], &timeline).wrong_coverage.is_some());
        timeline.host(1, HostState::Down);
        let why = judged(&both, &[], &timeline).wrong_coverage.unwrap();
        assert!(why.contains("could not"), "{why}");
    }

    #[test]
    fn who_was_joined_for_long_is_missed_wrongly_however_it_is_listed() {
        let (timeline, mut oracle) = (timeline(), Oracle::new(3));
        let one = oracle.answer(&vec![(0, 0)], "SELECT count(*), sum(v) FROM t").unwrap();
        let mut wrong_coverage = |after: Duration, is_listed: bool| {
            let mut put = put(Came::Answer(one.clone(), coverage(&["n1"])), Duration::from_secs(1));
            (put.began, put.ended) = (put.began + after, put.ended + after);
            put.live.retain(|host| is_listed || *host == 0);
            judge(&put, &timeline, &mut oracle).wrong_coverage.is_some()
        };
        let seconds = [1, 6, 36].map(Duration::from_secs);
        assert_eq!(seconds.map(|after| wrong_coverage(after, true)), [false, true, true]);
        assert_eq!(seconds.map(|after| wrong_coverage(after, false)), [false, false, true]);
    }

    #[test]
    fn failures_and_lateness_count_when_the_coordinator_was_well() {
        let (mut timeline, mut oracle) = (timeline(), Oracle::new(3));
        let mut failed = put(Came::Failed("no node answered".into()), Duration::ZERO);
        failed.timeout = Duration::from_nanos(1);
        failed.ended = failed.began + Duration::from_millis(7);
        let judgement = judge(&failed, &timeline, &mut oracle);
        assert!(judgement.late.is_some() && judgement.failed.is_none(), "{judgement:?}");
        failed.timeout = Duration::from_secs(1);
        assert!(judge(&failed, &timeline, &mut oracle).failed.is_some());
        timeline.host(0, HostState::Down);
        failed.ended = Instant::now();
        assert_eq!(judge(&failed, &timeline, &mut oracle), Judgement::default());
    }
}
