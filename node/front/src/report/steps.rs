//! The worst steps: found in the windows in which ranks were late most, then asked for rank by
//! rank, with what the hosts recorded of these ranks at the same time.

use std::collections::HashMap;

use model::cells::{integer_of, text_of};
use query_planner::Value;
use report::html::{Lane, Page, Seen, Step, delays};
use verdicts::Verdict;

use super::asking::Asking;

/// Steps on a page.
const STEPS: usize = 3;
/// Shorter events are not drawn.
const SHORTEST_NS: i64 = 1_000_000;
/// Events of one table and step.
const MOST_EVENTS: usize = 2_000;
/// Time before and after a window, for steps that lie across its border.
const MARGIN_NS: i64 = 1_000_000_000;

/// The worst steps of a span, worst first.
///
/// # Errors
/// As [`Asking::ask`].
pub(super) fn worst(
    asking: &mut Asking<'_>,
    page: &Page,
    (since_ns, until_ns): (i64, i64),
) -> anyhow::Result<Vec<Step>> {
    let Some(board) = &page.board else { return Ok(Vec::new()) };
    let named = match page.verdict.as_ref().map(|report| &report.verdict) {
        Some(Verdict::Rank { culprit, .. }) => {
            board.ranks.iter().position(|rank| rank.node == culprit.node && rank.pid == culprit.pid)
        }
        _ => None,
    };
    let mut windows: Vec<(i64, i64)> = board
        .windows
        .iter()
        .filter(|window| {
            window.end_ns > since_ns && window.end_ns - board.window_ns < until_ns && window.collectives > 0
        })
        .map(|window| {
            // Without clocks: by how much longer the others waited.
            let times = if board.clock_bound_ns.is_some() { window.late.clone() } else { delays(window) };
            let late = |place: usize| times.get(place).and_then(|late| late.ns()).unwrap_or(0);
            let most = named.map_or_else(|| (0..times.len()).map(late).max().unwrap_or(0), late);
            (most / i64::from(window.collectives), window.end_ns)
        })
        .filter(|(late_ns, _)| *late_ns > 0)
        .collect();
    windows.sort_unstable_by_key(|(late_ns, end_ns)| (std::cmp::Reverse(*late_ns), *end_ns));
    let mut steps: Vec<Step> = Vec::new();
    for (_, end_ns) in windows.into_iter().take(2 * STEPS) {
        let span = (end_ns - board.window_ns - MARGIN_NS, end_ns + MARGIN_NS);
        if let Some(step) = of_window(asking, span, board.clock_bound_ns.is_some(), steps.len())?
            && !steps.iter().any(|known| known.collective == step.collective)
        {
            steps.push(step);
        }
        if steps.len() == STEPS {
            break;
        }
    }
    Ok(steps)
}

/// The worst step of a window.
fn of_window(
    asking: &mut Asking<'_>,
    (from_ns, to_ns): (i64, i64),
    by_clocks: bool,
    number: usize,
) -> anyhow::Result<Option<Step>> {
    let late = if by_clocks { "lateness_ns" } else { "wait_ns" };
    let sql = format!(
        "SELECT comm_hash, func, seq, max({late}) AS late_ns, max(at_ns) AS at_ns FROM lateness({from_ns}, {to_ns}) \
         GROUP BY comm_hash, func, seq ORDER BY late_ns DESC LIMIT 1"
    );
    let found = asking.try_ask(&format!("step {}: which", number + 1), sql)?;
    let Some([comm, func, seq, _, at_ns]) = found.rows.first().map(Vec::as_slice) else { return Ok(None) };
    let (Some(comm), Some(func), Some(seq), Some(at_ns)) =
        (integer_of(comm), text_of(func), integer_of(seq), integer_of(at_ns))
    else {
        return Ok(None);
    };
    lanes(asking, &Collective { comm, func, seq, at_ns }, Some(by_clocks), number).map(Some)
}

/// One collective of all ranks.
#[derive(Debug, Clone)]
pub struct Collective {
    /// Its communicator's hash.
    pub comm: i64,
    /// Its function.
    pub func: String,
    /// Its number in the communicator.
    pub seq: i64,
    /// About when it was: a time of any of its ranks.
    pub at_ns: i64,
}

/// A collective rank by rank, with what the hosts recorded of these ranks at the same time.
/// `by_clocks`: entries are drawn by the hosts' clocks; none: where all of these are known.
///
/// # Errors
/// As [`Asking::ask`].
pub fn lanes(
    asking: &mut Asking<'_>,
    Collective { comm, func, seq, at_ns }: &Collective,
    by_clocks: Option<bool>,
    number: usize,
) -> anyhow::Result<Step> {
    let of = format!("WHERE comm_hash = {comm} AND func = {} AND seq = {seq}", model::cells::quoted(func));
    let at_ns = *at_ns;
    let (from_ns, to_ns) = (at_ns.saturating_sub(10 * MARGIN_NS), at_ns.saturating_add(MARGIN_NS));
    let sql = format!(
        "SELECT rank, node, pid, entry_ns, duration_ns, bound_ns, ts_ns, tier FROM lateness({from_ns}, {to_ns}) {of} ORDER BY entry_ns"
    );
    let lanes = asking.try_ask(&format!("step {}: its ranks", number + 1), sql)?;
    let sql = format!("SELECT node, pid, own_ns FROM self_time({from_ns}, {to_ns}) {of} ORDER BY node, pid");
    let own = asking.try_ask(&format!("step {}: compute time before it", number + 1), sql)?;
    let own: HashMap<(String, i64), i64> = own
        .rows
        .iter()
        .filter_map(|row| Some(((text_of(row.first()?)?, integer_of(row.get(1)?)?), integer_of(row.get(2)?)?)))
        .collect();
    let rows: Vec<Row> = lanes.rows.iter().filter_map(|row| Row::of(row)).collect();
    let tier = lanes.rows.iter().filter_map(|row| integer_of(row.get(7)?)).min().unwrap_or(0);
    // A call in which ranks wait ends at all of them together: that gives the hosts' clocks for the
    // drawing.
    let by_clocks = by_clocks.unwrap_or_else(|| rows.iter().all(|row| row.bound_ns.is_some()));
    let by_ends = !by_clocks && tier > 0;
    let offsets = if by_ends { offsets_by_ends(&rows) } else { HashMap::new() };
    let ranks: Vec<Lane> = rows
        .into_iter()
        .map(|row| Lane {
            entry_ns: match offsets.get(&row.node) {
                Some(offset_ns) => row.ts_ns + offset_ns,
                None => row.entry_ns.unwrap_or(row.ts_ns),
            },
            own_ns: own.get(&(row.node.clone(), row.pid)).copied(),
            bound_ns: row.bound_ns.filter(|_| !by_ends),
            rank: row.rank,
            node: row.node,
            pid: row.pid,
            duration_ns: row.duration_ns,
        })
        .collect();
    let begin = |lane: &Lane| lane.entry_ns - lane.own_ns.unwrap_or(0).max(0);
    let from_ns = ranks.iter().map(begin).min().unwrap_or(at_ns);
    let to_ns = ranks.iter().map(|lane| lane.entry_ns + lane.duration_ns).max().unwrap_or(at_ns);
    let mut events = Vec::new();
    for (table, what) in [
        ("offcpu", "coalesce(reason, 'off-CPU') || ' (' || coalesce(next_comm, '') || ')'"),
        ("block_io", "coalesce(op, 'request') || ' ' || coalesce(device, '')"),
        ("memory_events", "event"),
    ] {
        // Rows are on their hosts' clocks, which may differ: the borders are wide.
        let sql = format!(
            "SELECT node, pid, cluster_ns(ts_ns) AS at_ns, ts_ns, duration_ns, {what} AS what FROM {table} WHERE ts_ns >= {} AND ts_ns < {} AND \
             duration_ns >= {SHORTEST_NS} ORDER BY ts_ns LIMIT {MOST_EVENTS}",
            from_ns - MARGIN_NS,
            to_ns + MARGIN_NS
        );
        for row in asking.try_ask(&format!("step {}: {table}", number + 1), sql)?.rows {
            let [node, pid, aligned_ns, ts_ns, duration_ns, what] = row.as_slice() else { continue };
            let (Some(node), Some(pid), Some(ts_ns), Some(duration_ns)) =
                (text_of(node), integer_of(pid), integer_of(ts_ns), integer_of(duration_ns))
            else {
                continue;
            };
            let at_ns = match offsets.get(&node) {
                Some(offset_ns) => ts_ns + offset_ns,
                None => integer_of(aligned_ns).unwrap_or(ts_ns),
            };
            events.push(Seen { node, pid, at_ns, duration_ns, what: text_of(what).unwrap_or_default() });
        }
    }
    Ok(Step { collective: format!("{func} #{seq}"), by_ends, ranks, events })
}

/// A row of the question for a step's ranks.
struct Row {
    rank: i64,
    node: String,
    pid: i64,
    entry_ns: Option<i64>,
    duration_ns: i64,
    bound_ns: Option<i64>,
    ts_ns: i64,
}

impl Row {
    fn of(row: &[Value]) -> Option<Self> {
        let [rank, node, pid, entry_ns, duration_ns, bound_ns, ts_ns, _] = row else { return None };
        Some(Self {
            rank: integer_of(rank)?,
            node: text_of(node)?,
            pid: integer_of(pid)?,
            entry_ns: integer_of(entry_ns),
            duration_ns: integer_of(duration_ns)?,
            bound_ns: integer_of(bound_ns),
            ts_ns: integer_of(ts_ns)?,
        })
    }
}

/// The offset of each host's times with which the ranks of all hosts leave at the same median time.
fn offsets_by_ends(rows: &[Row]) -> HashMap<String, i64> {
    let mut ends: HashMap<&str, Vec<i64>> = HashMap::new();
    for row in rows {
        ends.entry(&row.node).or_default().push(row.ts_ns + row.duration_ns);
    }
    let median = |mut all: Vec<i64>| {
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or(0)
    };
    let overall = median(rows.iter().map(|row| row.ts_ns + row.duration_ns).collect());
    ends.into_iter().map(|(node, ends)| (node.to_owned(), overall - median(ends))).collect()
}
