//! How a verdict is published: the report without its long tables, in a bounded text.

use std::collections::BTreeSet;
use std::sync::Arc;

use observed::RankRef;
use serde::{Deserialize, Serialize};
use verdicts::{Report, Verdict, peer};

use super::Standing;
use super::job::JobName;

/// The layout of the text; another is refused.
const VERSION: &str = "1";
/// Most bytes of it.
const MOST_BYTES: usize = 6_000;
/// How many of each list are kept, the first of these that fits.
const KEPT: [usize; 5] = [16, 6, 3, 1, 0];
/// Longest line of what was noted.
const LONGEST_LINE: usize = 300;

/// A judge's verdict on a job.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct JobVerdict {
    /// The job ([`digest::time_use::job_key`]).
    pub job: u64,
    /// What it is called.
    pub name: JobName,
    /// The verdict.
    pub standing: Standing,
}

impl JobVerdict {
    /// The text that is published, with lists cut so that it fits; a note in the evidence then says
    /// so. None where even without lists it does not fit.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        KEPT.into_iter().find_map(|most| {
            let report = Arc::new(brief(&self.standing.report, most));
            let mut silent = self.standing.silent.clone();
            silent.truncate(most);
            let standing = Standing { report, silent, ..self.standing.clone() };
            let cut = Self { standing, name: self.name.clone(), ..*self };
            let text = format!("{VERSION} {}", serde_json::to_string(&cut).ok()?);
            (text.len() <= MOST_BYTES).then_some(text)
        })
    }

    /// Reads a text.
    ///
    /// # Errors
    /// It is of another layout, too long or no verdict; in words.
    pub fn read(text: &str) -> Result<Self, String> {
        let (version, body) = text.split_once(' ').unwrap_or((text, ""));
        if version != VERSION {
            let version: String = version.chars().take(8).collect();
            return Err(format!("its verdicts have layout {version}: another version of rankmesh"));
        }
        if text.len() > MOST_BYTES {
            return Err(format!("a verdict of {} bytes", text.len()));
        }
        serde_json::from_str(body).map_err(|error| format!("no verdict: {error}"))
    }
}

/// A report with at most so many of each list: of ranks those that the verdict is about, and with
/// whom they are compared.
fn brief(report: &Report, most: usize) -> Report {
    let mut kept: BTreeSet<(String, i64)> = BTreeSet::new();
    for culprit in report.verdict.named().into_iter().take(most.max(1)) {
        kept.insert((culprit.node.clone(), culprit.pid));
        kept.extend(peer(report, culprit).map(|peer| (peer.node, peer.pid)));
    }
    let is_kept = |node: &str, pid: i64| kept.iter().any(|(of, kept)| of == node && *kept == pid);
    let mut cut = Cut { most, any: false };
    let mut of = report.clone();
    of.per_comm.retain(|comm| most > 0 || comm.ranks.iter().any(|rank| is_kept(&rank.node, rank.pid)));
    cut.list(&mut of.per_comm);
    for comm in &mut of.per_comm {
        cut.list(&mut comm.funcs);
        let before = comm.ranks.len();
        comm.ranks.retain(|rank| is_kept(&rank.node, rank.pid));
        cut.any |= comm.ranks.len() < before;
    }
    if let Some(about) = &mut of.point_to_point {
        let before = about.ranks.len();
        about.ranks.retain(|rank| is_kept(&rank.node, rank.pid));
        cut.any |= about.ranks.len() < before;
    }
    of.evidence.clocks.retain(|(node, _)| kept.iter().any(|(of, _)| of == node));
    cut.lines(&mut of.evidence.notes);
    cut.lines(&mut of.evidence.not_visible);
    cut.lines(&mut of.coverage.notes);
    cut.list(&mut of.coverage.missing);
    match &mut of.verdict {
        Verdict::Rank { also, held_up, .. } => {
            cut.list(also);
            cut.list(held_up);
        }
        Verdict::Hang(hang) => {
            cut.list(&mut hang.missing);
            cut.list(&mut hang.not_heard);
            // A list of ranges may be long itself.
            hang.not_heard.iter_mut().for_each(|of| cut.any |= of.ranks.keep_first(most));
            cut.list(&mut hang.jammed);
            cut.list(&mut hang.unclear);
            cut.list(&mut hang.circles);
            hang.circles.iter_mut().for_each(|circle| cut.list(circle));
            if let Some(of) = &mut hang.differing {
                cut.list(&mut of.calls);
                of.calls.iter_mut().for_each(|call| cut.list(&mut call.ranks));
            }
            cut.list(&mut hang.waiting);
        }
        Verdict::StageImbalance { ranks, stages, .. } => {
            cut.list::<RankRef>(ranks);
            cut.list(stages);
            stages.iter_mut().for_each(|stage| cut.list(&mut stage.ranks));
        }
        Verdict::WorkImbalance { ranks, .. } => cut.list(ranks),
        Verdict::Network(found) => cut.list(&mut found.flows),
        Verdict::Unknown { why } => *why = line(why),
        Verdict::DataImbalance { .. } | Verdict::None => {}
    }
    if cut.any {
        of.evidence.notes.push("lists are cut: the judge has the whole report".to_owned());
    }
    of
}

/// Cuts lists, and knows whether any was.
struct Cut {
    most: usize,
    any: bool,
}

impl Cut {
    fn list<T>(&mut self, list: &mut Vec<T>) {
        self.any |= list.len() > self.most;
        list.truncate(self.most);
    }

    fn lines(&mut self, lines: &mut Vec<String>) {
        self.list(lines);
        lines.iter_mut().for_each(|text| *text = line(text));
    }
}

fn line(text: &str) -> String {
    text.chars().take(LONGEST_LINE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use observed::Ranks;
    use verdicts::{Call, Hang, Missing, NotHeard};

    fn verdict(report: Report) -> JobVerdict {
        let standing = Standing {
            window: 7,
            reference: Some("n0".into()),
            report: Arc::new(report),
            heard: 4,
            silent: Vec::new(),
            wall_ahead_ns: -3,
            age_ns: 5,
        };
        JobVerdict { job: u64::MAX, name: JobName { job_id: Some("812".into()), ..JobName::default() }, standing }
    }

    #[test]
    fn what_fits_is_read_as_it_was_told() {
        let mut report = Report { verdict: Verdict::Unknown { why: "too few".into() }, ..Report::default() };
        report.coverage.missing.push(("n3".into(), "dead".into()));
        let fits = verdict(report);
        assert_eq!(JobVerdict::read(&fits.text().unwrap()), Ok(fits));
    }

    #[test]
    fn a_verdict_on_ten_thousand_ranks_fits_and_says_that_it_is_cut() {
        let who = |rank: i32| RankRef { rank, node: format!("a-host-of-a-long-name-{rank}"), pid: 4_000_000 };
        let missing = |rank| Missing {
            who: who(rank),
            absence: verdicts::Absence::NotEntered,
            call: Call { func: "all_reduce".into(), comm_hash: Some("0123456789abcdef".into()), ..Call::default() },
            inside: None,
            line: None,
            activity: None,
            holds_up: 5_000,
        };
        let every_other = Ranks::all_but(&(0..10_000).step_by(2).collect(), 10_000);
        let hang = Hang {
            missing: (0..5_000).map(missing).collect(),
            not_heard: vec![NotHeard::new("0123456789abcdef".into(), every_other)],
            ..Hang::default()
        };
        let mut report = Report { verdict: Verdict::Hang(hang), ..Report::default() };
        report.evidence.notes = vec!["x".repeat(10_000); 50];
        let text = verdict(report).text().expect("it fits");
        let read = JobVerdict::read(&text).expect("it is read");
        let Verdict::Hang(hang) = &read.standing.report.verdict else { panic!("{text}") };
        assert!(!hang.missing.is_empty() && hang.not_heard[0].count == 5_000, "{hang:?}");
        assert!(read.standing.report.evidence.notes.iter().any(|note| note.contains("cut")));
    }

    #[test]
    fn what_is_no_verdict_is_refused_with_the_reason() {
        assert!(JobVerdict::read("2 {}").unwrap_err().contains("layout 2"));
        assert!(JobVerdict::read("").is_err() && JobVerdict::read("1 {").is_err());
        assert!(JobVerdict::read(&format!("1 {}", " ".repeat(MOST_BYTES))).unwrap_err().contains("bytes"));
    }
}
