//! The worst steps: found in the windows in which ranks were late most, then asked for rank by
//! rank, with what hosts recorded of these ranks meanwhile.

use std::collections::HashMap;

use report::html::{Lane, Page, Seen, Step};
use verdicts::Verdict;

use super::asking::{Asking, integer, text};

/// Steps on a page.
const STEPS: usize = 3;
/// What is shorter is not drawn.
const SHORTEST_NS: i64 = 1_000_000;
/// Events of one table and step.
const MOST_EVENTS: usize = 2_000;
/// On both sides of a window, for steps that lie across its border.
const BESIDE_NS: i64 = 1_000_000_000;

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
            let late = |place: usize| window.late.get(place).and_then(|late| late.ns()).unwrap_or(0);
            let most = named.map_or_else(|| (0..window.late.len()).map(late).max().unwrap_or(0), late);
            (most / i64::from(window.collectives), window.end_ns)
        })
        .filter(|(late_ns, _)| *late_ns > 0)
        .collect();
    windows.sort_unstable_by_key(|(late_ns, end_ns)| (std::cmp::Reverse(*late_ns), *end_ns));
    let mut steps: Vec<Step> = Vec::new();
    for (_, end_ns) in windows.into_iter().take(2 * STEPS) {
        let span = (end_ns - board.window_ns - BESIDE_NS, end_ns + BESIDE_NS);
        if let Some(step) = of_window(asking, span, steps.len())?
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
fn of_window(asking: &mut Asking<'_>, (from_ns, to_ns): (i64, i64), number: usize) -> anyhow::Result<Option<Step>> {
    let sql = format!(
        "SELECT comm_hash, func, seq, max(lateness_ns) AS late_ns, max(at_ns) AS at_ns FROM lateness({from_ns}, {to_ns}) \
         GROUP BY comm_hash, func, seq ORDER BY late_ns DESC LIMIT 1"
    );
    let found = asking.try_ask(&format!("step {}: which", number + 1), sql)?;
    let Some([comm, func, seq, _, at_ns]) = found.rows.first().map(Vec::as_slice) else { return Ok(None) };
    let (Some(comm), Some(func), Some(seq), Some(at_ns)) = (integer(comm), text(func), integer(seq), integer(at_ns))
    else {
        return Ok(None);
    };
    let of = format!("WHERE comm_hash = {comm} AND func = {} AND seq = {seq}", crate::cli::rows::quoted(&func));
    let (from_ns, to_ns) = (at_ns - 10 * BESIDE_NS, at_ns + BESIDE_NS);
    let sql = format!(
        "SELECT rank, node, pid, entry_ns, duration_ns, bound_ns, ts_ns FROM lateness({from_ns}, {to_ns}) {of} ORDER BY entry_ns"
    );
    let lanes = asking.try_ask(&format!("step {}: its ranks", number + 1), sql)?;
    let sql = format!("SELECT node, pid, own_ns FROM self_time({from_ns}, {to_ns}) {of} ORDER BY node, pid");
    let own = asking.try_ask(&format!("step {}: compute time before it", number + 1), sql)?;
    let own: HashMap<(String, i64), i64> = own
        .rows
        .iter()
        .filter_map(|row| Some(((text(row.first()?)?, integer(row.get(1)?)?), integer(row.get(2)?)?)))
        .collect();
    let mut ranks = Vec::new();
    for row in &lanes.rows {
        let [rank, node, pid, entry_ns, duration_ns, bound_ns, ts_ns] = row.as_slice() else { continue };
        // Without a clock it stands where its own host's clock puts it, and is drawn paler.
        let (Some(rank), Some(node), Some(pid), Some(entry_ns)) =
            (integer(rank), text(node), integer(pid), integer(entry_ns).or(integer(ts_ns)))
        else {
            continue;
        };
        let own_ns = own.get(&(node.clone(), pid)).copied();
        let duration_ns = integer(duration_ns).unwrap_or(0);
        ranks.push(Lane { rank, node, pid, entry_ns, duration_ns, bound_ns: integer(bound_ns), own_ns });
    }
    let begin = |lane: &Lane| lane.entry_ns - lane.own_ns.unwrap_or(0).max(0);
    let from_ns = ranks.iter().map(begin).min().unwrap_or(at_ns);
    let to_ns = ranks.iter().map(|lane| lane.entry_ns + lane.duration_ns).max().unwrap_or(at_ns);
    let mut events = Vec::new();
    for (table, what) in [
        ("offcpu", "coalesce(reason, 'off-CPU') || ' (' || coalesce(next_comm, '') || ')'"),
        ("block_io", "coalesce(op, 'request') || ' ' || coalesce(device, '')"),
        ("memory_events", "event"),
    ] {
        // Rows begin on their hosts' clocks, which may be some time off: the borders are wide.
        let sql = format!(
            "SELECT node, pid, cluster_ns(ts_ns) AS at_ns, ts_ns, duration_ns, {what} AS what FROM {table} WHERE ts_ns >= {} AND ts_ns < {} AND \
             duration_ns >= {SHORTEST_NS} ORDER BY ts_ns LIMIT {MOST_EVENTS}",
            from_ns - BESIDE_NS,
            to_ns + BESIDE_NS
        );
        for row in asking.try_ask(&format!("step {}: {table}", number + 1), sql)?.rows {
            let [node, pid, aligned_ns, ts_ns, duration_ns, what] = row.as_slice() else { continue };
            let (Some(node), Some(pid), Some(at_ns), Some(duration_ns)) =
                (text(node), integer(pid), integer(aligned_ns).or(integer(ts_ns)), integer(duration_ns))
            else {
                continue;
            };
            events.push(Seen { node, pid, at_ns, duration_ns, what: text(what).unwrap_or_default() });
        }
    }
    Ok(Some(Step { collective: format!("{func} #{seq}"), ranks, events }))
}
