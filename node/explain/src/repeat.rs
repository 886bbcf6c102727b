//! Hosts that are named in more jobs than chance would name them in: each job names one of its
//! hosts, and without a fault of a host each of them as often as any other.
//!
//! Pure: findings in, hosts out. Hangs do not count, nor delays whose cause lies in the program:
//! it would make them on any host.

use std::collections::{BTreeMap, BTreeSet};

use model::cells::{NO_VERDICTS, integer, text};
use query_planner::Value;
use serde::Serialize;
use verdicts::Kind;

/// Jobs in which a host has to be named.
const LEAST: usize = 3;
/// As often as that by chance, of all hosts together, is no suspicion.
const BY_CHANCE: f64 = 0.05;

/// The columns of `findings` that [`suspected`] reads, in its order.
const COLUMNS: &str = "job_id, culprit_node, verdict, ts_ns, \
     iif(json_valid(detail), json_extract(detail, '$.job.hosts'), NULL), \
     iif(json_valid(detail), json_extract(detail, '$.cause.named'), NULL)";

/// A host that is named more often than its share of jobs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Suspect {
    /// The host.
    pub node: String,
    /// The jobs in which it was named, the newest first.
    pub jobs: Vec<String>,
    /// Jobs with a finding that counts in which it took part.
    pub of_jobs: usize,
    /// In so many it would be named by chance.
    pub expected: f64,
}

impl Suspect {
    /// What is said of it: "n7 was the culprit in 4 of 5 jobs, by chance in 0.6".
    #[must_use]
    pub fn sentence(&self) -> String {
        format!(
            "{} was the culprit in {} of the {} jobs that it took part in (by chance: in {:.1}), the last of them {}",
            self.node,
            self.jobs.len(),
            self.of_jobs,
            self.expected,
            self.jobs.iter().take(5).cloned().collect::<Vec<_>>().join(", ")
        )
    }
}

/// The question for findings since a time, Unix nanoseconds.
#[must_use]
pub fn sql(since_ns: i64) -> String {
    format!(
        "SELECT {COLUMNS} FROM findings WHERE culprit_node IS NOT NULL AND job_id IS NOT NULL AND verdict <> 'hang' \
         AND verdict NOT IN {NO_VERDICTS} AND ts_ns >= {since_ns} ORDER BY ts_ns DESC"
    )
}

/// The hosts that are suspected, by the rows of [`sql`], in most jobs first.
#[must_use]
pub fn suspected(rows: &[Vec<Value>]) -> Vec<Suspect> {
    let mut jobs: BTreeMap<String, Job> = BTreeMap::new();
    for row in rows.iter().filter(|row| text(row, 2) != "hang" && !is_of_program(&text(row, 5))) {
        let (id, node) = (text(row, 0), text(row, 1));
        let hosts: BTreeSet<String> = serde_json::from_str(&text(row, 4)).unwrap_or_default();
        // Of a job whose hosts are not known chance says nothing.
        if id.is_empty() || !hosts.contains(&node) {
            continue;
        }
        let job = jobs.entry(id).or_default();
        job.last_ns = job.last_ns.max(integer(row, 3).unwrap_or(0));
        job.hosts.extend(hosts);
        job.named.insert(node);
    }
    let mut named: BTreeSet<&str> = BTreeSet::new();
    jobs.values().for_each(|job| named.extend(job.named.iter().map(String::as_str)));
    let mut all: Vec<Suspect> = named.into_iter().filter_map(|node| suspect(node, &jobs)).collect();
    all.sort_by(|a, b| b.jobs.len().cmp(&a.jobs.len()).then_with(|| a.node.cmp(&b.node)));
    all
}

/// What findings say of a job.
#[derive(Debug, Default)]
struct Job {
    last_ns: i64,
    hosts: BTreeSet<String>,
    named: BTreeSet<String>,
}

fn suspect(node: &str, jobs: &BTreeMap<String, Job>) -> Option<Suspect> {
    let took_part: Vec<(&String, &Job)> = jobs.iter().filter(|(_, job)| job.hosts.contains(node)).collect();
    let chances = took_part.iter().map(|(_, job)| (job.named.len() as f64 / job.hosts.len() as f64).min(1.0));
    let chances: Vec<f64> = chances.collect();
    let mut named: Vec<(&String, &Job)> =
        took_part.iter().filter(|(_, job)| job.named.contains(node)).copied().collect();
    named.sort_by_key(|(_, job)| std::cmp::Reverse(job.last_ns));
    let hosts = took_part.iter().flat_map(|(_, job)| &job.hosts).collect::<BTreeSet<_>>().len();
    let is_more = named.len() >= LEAST && at_least(named.len(), &chances) * hosts as f64 <= BY_CHANCE;
    is_more.then(|| Suspect {
        node: node.to_owned(),
        jobs: named.into_iter().map(|(id, _)| id.clone()).collect(),
        of_jobs: took_part.len(),
        expected: chances.iter().sum(),
    })
}

/// The probability that at least so many of independent events come true.
fn at_least(count: usize, chances: &[f64]) -> f64 {
    // By how many came true so far; more than `count` are as good as `count`.
    let mut come_true = vec![0.0; count + 1];
    come_true[0] = 1.0;
    for chance in chances {
        for at in (0..=count).rev() {
            let stays = if at == count { 1.0 } else { 1.0 - chance };
            let comes = at.checked_sub(1).map_or(0.0, |before| come_true[before] * chance);
            come_true[at] = come_true[at] * stays + comes;
        }
    }
    come_true[count]
}

/// Whether all causes that are named, as JSON, lie in the program.
fn is_of_program(named: &str) -> bool {
    let named: Vec<Kind> = serde_json::from_str(named).unwrap_or_default();
    !named.is_empty() && named.into_iter().all(Kind::is_of_program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(job: u32, node: &str, hosts: &[&str], cause: &str) -> Vec<Value> {
        let text = |text: String| Value::Text(text.into_bytes());
        vec![
            text(job.to_string()),
            text(node.to_owned()),
            text("rank".to_owned()),
            Value::Integer(job.into()),
            text(serde_json::to_string(hosts).unwrap()),
            text(format!("[\"{cause}\"]")),
        ]
    }

    #[test]
    fn a_host_is_suspected_that_is_named_more_often_than_its_share_of_jobs() {
        let four = ["n1", "n2", "n3", "n4"];
        let of = |jobs: u32, hosts: &[&str], cause: &str| {
            suspected(&(0..jobs).map(|job| finding(job, "n2", hosts, cause)).collect::<Vec<_>>())
        };
        assert!(
            of(3, &four, "cpu_stolen").is_empty(),
            "one of four hosts is named in three jobs in a row now and then"
        );
        let [found] = &of(4, &four, "cpu_stolen")[..] else { panic!("not found") };
        assert_eq!((found.jobs.len(), found.of_jobs, found.expected), (4, 4, 1.0));
        assert_eq!(
            found.sentence(),
            "n2 was the culprit in 4 of the 4 jobs that it took part in (by chance: in 1.0), the last of them 3, 2, 1, 0"
        );
        assert!(of(100, &["n2"], "cpu_stolen").is_empty(), "a mesh of one host");
        assert!(of(5, &["n1", "n2"], "cpu_stolen").is_empty());
        assert_eq!(of(6, &["n1", "n2"], "block_io").len(), 1);
        assert!(of(6, &["n1", "n2"], "sleep").is_empty(), "a program that sleeps does so everywhere");
        // In 20 jobs of four hosts each is named in five.
        let turns = (0..20).map(|job| finding(job, four[job as usize % 4], &four, "cpu_stolen"));
        assert!(suspected(&turns.collect::<Vec<_>>()).is_empty());
        // Named in four jobs, but of forty in which it took part.
        let rare = (0..40).map(|job| finding(job, if job < 4 { "n2" } else { "n1" }, &four, "cpu_stolen"));
        assert!(suspected(&rare.collect::<Vec<_>>()).iter().all(|found| found.node == "n1"));
        let mut unknown = finding(1, "n2", &four, "cpu_stolen");
        unknown[4] = Value::Null;
        assert!(suspected(&vec![unknown; 9]).is_empty(), "its hosts are not known");
    }

    #[test]
    fn the_chance_of_several_events_is_that_of_the_binomial_distribution() {
        let half = [0.5; 4];
        assert!((at_least(2, &half) - 11.0 / 16.0).abs() < 1e-12);
        assert!((at_least(4, &half) - 1.0 / 16.0).abs() < 1e-12);
        assert!((at_least(0, &half) - 1.0).abs() < 1e-12);
        assert!((at_least(1, &[0.5, 0.25]) - 0.625).abs() < 1e-12);
    }
}
