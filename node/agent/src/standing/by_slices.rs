//! Judges a job whose calls are recorded in time slices (`rankmesh up --budget`). Digests are sums of
//! consecutive calls and do not tell of it, so the job's first judge asks the stores of its hosts,
//! once in each period of slices.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use digest::{end_of, window_of};
use model::StragglersQuestion;
use node_bpf::SLICES_BEGIN_EVERY_NS;
use query::access::Caller;
use record::unix_now_ns;
use standing::{BySlices, JobName, Standing};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use verdicts::{Process, RankWindows, Report, Span, Verdict};

use super::super::Shared;
use super::super::asking::Asking;
use super::super::stragglers::{self, Judged, Only};
use super::kept::Measured;

/// The stores are asked so long after slices begin: by then a slice is long enough for most
/// programs, and ranks that have been in one call since before it are known to hang.
const AFTER_NS: i64 = 4_000_000_000;
/// The stores are asked for a time that holds several slices.
const BACK_NS: i64 = 60_000_000_000;
/// Where no call was missed in that time, the last so much is judged.
const WHOLE_NS: i64 = 10_000_000_000;
/// Most calls that are judged: the last ones, so many,
const CALLS: i64 = 10_000;
/// or so many a rank where that is more. A call takes about 5 us of the agent, so 10,000 in ten
/// seconds are half a hundredth of a core.
const CALLS_OF_A_RANK: i64 = 20;
/// Time for asking.
const PATIENCE: Duration = Duration::from_secs(5);
/// Where the stores could not be asked for so long, the last verdict stands no more.
const STANDS: Duration = Duration::from_secs(30);

/// What a judge keeps of such a job.
#[derive(Debug, Default)]
pub(super) struct Slices {
    settled: BySlices,
    /// The question that is being asked.
    asking: JoinSet<Result<Slice, String>>,
    /// The period that was asked for last.
    period: Option<i64>,
    /// The verdict, and when it was made.
    standing: Option<(Standing, Instant)>,
    /// The last window of which it is known what ranks did.
    measured: Option<i64>,
}

/// What the stores said of a slice.
#[derive(Debug)]
struct Slice {
    report: Report,
    began_ns: i64,
    span: Span,
    ended: BTreeSet<Process>,
    windows: Option<RankWindows>,
}

impl Slices {
    /// Asks where it is time, and takes in what came; the verdict as of now, and what ranks did, where
    /// that is new. None until the first slice was judged.
    pub(super) fn look(
        &mut self,
        shared: &Arc<Shared>,
        (job, name): (u64, &JobName),
        hosts: &BTreeSet<String>,
        stop: &CancellationToken,
    ) -> Option<(Standing, Option<Measured>)> {
        let mut measured = None;
        if let Some(slice) = self.asking.try_join_next() {
            let slice = slice.map_err(|error| error.to_string()).and_then(|slice| slice);
            measured = self.take(slice, shared.identity.node().as_str(), hosts);
        }
        let period = unix_now_ns().saturating_sub(AFTER_NS).div_euclid(SLICES_BEGIN_EVERY_NS);
        if self.asking.is_empty() && self.period != Some(period) {
            self.period = Some(period);
            let (shared, job_id, hosts) = (Arc::clone(shared), name.job_id.clone(), hosts.clone());
            let ranks = name.nranks.unwrap_or(1);
            self.asking.spawn(ask(shared, (job, job_id, ranks), hosts, stop.child_token()));
        }
        let (standing, judged) = self.standing.as_ref()?;
        let age_ns = standing.age_ns.saturating_add(i64::try_from(judged.elapsed().as_nanos()).unwrap_or(i64::MAX));
        Some((Standing { age_ns, ..standing.clone() }, measured))
    }

    fn take(&mut self, slice: Result<Slice, String>, own: &str, hosts: &BTreeSet<String>) -> Option<Measured> {
        let slice = match slice {
            Ok(slice) => slice,
            Err(why) => {
                tracing::debug!("a job that is recorded in slices: {why}");
                if self.standing.as_ref().is_none_or(|(_, judged)| judged.elapsed() >= STANDS) {
                    let why = format!("calls are recorded in slices (up --budget), and the stores did not tell: {why}");
                    let report = Arc::new(Report { verdict: Verdict::Unknown { why }, ..Report::default() });
                    self.stand(report, unix_now_ns(), Vec::new(), own, hosts);
                }
                return None;
            }
        };
        let Slice { report, began_ns, span, ended, windows } = slice;
        let gone = ended.iter().map(|(node, pid)| (&**node, *pid)).collect();
        let missing = report.coverage.missing.iter().map(|(node, _)| node);
        let silent = missing.filter(|node| hosts.contains(*node)).cloned().collect();
        let report = self.settled.settle((began_ns, span.until_ns), report, &gone);
        self.stand(report, span.until_ns, silent, own, hosts);
        let mut found = windows?;
        // What was between two calls is not known of the window in which the stretch begins.
        let is_whole = |window: i64| end_of(window - 2) >= span.since_ns && end_of(window) <= span.until_ns;
        found.windows.retain(|window, _| is_whole(*window) && self.measured.is_none_or(|last| *window > last));
        self.measured = found.windows.last_key_value().map(|(window, _)| *window).or(self.measured);
        Some(Measured { found, reference: Some(own.to_owned()), wall_ahead_ns: 0 })
    }

    fn stand(&mut self, report: Arc<Report>, until_ns: i64, silent: Vec<String>, own: &str, hosts: &BTreeSet<String>) {
        let standing = Standing {
            window: window_of(until_ns),
            reference: Some(own.to_owned()),
            report,
            heard: hosts.len() - silent.len(),
            silent,
            wall_ahead_ns: 0,
            age_ns: unix_now_ns().saturating_sub(until_ns),
        };
        self.standing = Some((standing, Instant::now()));
    }
}

/// Asks the hosts of a job for the calls of the last slice, and judges them.
async fn ask(
    shared: Arc<Shared>,
    (job, job_id, ranks): (u64, Option<String>, i32),
    hosts: BTreeSet<String>,
    cancelled: CancellationToken,
) -> Result<Slice, String> {
    let question =
        StragglersQuestion { job: job_id, nodes: hosts.into_iter().collect(), ..StragglersQuestion::default() };
    let caller = Caller::agent();
    let deadline = Instant::now() + PATIENCE;
    let asking = Asking { coordinator: &shared.coordinator, caller: &caller, deadline, cancelled: &cancelled };
    let since_ns = unix_now_ns().saturating_sub(BACK_NS);
    let calls = CALLS.max(i64::from(ranks).saturating_mul(CALLS_OF_A_RANK));
    let only = Only { job, calls, span_ns: WHOLE_NS };
    let judged = stragglers::judged(asking, Some(&shared), &question, (since_ns, None), Some(only)).await;
    let Judged { report, span, began_ns, ended, windows, .. } = judged.map_err(|error| error.to_string())?;
    Ok(Slice { report, began_ns, span, ended, windows })
}
