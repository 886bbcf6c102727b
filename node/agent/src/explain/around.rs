//! What else the culprit's host recorded around the onset: which tasks came to take CPUs, clocks,
//! load and memory before and after, other jobs, and what people noted.

use model::Failure;
use model::cells::{integer, real, text};
use model::explanation::Explanation;
use parking_lot::Mutex;
use query_planner::Value;
use verdicts::{Culprit, Report};

use super::{Requester, sees_processes};

/// Time on both sides of the onset that is compared.
const MARGIN_NS: i64 = 60_000_000_000;
/// Names listed.
const NAMES: usize = 8;

/// Fills in where the culprit runs and what changed there.
pub(super) async fn place_and_changes(
    requester: &Requester<'_>,
    report: &Report,
    culprit: &Culprit,
    found: &mut Explanation,
) {
    let clock = report.evidence.clocks.iter().find(|(node, _)| *node == culprit.node);
    let onset_ns = culprit.since_ns.saturating_add(clock.map_or(0, |(_, clock)| clock.offset_ns));
    let (from_ns, to_ns) = (onset_ns - MARGIN_NS, onset_ns + MARGIN_NS);
    let around = Around { requester, culprit, onset_ns, from_ns, to_ns, sql: Mutex::default() };
    let (cpu, cgroup) = futures::future::join(around.cpu(), around.cgroup()).await;
    match (cpu, found.place.as_mut()) {
        (Ok(cpu), Some(place)) => place.cpu = cpu,
        (Err(why), _) => found.not_visible.push(format!("on which CPU it ran: {why}")),
        _ => {}
    }
    match (cgroup, found.place.as_mut()) {
        (Ok(cgroup), Some(place)) => place.cgroup = cgroup,
        (Err(why), _) => found.not_visible.push(format!("its cgroup: {why}")),
        _ => {}
    }
    if let Some(place) = &found.place {
        found.values.extend(place.cpu.map(|cpu| ("CPU".to_owned(), cpu.to_string())));
        found.values.extend(place.cgroup.clone().map(|cgroup| ("CGROUP".to_owned(), cgroup)));
    }
    let topics = [
        ("who took CPUs there", around.takers().await),
        ("load and memory of its host", around.host().await),
        ("clocks of its GPUs", around.gpus().await),
        ("other jobs on its host", around.jobs().await),
        ("notes", around.notes().await),
    ];
    for (topic, seen) in topics {
        match seen {
            Ok(changes) => found.changed.extend(changes),
            Err(why) => found.not_visible.push(format!("{topic}: {why}")),
        }
    }
    found.sql.append(&mut around.sql.lock());
    if culprit.since_start {
        found.not_visible.push("what was before: it was late from the beginning of what was looked at".to_owned());
    }
}

struct Around<'a> {
    requester: &'a Requester<'a>,
    culprit: &'a Culprit,
    /// On the clock of the culprit's host, as are the ends of the compared spans.
    onset_ns: i64,
    from_ns: i64,
    to_ns: i64,
    /// What was asked, each with a title.
    sql: Mutex<Vec<(String, String)>>,
}

type Changes = Result<Vec<String>, Failure>;

impl Around<'_> {
    /// Rows of the culprit's host, as far as the requester may see them.
    async fn rows(&self, title: &str, sql: String) -> Result<Vec<Vec<Value>>, Failure> {
        let of_node = format!("{title} (--nodes {})", self.culprit.node);
        self.sql.lock().push((of_node, sql.clone()));
        self.requester.shown(sql, &self.culprit.node).await
    }

    async fn cpu(&self) -> Result<Option<i64>, Failure> {
        let rows = self
            .rows("the CPU that it ran on", format!(
                "SELECT cpu, count(*) AS n FROM offcpu WHERE pid = {} AND ts_ns >= {} AND cpu IS NOT NULL GROUP BY cpu ORDER BY n DESC LIMIT 1",
                self.culprit.pid, self.onset_ns
            ))
            .await?;
        Ok(rows.first().and_then(|row| integer(row, 0)))
    }

    async fn cgroup(&self) -> Result<Option<String>, Failure> {
        let rows = self
            .rows(
                "its cgroup",
                format!(
                    "SELECT cgroup_path FROM processes WHERE pid = {} ORDER BY seen_ns DESC LIMIT 1",
                    self.culprit.pid
                ),
            )
            .await?;
        Ok(rows.first().map(|row| text(row, 0).trim_start_matches('/').to_owned()).filter(|path| !path.is_empty()))
    }

    /// Tasks that took CPUs from ranks of this host after the onset and not before.
    async fn takers(&self) -> Changes {
        if !sees_processes(self.requester.caller) {
            return Err("other users' processes are not shown to readers".into());
        }
        let rows = self
            .rows("who took CPUs there", format!(
                "SELECT next_comm, next_pid, min(ts_ns), sum(duration_ns), count(*) FROM offcpu WHERE voluntary = 0 AND next_pid > 0 \
                 AND ts_ns >= {} AND ts_ns < {} GROUP BY next_comm, next_pid ORDER BY 4 DESC LIMIT 64",
                self.from_ns, self.to_ns
            ))
            .await?;
        // From a little before it: the onset is that of the lateness, which follows its cause.
        let from_ns = self.onset_ns - 5_000_000_000;
        let new = rows
            .iter()
            .filter(|row| integer(row, 2).is_some_and(|first_ns| first_ns >= from_ns && !self.culprit.since_start));
        Ok(new
            .take(NAMES)
            .map(|row| {
                format!(
                    "{} (pid {}) took CPUs from ranks from {} on, {} together",
                    text(row, 0),
                    integer(row, 1).unwrap_or(0),
                    record::units::clock(integer(row, 2).unwrap_or(0)),
                    record::units::duration(integer(row, 3).unwrap_or(0))
                )
            })
            .collect())
    }

    async fn host(&self) -> Changes {
        let rows = self
            .rows("load and memory of its host", format!(
                "SELECT ts_ns >= {} AS after, avg(cpu_busy_pct), avg(cpu_iowait_pct), avg(steal_pct), min(memory_available_bytes) / 1048576.0 \
                 FROM host_samples WHERE ts_ns >= {} AND ts_ns < {} GROUP BY 1 ORDER BY 1",
                self.onset_ns, self.from_ns, self.to_ns
            ))
            .await?;
        Ok(compared(
            &rows,
            &[
                ("CPUs busy", "%", 10.0),
                ("CPUs waiting for I/O", "%", 5.0),
                ("CPU time stolen by the hypervisor", "%", 2.0),
                ("memory to be had", "MiB", 1024.0),
            ],
        ))
    }

    async fn gpus(&self) -> Changes {
        let rows = self
            .rows("clocks of its GPUs", format!(
                "SELECT ts_ns >= {} AS after, avg(sm_clock_mhz), max(temperature_c) + 0.0, avg(power_mw) / 1000.0 FROM gpu_samples \
                 WHERE ts_ns >= {} AND ts_ns < {} GROUP BY 1 ORDER BY 1",
                self.onset_ns, self.from_ns, self.to_ns
            ))
            .await?;
        Ok(compared(&rows, &[("GPU clock", "MHz", 50.0), ("hottest GPU", "degrees", 10.0), ("GPU power", "W", 50.0)]))
    }

    async fn jobs(&self) -> Changes {
        let rows = self
            .rows("other jobs on its host", format!(
                "SELECT DISTINCT job_id FROM processes WHERE job_id IS NOT NULL AND seen_ns >= {} AND job_id <> ifnull( \
                 (SELECT job_id FROM processes WHERE pid = {} ORDER BY seen_ns DESC LIMIT 1), '') LIMIT {NAMES}",
                self.from_ns, self.culprit.pid
            ))
            .await?;
        Ok(rows.iter().map(|row| format!("job {} has processes there, too", text(row, 0))).collect())
    }

    /// What people and programs noted on any host.
    async fn notes(&self) -> Changes {
        let (from_ns, to_ns) = (self.culprit.since_ns - MARGIN_NS, self.culprit.until_ns);
        let sql = format!(
            "SELECT node, cluster_ns(ts_ns), text, attributes FROM annotations WHERE cluster_ns(ts_ns) >= {from_ns} \
                     AND cluster_ns(ts_ns) < {to_ns} ORDER BY 2 LIMIT {NAMES}"
        );
        self.sql.lock().push(("notes of people and programs".to_owned(), sql.clone()));
        let rows = self.requester.shown(sql, "").await?;
        Ok(rows
            .iter()
            .map(|row| {
                let at = record::units::clock(integer(row, 1).unwrap_or(0));
                format!("{at} noted on {}: {} {}", text(row, 0), text(row, 2), text(row, 3))
            })
            .collect())
    }
}

/// Means before and after that differ by more than what is usual for them. `rows`: whether after,
/// then a figure for each name.
fn compared(rows: &[Vec<Value>], names: &[(&str, &str, f64)]) -> Vec<String> {
    let [before, after] = rows else { return Vec::new() };
    let figures = names.iter().enumerate().filter_map(|(at, (name, unit, usual))| {
        let (was, is) = (real(before, at + 1)?, real(after, at + 1)?);
        ((is - was).abs() > *usual).then(|| format!("{name}: {was:.0} {unit} before, {is:.0} {unit} after"))
    });
    figures.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_a_change() {
        let row =
            |after: i64, busy: f64, iowait: f64| vec![Value::Integer(after), Value::Real(busy), Value::Real(iowait)];
        let names = [("busy", "%", 10.0), ("waiting", "%", 5.0)];
        let changes = compared(&[row(0, 20.0, 1.0), row(1, 95.0, 3.0)], &names);
        assert_eq!(changes, ["busy: 20 % before, 95 % after"]);
        assert!(compared(&[row(1, 95.0, 3.0)], &names).is_empty(), "nothing before");
    }
}
