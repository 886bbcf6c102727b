//! Publishes changes of the standing verdict: a log line, a row in `findings`, and the operator's
//! command.
//!
//! Every agent logs and runs its own command. The row is written by the job's first judge alone,
//! and not where the job's last finding says the same, so that `findings` has each change once,
//! whoever is that judge. Commands run one at a time for verdicts and one for services, with a deadline;
//! while one runs, up to [`WAITING`] changes of either wait and further ones are logged and dropped.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use causes::Cause;
use digest::WINDOW_NS;
use explain::cost::Money;
use explain::watched::sentence;
use query::ask::{self, QueryOutcome, Question};
use record::unix_now_ns;
use serde_json::{Value, json};
use standing::{JobName, Key, LOOKBACK};
use store::{Finding, Source};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use verdicts::{Report, Verdict};

use super::super::Shared;
use super::super::asking::Asking;
use super::{Current, repeat};

/// Changes that wait for a command to end.
pub(super) const WAITING: usize = 16;
/// A command that takes longer is killed.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for finding out what was written last.
const KNOWN: Duration = Duration::from_secs(2);
/// Time for finding the cause, and before it is looked for once more.
const CAUSE: Duration = Duration::from_secs(5);

/// The 99th percentile of a service has grown, or is as before.
#[derive(Debug)]
pub(crate) struct TailNews {
    /// The row, which is written.
    pub(crate) finding: Finding,
    /// In words.
    pub(crate) text: String,
}

/// Publishes changes of verdicts until `stop`.
pub(super) async fn publish(
    shared: Arc<Shared>,
    command: Option<String>,
    mut changes: mpsc::Receiver<Current>,
    stop: CancellationToken,
) {
    let mut reported = repeat::Reported::default();
    loop {
        let current = tokio::select! {
            current = changes.recv() => current,
            () = stop.cancelled() => return,
        };
        let Some(current) = current else { return };
        let report = current.standing.report.clone();
        let kept = super::keep_stacks::keep(&shared, &report, &stop);
        let asked = crate::ras::keep(&shared, &report, &stop);
        let published = one(&shared, command.as_deref(), current, &mut reported, &stop);
        tokio::select! {
            ((), (), ()) = futures::future::join3(published, kept, asked) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Hands findings on services to the operator's command until `stop`. They wait apart from verdicts,
/// which are written only when it is their turn.
pub(super) async fn hand_over(
    shared: Arc<Shared>,
    command: Option<String>,
    mut news: mpsc::Receiver<TailNews>,
    stop: CancellationToken,
) {
    loop {
        let found = tokio::select! {
            found = news.recv() => found,
            () = stop.cancelled() => return,
        };
        let Some(TailNews { finding, text }) = found else { return };
        let Some(command) = &command else { continue };
        let mut verdict: Value = serde_json::from_str(&finding.detail).unwrap_or_default();
        verdict["kind"] = json!(finding.verdict);
        tokio::select! {
            () = run(command, shared.identity.node().as_str(), &finding, &text, json!({ "verdict": verdict })) => {}
            () = stop.cancelled() => return,
        }
    }
}

async fn one(
    shared: &Shared,
    command: Option<&str>,
    current: Current,
    reported: &mut repeat::Reported,
    stop: &CancellationToken,
) {
    let own = shared.identity.node().to_string();
    let standing = &current.standing;
    let mut report = Report::clone(&standing.report);
    let sentence = sentence(&report);
    match &report.verdict {
        Verdict::None => tracing::info!("verdict: {sentence}"),
        _ => tracing::warn!("verdict: {sentence} (rankmesh stragglers tells why, with --since 60s from the stores)"),
    }
    let writes = current.judge == own;
    if writes || command.is_some() {
        report.cause = cause(shared, &report, stop).await;
    }
    let money = super::money::of_site(shared, &report);
    let finding = finding(&current, &report, money.as_ref());
    if writes
        && let Source::Store(store) = shared.source.as_ref()
        && !last_finding(shared, &current, stop).await.is_some_and(|last| last == key_of(&finding))
    {
        store.ingest().finding(finding.clone());
        repeat::look(shared, &finding, reported, stop).await;
    }
    if let Some(command) = command {
        let about = json!({
            "verdict": report.verdict, "cost": report.cost, "evidence": report.evidence, "cause": report.cause,
            "coverage": report.coverage,
        });
        run(command, &own, &finding, &sentence, about).await;
    }
}

/// The cause of a verdict, asked for once more where none was found: a finding is written once, hosts
/// store what they sample some seconds after the calls, and a loaded one answers late.
async fn cause(shared: &Shared, report: &Report, stop: &CancellationToken) -> Option<Cause> {
    let asked = async || {
        let asking = Asking {
            coordinator: &shared.coordinator,
            caller: &query::access::Caller::agent(),
            deadline: Instant::now() + CAUSE,
            cancelled: stop,
        };
        super::super::causes::cause(asking, report).await
    };
    let first = asked().await;
    if first.as_ref().is_none_or(Cause::is_attributed) {
        return first;
    }
    tokio::time::sleep(CAUSE).await;
    asked().await.filter(Cause::is_attributed).or(first)
}

/// What makes two findings in a row the same one.
type FindingKey = [Value; 4];

fn key_of(finding: &Finding) -> FindingKey {
    [
        json!(finding.verdict),
        json!(finding.rank),
        json!(finding.culprit_node),
        json!(finding.comm_hash.map(u64::cast_signed)),
    ]
}

/// The job's last finding, by the time of its window: whoever becomes its first judge, or is it
/// again after a restart, does not write what the one before has written. None where there is none,
/// or it cannot be had: rather twice than never.
async fn last_finding(shared: &Shared, current: &Current, stop: &CancellationToken) -> Option<FindingKey> {
    let of_job = match current.judge.as_str() {
        "" => format!("WHERE verdict NOT IN {} ", model::cells::NO_VERDICTS),
        _ => format!("WHERE json_extract(detail, '$.job.key') = '{:016x}' ", current.job),
    };
    let question = Question {
        sql: format!(
            "SELECT verdict, rank, culprit_node, comm_hash FROM findings {of_job}ORDER BY until_ns DESC LIMIT 1"
        ),
        timeout_ms: u64::try_from(KNOWN.as_millis()).unwrap_or(u64::MAX),
        ..Question::default()
    };
    let Ok(QueryOutcome::Answer { answer, .. }) = ask::ask(&shared.coordinator, question, stop.clone()).await else {
        return None;
    };
    let value = |value: &query_planner::Value| match value {
        query_planner::Value::Text(text) => json!(String::from_utf8_lossy(text)),
        query_planner::Value::Integer(number) => json!(number),
        _ => Value::Null,
    };
    match answer.rows.first()?.as_slice() {
        [verdict, rank, node, comm] => Some([value(verdict), value(rank), value(node), value(comm)]),
        _ => None,
    }
}

fn finding(current: &Current, report: &Report, money: Option<&Money>) -> Finding {
    let standing = &current.standing;
    let JobName { job_id, step_id, nranks } = &current.name;
    let job = json!({
        "key": format!("{:016x}", current.job), "job_id": job_id, "step_id": step_id, "nranks": nranks,
        "judge": current.judge, "hosts": hosts(report),
    });
    let until_ns = standing.end_ns();
    let mut finding = Finding {
        ts_ns: unix_now_ns(),
        since_ns: until_ns - LOOKBACK * WINDOW_NS,
        until_ns,
        verdict: Key::name(&report.verdict).to_owned(),
        job_id: job_id.clone(),
        tier: Some(report.evidence.tier),
        clock_bound_ns: report.evidence.clock_bound_ns,
        cause: report.cause.as_ref().map(|cause| cause.summary.clone()),
        detail: serde_json::to_string(&json!({
            "verdict": report.verdict, "cost": report.cost, "evidence": report.evidence, "cause": report.cause,
            "coverage": report.coverage, "money": money, "job": job,
        }))
        .unwrap_or_default(),
        ..Finding::default()
    };
    let comm = |hex: &str| u64::from_str_radix(hex, 16).ok();
    match &report.verdict {
        Verdict::Rank { culprit, .. } => {
            finding.since_ns = culprit.since_ns;
            finding.rank = Some(culprit.rank);
            finding.culprit_node = Some(culprit.node.clone());
            finding.comm_hash = comm(&culprit.comm_hash);
            finding.lateness_ns = Some(culprit.late_by_ns);
            finding.score = culprit.z;
            finding.cost_gpu_s = Some(report.cost.gpu_seconds_wasted);
        }
        Verdict::Hang(hang) => {
            finding.since_ns = hang.since_ns.unwrap_or(finding.since_ns);
            if let Some(missing) = hang.missing.first() {
                finding.rank = Some(missing.who.rank);
                finding.culprit_node = Some(missing.who.node.clone());
                finding.comm_hash = missing.call.comm_hash.as_deref().and_then(comm);
                finding.func = Some(missing.call.func.clone());
            }
        }
        Verdict::DataImbalance { comm_hash, .. } => finding.comm_hash = comm(comm_hash),
        Verdict::Network(found) => {
            finding.comm_hash = comm(&found.comm_hash);
            finding.culprit_node = found.node.clone();
        }
        _ => {}
    }
    finding
}

/// The hosts of a job, by its verdict.
fn hosts(report: &Report) -> BTreeSet<&str> {
    let scored = report.per_comm.iter().flat_map(|comm| &comm.ranks).map(|rank| rank.node.as_str());
    let point_to_point = report.point_to_point.iter().flat_map(|about| &about.ranks).map(|rank| rank.node.as_str());
    scored.chain(point_to_point).collect()
}

/// Whether nobody else can change the program that a command for sh begins with, where that is
/// named by its path. (Others are found as sh finds them.)
///
/// # Errors
/// Somebody else can, or there is no such file.
pub(crate) fn hook_is_ours(command: &str) -> Result<(), trusted::Refused> {
    let program = command.split_whitespace().next().unwrap_or_default();
    let named = program.starts_with('/') && !program.contains(['$', '\'', '"', '`', '\\', '*', '?', ';', '&', '|']);
    if named { trusted::program(std::path::Path::new(program)) } else { Ok(()) }
}

/// Runs the operator's command: the finding as JSON on standard input, with what `about` has besides,
/// its main figures in the environment.
async fn run(command: &str, agent: &str, finding: &Finding, sentence: &str, about: Value) {
    if let Err(why) = try_run(command, agent, finding, sentence, about).await {
        tracing::warn!("--on-finding: {why}");
    }
}

async fn try_run(command: &str, agent: &str, finding: &Finding, sentence: &str, about: Value) -> Result<(), String> {
    let text = |value: Option<String>| value.unwrap_or_default();
    let mut input = about;
    let of_row = json!({
        "agent": agent, "ts_ns": finding.ts_ns, "since_ns": finding.since_ns, "until_ns": finding.until_ns,
        "text": sentence,
    });
    if let (Value::Object(input), Value::Object(of_row)) = (&mut input, of_row) {
        input.extend(of_row);
    }
    let mut child = tokio::process::Command::new("/bin/sh")
        .arg("-c")
        .arg(command)
        .env("RANKMESH_AGENT", agent)
        .env("RANKMESH_VERDICT", &finding.verdict)
        .env("RANKMESH_RANK", text(finding.rank.map(|rank| rank.to_string())))
        .env("RANKMESH_NODE", text(finding.culprit_node.clone()))
        .env("RANKMESH_COMM", text(finding.comm_hash.map(|hash| format!("{hash:016x}"))))
        .env("RANKMESH_SINCE_NS", finding.since_ns.to_string())
        .env("RANKMESH_CAUSE", text(finding.cause.clone()))
        .env("RANKMESH_TEXT", sentence)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("{command}: {error}"))?;
    let group = child.id().and_then(|id| i32::try_from(id).ok());
    let talk = async {
        if let Some(mut stdin) = child.stdin.take() {
            // A command that does not read its input has closed it.
            let _ = stdin.write_all(input.to_string().as_bytes()).await;
        }
        child.wait().await
    };
    match tokio::time::timeout(PATIENCE, talk).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("{command}: {status}")),
        Ok(Err(error)) => Err(format!("{command}: {error}")),
        Err(_) => {
            // What the shell started, too.
            if let Some(group) = group {
                let _ = nix::sys::signal::killpg(nix::unistd::Pid::from_raw(group), nix::sys::signal::Signal::SIGKILL);
            }
            Err(format!("{command}: took longer than {PATIENCE:?} and was killed"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_program_that_others_can_change_is_no_hook() {
        let site = tempfile::tempdir().expect("a directory");
        let hook = site.path().join("hook.sh");
        std::fs::write(&hook, "#!/bin/sh\n").expect("written");
        let command = format!("{} --page ops", hook.display());
        hook_is_ours(&command).expect("this user's");
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o777)).expect("set");
        assert!(hook_is_ours(&command).is_err());
        for others in ["/no/such/program", "/dev/null"] {
            assert!(hook_is_ours(others).is_err(), "{others}");
        }
        for found_by_sh in ["logger -t rankmesh", "cat > /tmp/x", "$HOME/bin/page", ""] {
            hook_is_ours(found_by_sh).expect("nothing to look at");
        }
    }
}
