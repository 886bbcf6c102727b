//! Questions about a job in which no rank is slow: stages, lateness that goes round, the network; and about one that hangs.

use std::collections::BTreeSet;

use super::cells::{quoted, wall};
use super::{Cells, Shown};
use crate::hang::Hang;
use crate::report::{Basis, CommReport, Report, Stage};
use crate::rules::Rules;
use crate::why::{LOOKED_AT_NS, Network};

/// The share of own work of each stage; each rank's by the collectives of one communicator.
pub(super) fn stages(report: &Report, stages: &[Stage]) -> Option<Shown> {
    let ranks =
        || stages.iter().enumerate().flat_map(|(place, stage)| stage.ranks.iter().map(move |rank| (place, rank)));
    let member = ranks().map(|(place, rank)| {
        let hash = u64::from_str_radix(&rank.comm_hash, 16).ok()?.cast_signed();
        Some(format!("({}, {}, {place}, {hash})", quoted(&rank.who.node), rank.who.pid))
    });
    let member = member.collect::<Option<Vec<_>>>()?.join(", ");
    let hashes: BTreeSet<&str> = ranks().map(|(_, rank)| rank.comm_hash.as_str()).collect();
    let comms: Vec<&CommReport> =
        report.per_comm.iter().filter(|comm| hashes.contains(comm.comm_hash.as_str())).collect();
    let cells = Cells::of(report, comms.first()?);
    let ((since_ns, until_ns), (_, own)) = (cells.span(), cells.views());
    // Each communicator's collectives, from the view that its calls are compared by.
    let met: Vec<String> = comms
        .iter()
        .filter_map(|comm| {
            let cells = Cells::of(report, comm);
            Some(format!(
                "SELECT DISTINCT comm_hash, func, seq, at_ns FROM {}({since_ns}, {until_ns}) WHERE comm_hash = {} AND ranks >= {}",
                cells.views().0,
                cells.hash()?,
                cells.least()
            ))
        })
        .collect();
    let sql = format!(
        "WITH member(node, pid, stage, comm_hash) AS (VALUES {member}),\n\
         met AS ({}),\n\
         steps AS (SELECT *, at_ns - lag(at_ns) OVER (PARTITION BY comm_hash ORDER BY at_ns, func, seq) AS step_ns FROM met),\n\
         usual AS (SELECT comm_hash, median(step_ns) AS step_ns FROM steps GROUP BY comm_hash),\n\
         walls AS (SELECT s.comm_hash, count(*) * 1.0 / sum(ifnull(s.step_ns, u.step_ns)) AS per_ns\n  \
         FROM steps s JOIN usual u ON u.comm_hash = s.comm_hash GROUP BY s.comm_hash),\n\
         each AS (SELECT m.node, m.pid, m.stage, max(s.rank) AS rank, avg(s.own_ns) * max(w.per_ns) AS own_share\n  \
         FROM member m JOIN {own}({since_ns}, {until_ns}) s ON s.node = m.node AND s.pid = m.pid AND s.comm_hash = m.comm_hash\n  \
         JOIN met ON met.comm_hash = s.comm_hash AND met.func = s.func AND met.seq = s.seq\n  \
         JOIN walls w ON w.comm_hash = m.comm_hash GROUP BY m.node, m.pid, m.stage),\n\
         stages AS (SELECT stage, count(*) AS ranks, median(own_share) AS own_share FROM each GROUP BY stage),\n\
         others AS (SELECT median(own_share) AS own_share FROM stages WHERE stage > 0)\n\
         SELECT stage, ranks, stages.own_share, CASE WHEN stage = 0 THEN stages.own_share - others.own_share END AS share,\n  \
         CASE WHEN stage = 0 THEN stages.own_share / others.own_share END AS ratio\nFROM stages, others ORDER BY stage",
        met.join(" UNION ALL "),
    );
    Some(Shown::new("stages, the slowest first: how much of wall time goes into own work", sql))
}

/// Who was last in turn, and what it cost.
pub(super) fn turns(report: &Report, comm: &CommReport) -> Option<Shown> {
    let cells = Cells::of(report, comm);
    let basis = cells.basis()?;
    let (since_ns, until_ns) = cells.span();
    let (waited, bound_ns, own) = match basis {
        Basis::Entries => {
            let bound = comm.ranks.iter().filter_map(|rank| rank.lateness_bound_ns).max().unwrap_or(0);
            ("-lateness_ns", bound, "1".to_owned())
        }
        _ => ("duration_ns", 0, format!("own_ns - usual_ns >= {} * max(mid_ns, 0)", Rules::default().own_share)),
    };
    let sql = format!(
        "{},\n{},\n\
         each AS (SELECT *, {waited} AS waited_ns, min({waited}) OVER met AS least_ns, median(own_ns) OVER met AS usual_ns,\n  \
         row_number() OVER (PARTITION BY func, seq ORDER BY {waited}, rank, node, pid) AS place FROM seen \
         WINDOW met AS (PARTITION BY func, seq)),\n\
         mids AS (SELECT *, median(waited_ns - least_ns) OVER (PARTITION BY func, seq) - {bound_ns} AS mid_ns FROM each),\n\
         last AS (SELECT node, pid, rank, max(mid_ns, 0) AS late_ns FROM mids WHERE place = 1 AND ifnull({own}, 0)),\n\
         turns AS (SELECT node, pid, count(*) AS times FROM last GROUP BY node, pid)\n\
         SELECT (SELECT sum(late_ns) FROM last) / wall_ns AS share, wall.collectives,\n  \
         (SELECT count(*) FROM turns WHERE times * 2.0 >= wall.collectives / {}.0) AS taking_turns\nFROM wall",
        cells.seen(basis)?,
        wall(since_ns, until_ns),
        comm.heard
    );
    Some(Shown::new("lateness that goes round", sql))
}

/// How far each rank got where the job stands.
pub(super) fn hang(report: &Report, hang: &Hang) -> Vec<Shown> {
    let waiting = hang.waiting.iter().map(|w| (w.comm_hash.as_str(), w.func.as_str()));
    let missing = hang.missing.iter().map(|m| (m.comm_hash.as_str(), m.func.as_str()));
    let jammed = hang.jammed.iter().map(|jam| (jam.comm_hash.as_str(), jam.func.as_str()));
    let places: BTreeSet<(&str, &str)> = missing.chain(waiting).chain(jammed).collect();
    let (since_ns, until_ns) = (report.evidence.since_ns, report.evidence.until_ns);
    let mut shown: Vec<Shown> = places
        .into_iter()
        .filter_map(|(comm_hash, func)| {
            let hash = u64::from_str_radix(comm_hash, 16).ok()?.cast_signed();
            let synced = report.per_comm.iter().any(|comm| comm.comm_hash == comm_hash && comm.synced);
            let missing: Vec<String> = hang
                .missing
                .iter()
                .filter(|m| m.comm_hash == comm_hash && m.func == func)
                .map(|m| format!("({}, {})", quoted(&m.who.node), m.who.pid))
                .collect();
            let named =
                if missing.is_empty() { "0".to_owned() } else { format!("(node, pid) IN (VALUES {})", missing.join(", ")) };
            // A call that only enqueues is through when a synchronise call that began after it is; those that hosts are in are not stored.
            let (sync, through) = match synced {
                true => (
                    format!(
                        "sync AS (SELECT node, pid, max(ts_ns) AS last_ns FROM cuda_calls WHERE kind = 'after_collective'\n  \
                         AND ts_ns >= {since_ns} AND ts_ns < {until_ns} GROUP BY node, pid),\n"
                    ),
                    "max(c.seq) FILTER (WHERE c.ts_ns <= (SELECT last_ns FROM sync s WHERE s.node = c.node AND s.pid = c.pid))",
                ),
                false => (String::new(), "max(c.seq)"),
            };
            let sql = format!(
                "WITH {sync}got AS (SELECT c.rank, c.node, c.pid, max(c.seq) AS last_recorded, {through} AS completed\n  \
                 FROM collectives c WHERE c.captured IS NOT 1 AND c.duration_ns IS NOT NULL AND c.comm_hash = {hash} AND c.func = {func} AND c.ts_ns >= {since_ns} \
                 AND c.ts_ns < {until_ns}\n  GROUP BY c.rank, c.node, c.pid),\n\
                 stands AS (SELECT *, completed + 1 AS stands_at, {named} AS missing FROM got)\n\
                 SELECT rank, node, pid, last_recorded, completed, stands_at, missing,\n  \
                 CASE WHEN missing THEN (SELECT count(*) FROM stands o WHERE NOT o.missing AND o.stands_at >= stands.stands_at) END AS holds_up\n\
                 FROM stands ORDER BY stands_at, rank",
                func = quoted(func),
            );
            Some(Shown::new(format!("how far each rank got with {func} of communicator {comm_hash}"), sql))
        })
        .collect();
    shown.push(Shown::not(
        "no question gives since when ranks wait and what their threads do: agents said that of the calls that their ranks are in, which are in \
         no store before they end",
    ));
    shown
}

/// The collectives that waited for segments to be sent again.
pub(super) fn network(report: &Report, network: &Network) -> Option<Shown> {
    let comm = report.per_comm.iter().find(|comm| comm.comm_hash == network.comm_hash)?;
    let cells = Cells::of(report, comm);
    let until_ns = report.evidence.until_ns;
    let since_ns = report.evidence.since_ns.max(until_ns.saturating_sub(LOOKED_AT_NS));
    let slack_ns = report.evidence.clock_bound_ns.unwrap_or(0);
    let far = report.evidence.clocks.iter().map(|(_, clock)| clock.offset_ns.saturating_abs()).max().unwrap_or(0);
    let sql = format!(
        "WITH sent AS (SELECT cluster_ns(ts_ns) AS sent_ns, node, saddr, daddr FROM net_events WHERE event = 'tcp_retransmit_skb'\n  \
         AND ts_ns >= {} AND ts_ns < {}),\n\
         home AS (SELECT DISTINCT saddr AS addr, node FROM sent),\n\
         resent AS (SELECT * FROM sent WHERE saddr <> daddr AND (daddr, node) NOT IN (SELECT addr, node FROM home)),\n\
         met AS (SELECT func, seq, min(entry_ns) AS first_ns, max(entry_ns) AS last_ns, max(entry_ns + duration_ns) AS end_ns\n  \
         FROM {}({since_ns}, {until_ns}) WHERE comm_hash = {} AND entry_ns IS NOT NULL GROUP BY func, seq HAVING count(*) = {}),\n\
         each AS (SELECT *, max(end_ns - last_ns, 0) AS took_ns,\n  \
         EXISTS (SELECT 1 FROM resent WHERE sent_ns BETWEEN first_ns - {slack_ns} AND end_ns + {slack_ns}) AS waited FROM met),\n\
         placed AS (SELECT took_ns, row_number() OVER (ORDER BY took_ns) - 1 AS place, count(*) OVER () AS n FROM each),\n\
         usual AS (SELECT CASE WHEN count(*) FILTER (WHERE NOT waited) >= 3 THEN median(CASE WHEN NOT waited THEN took_ns END)\n  \
         ELSE (SELECT took_ns FROM placed WHERE place = round(0.1 * (n - 1))) END AS usual_ns FROM each),\n\
         sums AS (SELECT count(*) AS collectives, count(*) FILTER (WHERE waited) AS with_retransmissions, usual_ns,\n  \
         avg(took_ns) FILTER (WHERE waited) AS slow_ns, total(max(took_ns - usual_ns, 0)) FILTER (WHERE waited) AS lost_ns,\n  \
         total(max(took_ns - usual_ns, 0)) AS all_ns, max(end_ns) - min(first_ns) AS wall_ns FROM each, usual),\n\
         flows AS (SELECT DISTINCT sent_ns, node, saddr, daddr FROM resent\n  \
         WHERE EXISTS (SELECT 1 FROM each WHERE sent_ns BETWEEN first_ns - {slack_ns} AND end_ns + {slack_ns}))\n\
         SELECT node AS from_node, saddr AS from_address, daddr AS to_address, count(*) AS retransmissions, (SELECT count(*) FROM flows) AS all_flows,\n  \
         sums.collectives, with_retransmissions, usual_ns, slow_ns, lost_ns / wall_ns AS share, lost_ns / max(all_ns, 1) AS explained\n\
         FROM flows, sums GROUP BY node, saddr, daddr ORDER BY retransmissions DESC, node, saddr, daddr",
        since_ns.saturating_sub(far),
        until_ns.saturating_add(far),
        cells.views().0,
        cells.hash()?,
        comm.heard,
    );
    Some(Shown::new("the network: segments sent again, and the collectives that waited for them", sql))
}
