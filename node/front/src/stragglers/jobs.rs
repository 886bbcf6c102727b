//! A span with several jobs: each is judged by itself, those that run first (one that hangs before
//! the others) and in full, those that have ended or are silent in a line each.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use ask::Target;
use ask::utc::utc;
use model::{Coverage, StragglersQuestion};
use record::units::duration;
use record::{printable, wrapped};
use serde_json::{Value, json};
use verdicts::{Report, Verdict};

use super::coverage;

/// Most jobs of a span that are judged: those that called last.
const MOST: usize = 8;

/// A verdict on one job, or on all that made calls.
pub(super) struct Judged {
    /// The agent's answer.
    pub(super) answer: Value,
    pub(super) coverage: Coverage,
    /// The other jobs, as text below the verdict; empty where there is one.
    pub(super) others: String,
}

/// One of several jobs.
struct OfJob {
    id: String,
    report: Report,
    judged: Judged,
}

impl OfJob {
    /// It is found to stand still: no call ends while it hangs.
    fn hangs(&self) -> bool {
        matches!(self.report.verdict, Verdict::Hang(_)) && !self.report.evidence.ended
    }

    /// Its processes are known to have ended, or it made no call for long before the end of the span.
    fn is_over(&self) -> bool {
        self.report.evidence.ended || self.report.evidence.is_silent && !self.hangs()
    }

    fn line(&self) -> String {
        let verdict = match &self.report.verdict {
            Verdict::Rank { culprit, .. } => {
                let late = duration(culprit.late_by_ns);
                format!("rank {} on {} held it up, {late} late", culprit.rank, culprit.node)
            }
            Verdict::Hang(_) => "it hung".to_owned(),
            Verdict::None => "nobody held it up".to_owned(),
            Verdict::Unknown { .. } => "who held it up cannot be told".to_owned(),
            _ => explain::watched::job(&self.report, None).verdict.replace('_', " "),
        };
        let last_ns = self.report.evidence.last_call_ns.and_then(|at| u64::try_from(at).ok()).unwrap_or(0);
        let last = utc(SystemTime::UNIX_EPOCH + Duration::from_nanos(last_ns));
        let how = if self.report.evidence.ended { "ended" } else { "last call" };
        format!("job {}, {how} {last}: {verdict}", self.id)
    }

    fn in_json(&self) -> Value {
        let verdict = &self.judged.answer["verdict"];
        let last_call_ns = self.report.evidence.last_call_ns;
        let evidence = &self.report.evidence;
        let (ended, silent) = (evidence.ended, evidence.is_silent);
        json!({"job": self.id, "ended": ended, "silent": silent, "last_call_ns": last_call_ns, "verdict": verdict})
    }
}

/// Asks for the verdict; of a span with several jobs where the question names none, for that of
/// each.
///
/// # Errors
/// Nobody answers.
pub(super) fn judge(target: &Target, question: &StragglersQuestion, all_rows: bool) -> anyhow::Result<Judged> {
    let jobs = match target.ns_of(question.span) {
        // (Stores of another version do not know jobs: then there is one.)
        Some(span_ns) if question.job.is_none() && question.comm.is_none() => {
            target.jobs_in(span_ns, question.timeout_ms).unwrap_or_default()
        }
        _ => Vec::new(),
    };
    let ids: Vec<&str> = jobs.iter().filter_map(|seen| seen.id.as_deref()).collect();
    if ids.len() < 2 {
        return one(target, question.clone());
    }
    let of = |id: &&str| -> anyhow::Result<OfJob> {
        let judged = one(target, StragglersQuestion { job: Some((*id).to_owned()), ..question.clone() })?;
        let report: Report = serde_json::from_value(judged.answer.clone()).context("reading the agent's verdict")?;
        Ok(OfJob { id: (*id).to_owned(), report, judged })
    };
    let mut judged: Vec<OfJob> = ids.iter().take(MOST).map(of).collect::<anyhow::Result<_>>()?;
    judged.sort_by_key(|of| (of.is_over(), !of.hangs()));
    let mut rest = judged.into_iter();
    let Some(mut first) = rest.next() else { anyhow::bail!("no job was judged") };
    let mut others = String::new();
    let mut in_json = Vec::new();
    for other in rest {
        if other.is_over() {
            let _ = write!(others, "\n{}", wrapped(&other.line()));
            let _ = writeln!(others, "  (--job {} shows it)", printable(&other.id));
        } else {
            let _ = writeln!(others, "\njob {}:\n{}", other.id, text(&other.judged.answer, all_rows).trim_end());
        }
        in_json.push(other.in_json());
        first.judged.coverage.also(other.judged.coverage);
    }
    if ids.len() > MOST {
        let _ = writeln!(others, "\n{} more jobs called before these: rankmesh jobs lists them", ids.len() - MOST);
    }
    first.judged.answer["job"] = first.id.clone().into();
    first.judged.answer["other_jobs"] = in_json.into();
    for name in ["text", "all"] {
        if let Some(text) = first.judged.answer[name].as_str().map(|text| format!("job {}:\n{text}", first.id)) {
            first.judged.answer[name] = text.into();
        }
    }
    Ok(Judged { others, ..first.judged })
}

/// An answer's text, with all rows of its tables where that is wanted.
pub(super) fn text(answer: &Value, all_rows: bool) -> &str {
    answer["all"].as_str().filter(|_| all_rows).or(answer["text"].as_str()).unwrap_or_default()
}

fn one(target: &Target, question: StragglersQuestion) -> anyhow::Result<Judged> {
    let json = target.stragglers(question).inspect_err(crate::query::print_coverage)?;
    let answer: Value = serde_json::from_str(&json).context("reading the agent's verdict")?;
    let coverage = coverage(&answer["coverage"]).context("reading the agent's coverage")?;
    Ok(Judged { answer, coverage, others: String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_hangs_makes_no_calls_and_is_first_and_never_over() {
        let of = |verdict: Verdict, ended: bool, is_silent: bool| {
            let mut report = Report { verdict, ..Report::default() };
            (report.evidence.ended, report.evidence.is_silent) = (ended, is_silent);
            let judged = Judged { answer: Value::Null, coverage: Coverage::default(), others: String::new() };
            OfJob { id: "7".to_owned(), report, judged }
        };
        let hang = || Verdict::Hang(verdicts::Hang::default());
        let hanging = of(hang(), false, true);
        assert!(hanging.hangs() && !hanging.is_over());
        let running = of(Verdict::None, false, false);
        assert!(!running.hangs() && !running.is_over());
        let ended = of(hang(), true, true);
        assert!(!ended.hangs() && ended.is_over());
        assert_eq!(ended.line(), "job 7, ended 1970-01-01T00:00:00Z: it hung");
        let silent = of(Verdict::None, false, true);
        assert!(silent.is_over());
        assert_eq!(silent.line(), "job 7, last call 1970-01-01T00:00:00Z: nobody held it up");
    }
}
