//! Questions about ranks: their figures over the span and in windows, the episode of a named rank, and what it costs.

use super::cells::{quoted, wall};
use super::{Cells, Shown};
use crate::report::{Basis, CommReport, Culprit, Report};
use crate::rules::Rules;
use crate::score::Waits;
use crate::windows::WindowKind;

/// Fewest ranks over which z says something.
const POPULATION: usize = 4;
/// Least excess that counts where waits are only assumed.
const ASSUMED_FLOOR_NS: i64 = 200_000;

/// How many collectives were compared, in which communicators.
pub(super) fn communicators(report: &Report) -> Vec<Shown> {
    let of = |synced: bool| {
        let scored = report.per_comm.iter().filter(|comm| !comm.ranks.is_empty() && comm.synced == synced);
        let sizes: Vec<String> = scored
            .filter_map(|comm| {
                let cells = Cells::of(report, comm);
                Some(format!("({}, {})", cells.hash()?, cells.least()))
            })
            .collect();
        (!sizes.is_empty()).then(|| {
            let view = if synced { "synced_lateness" } else { "lateness" };
            let (since_ns, until_ns) = (report.evidence.since_ns, report.evidence.until_ns);
            let sql = format!(
                "WITH size(comm_hash, least) AS (VALUES {}),\n\
                 met AS (SELECT l.comm_hash, l.func, l.seq, l.at_ns, max(l.ranks) AS ranks, max(l.nranks) AS nranks, max(s.least) AS least\n  \
                 FROM {view}({since_ns}, {until_ns}) l JOIN size s ON s.comm_hash = l.comm_hash GROUP BY l.comm_hash, l.func, l.seq, l.at_ns),\n\
                 steps AS (SELECT *, at_ns - lag(at_ns) OVER (PARTITION BY comm_hash ORDER BY at_ns, func, seq) AS step_ns\n  \
                 FROM met WHERE ranks >= least)\n\
                 SELECT printf('%016x', comm_hash) AS comm_hash, count(*) AS matched, count(*) FILTER (WHERE ranks = nranks) AS complete,\n  \
                 (SELECT count(*) FROM met WHERE met.comm_hash = steps.comm_hash AND met.ranks < met.least) AS dropped, median(step_ns) AS period_ns\n\
                 FROM steps GROUP BY steps.comm_hash",
                sizes.join(", ")
            );
            let how = if synced { " whose synchronise calls were seen" } else { "" };
            Shown::new(format!("collectives compared, by communicator{how}"), sql)
        })
    };
    [false, true].into_iter().filter_map(of).collect()
}

/// z over the ranks' figures, as the report takes it: not below four ranks, and by entries no finer than the clocks.
fn z(comm: &CommReport, basis: Basis) -> String {
    if comm.heard < POPULATION {
        return "NULL".to_owned();
    }
    match basis {
        Basis::Waits => "robust_z(-duration_ns) OVER ()".to_owned(),
        Basis::Entries => "robust_z(lateness_ns, ifnull(bound_ns, 0)) OVER ()".to_owned(),
        Basis::OwnTime => format!(
            "CASE WHEN count(ord) OVER (PARTITION BY class) >= {POPULATION} THEN robust_z(ord) OVER (PARTITION BY class) END"
        ),
    }
}

pub(super) fn ranks(report: &Report, comm: &CommReport) -> Option<Shown> {
    let cells = Cells::of(report, comm);
    let basis = cells.basis()?;
    let (since_ns, until_ns) = cells.span();
    // Nearest rank, as the report takes it.
    let p95 =
        |figure: &str| format!("max({figure}_ns) FILTER (WHERE {figure}_place = 1 + round(0.95 * ({figure}_n - 1)))");
    let sql = format!(
        "{},\n{},\n\
         placed AS (SELECT *, row_number() OVER (PARTITION BY node, pid ORDER BY wait_ns) AS wait_place, count(*) OVER mine AS wait_n,\n  \
         row_number() OVER (PARTITION BY node, pid ORDER BY lateness_ns IS NULL, lateness_ns) AS lateness_place, \
         count(lateness_ns) OVER mine AS lateness_n\n  FROM seen WINDOW mine AS (PARTITION BY node, pid)),\n\
         each AS (SELECT rank, node, pid, max(class) AS class, max(bound_ns) AS bound_ns, count(*) AS collectives, avg(duration_ns) AS duration_ns,\n  \
         avg(lateness_ns) AS lateness_ns, median(lateness_ns) AS lateness_median_ns, {} AS lateness_p95_ns,\n  \
         avg(wait_ns) AS wait_ns, median(wait_ns) AS wait_median_ns, {} AS wait_p95_ns,\n  \
         avg(excess_ns) AS excess_ns, avg(own_excess_ns) AS own_excess_ns\n  FROM placed GROUP BY rank, node, pid)\n\
         SELECT rank, node, pid, each.collectives, lateness_ns, lateness_median_ns, lateness_p95_ns, wait_ns, wait_median_ns, wait_p95_ns,\n  \
         own_excess_ns, excess_ns, excess_ns * wall.collectives / wall_ns AS share, {} AS z\nFROM each, wall ORDER BY excess_ns DESC",
        cells.seen(basis)?,
        wall(since_ns, until_ns),
        p95("lateness"),
        p95("wait"),
        z(comm, basis)
    );
    Some(Shown::new(format!("ranks of communicator {} over the span", comm.comm_hash), sql))
}

/// In which windows each rank was flagged, by the rules of verdicts.md.
pub(super) fn windows(report: &Report, comm: &CommReport, named: &[&Culprit]) -> Option<Shown> {
    let cells = Cells::of(report, comm);
    let basis = cells.basis()?;
    let rules = Rules::default();
    let slot = match comm.windowed? {
        WindowKind::Time { length_ns } => format!("at_ns / {length_ns}"),
        WindowKind::Collectives { each } => {
            let last = (comm.matched / each.max(1)).max(1) - 1;
            format!("min((row_number() OVER (ORDER BY at_ns, func, seq) - 1) / {each}, {last})")
        }
    };
    let (effect, z, ratio, own_ratio) = (rules.effect, rules.z, rules.ratio, rules.own_ratio);
    let stands = |z_of: &str, known: &str, few: &str| {
        format!("CASE WHEN {known} >= {POPULATION} THEN ifnull({z_of} > {z}, 0) ELSE ifnull({few}, 0) END")
    };
    let by_entries = stands("late_z", "entries_known", &format!("lateness_ns >= {ratio} * most_late_ns"));
    let late =
        format!("bound_ns IS NOT NULL AND later_ns > bound_ns AND later_ns * per_ns >= {effect} AND {by_entries}");
    let flagged_late = if basis == Basis::Entries {
        late
    } else {
        let floor = if comm.waits == Some(Waits::Assumed) { ASSUMED_FLOOR_NS } else { 0 };
        let by_waits =
            stands("wait_z", "waits_known", &format!("least_wait_ns > 0 AND least_wait_ns >= {ratio} * wait_ns"));
        format!(
            "excess_ns * per_ns >= {effect} AND excess_ns > {floor} AND {by_waits}\n    \
             AND NOT ifnull(later_ns + bound_ns < excess_ns / 2.0, 0)"
        )
    };
    let flagged_own = if basis == Basis::Entries {
        "0".to_owned()
    } else {
        let by_own = stands("own_z", "own_known", &format!("own_ns >= {own_ratio} * most_own_ns"));
        format!(
            "own_calls * 2 >= collectives AND own_excess_ns * per_ns >= {effect} AND own_excess_ns > 0 AND {by_own}"
        )
    };
    let others = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE CURRENT ROW";
    let (late_in, own_in) = match named.iter().find(|c| c.comm_hash == comm.comm_hash) {
        Some(culprit) => {
            let (from_ns, to_ns) = cells.edges(culprit);
            let within =
                |flag: &str| format!("count(*) FILTER (WHERE {flag} AND last_ns >= {from_ns} AND first_ns <= {to_ns})");
            (within("late"), within("own"))
        }
        None => ("NULL".to_owned(), "NULL".to_owned()),
    };
    let sql = format!(
        "{},\n\
         slots AS (SELECT func, seq, at_ns, step_ns, {slot} AS slot FROM steps),\n\
         cut AS (SELECT slot, min(at_ns) AS first_ns, max(at_ns) AS last_ns, count(*) AS collectives,\n  \
         count(*) * 1.0 / sum(ifnull(step_ns, (SELECT median(step_ns) FROM steps))) AS per_ns FROM slots GROUP BY slot),\n\
         means AS (SELECT slot, rank, node, pid, max(class) AS class, max(bound_ns) AS bound_ns, count(*) AS calls, count(own_ns) AS own_calls,\n  \
         avg(duration_ns) AS duration_ns, avg(wait_ns) AS wait_ns, avg(lateness_ns) AS lateness_ns, avg(later_ns) AS later_ns,\n  \
         avg(excess_ns) AS excess_ns, avg(own_ns) AS own_ns, avg(own_excess_ns) AS own_excess_ns\n  \
         FROM seen JOIN slots USING (func, seq) GROUP BY slot, rank, node, pid),\n\
         rated AS (SELECT *, robust_z(-duration_ns) OVER every AS wait_z, robust_z(lateness_ns, ifnull(bound_ns, 0)) OVER every AS late_z,\n  \
         robust_z(own_ns) OVER kin AS own_z, count(*) OVER every AS waits_known, count(lateness_ns) OVER every AS entries_known,\n  \
         count(own_ns) OVER kin AS own_known FROM means WINDOW every AS (PARTITION BY slot), kin AS (PARTITION BY slot, class)),\n\
         beside AS (SELECT *, min(wait_ns) OVER (PARTITION BY slot {others}) AS least_wait_ns,\n  \
         max(lateness_ns) OVER (PARTITION BY slot {others}) AS most_late_ns,\n  \
         max(own_ns) OVER (PARTITION BY slot, class {others}) AS most_own_ns FROM rated),\n\
         flags AS (SELECT rank, node, pid, first_ns, last_ns,\n  calls * 2 >= collectives AND {flagged_late} AS late,\n  \
         calls * 2 >= collectives AND {flagged_own} AS own\n  FROM beside JOIN cut USING (slot))\n\
         SELECT rank, node, pid, count(*) FILTER (WHERE late OR own) AS flagged, (SELECT count(*) FROM cut) AS windows,\n  \
         {late_in} AS late_in_episode, {own_in} AS own_in_episode\nFROM flags GROUP BY rank, node, pid ORDER BY flagged DESC, rank",
        cells.seen(basis)?,
    );
    Some(Shown::new(format!("windows of communicator {} in which ranks were flagged", comm.comm_hash), sql))
}

pub(super) fn episode(report: &Report, comm: &CommReport, culprit: &Culprit) -> Option<Shown> {
    let cells = Cells::of(report, comm);
    let (from_ns, to_ns) = cells.edges(culprit);
    let is_it = format!("node = {} AND pid = {}", quoted(&culprit.node), culprit.pid);
    let sql = format!(
        "{},\n{},\n\
         late AS (SELECT excess_ns, sum(excess_ns) OVER (ORDER BY excess_ns ROWS UNBOUNDED PRECEDING) AS so_far FROM seen\n  \
         WHERE {is_it} AND at_ns BETWEEN {from_ns} AND {to_ns} AND ord >= others_latest),\n\
         each AS (SELECT rank, node, pid, max(class) AS class, max(bound_ns) AS bound_ns, avg(duration_ns) AS duration_ns, \
         avg(lateness_ns) AS lateness_ns, avg(ord) AS ord,\n  \
         avg(excess_ns) AS excess_ns FROM seen WHERE at_ns BETWEEN {from_ns} AND {to_ns} GROUP BY rank, node, pid),\n\
         rated AS (SELECT *, {} AS z FROM each)\n\
         SELECT (SELECT min(excess_ns) FROM late WHERE so_far >= (SELECT sum(excess_ns) / 2.0 FROM late)) AS late_by_ns,\n  \
         (SELECT count(*) FROM late) AS last_in, wall.collectives, excess_ns * wall.collectives / wall_ns AS share, z\n\
         FROM rated, wall WHERE {is_it}",
        cells.seen(culprit.basis)?,
        wall(from_ns, to_ns),
        z(comm, culprit.basis)
    );
    Some(Shown::new(format!("rank {} on {} in its episode", culprit.rank, culprit.node), sql))
}

pub(super) fn cost(report: &Report, comm: &CommReport, first: &Culprit, named: &[&Culprit]) -> Option<Shown> {
    let cells = Cells::of(report, comm);
    let (from_ns, to_ns) = cells.edges(first);
    let named: Vec<String> = named
        .iter()
        .filter(|c| c.comm_hash == first.comm_hash)
        .map(|c| format!("({}, {})", quoted(&c.node), c.pid))
        .collect();
    // By entries, times of the clock and not since the first entry: with a rank missing, that would be another zero.
    let (ord, class) = match first.basis {
        Basis::OwnTime => {
            let of = comm.ranks.iter().position(|r| r.node == first.node && r.pid == first.pid)?;
            let class = comm.ranks.iter().position(|r| r.class == comm.ranks[of].class)?;
            ("ord", format!(" AND class = {class}"))
        }
        _ => ("ord", String::new()),
    };
    // By own time the whole job waits.
    let waiting = report.cost.charged.map_or_else(|| "waiting".to_owned(), |n| n.to_string());
    let turn = report.cost.per_step.map_or_else(|| "NULL".to_owned(), |step| step.collectives.to_string());
    let sql = format!(
        "{},\n{},\n\
         called AS (SELECT *, (node, pid) IN (VALUES {}) AS named FROM met WHERE at_ns BETWEEN {from_ns} AND {to_ns}{class}),\n\
         each AS (SELECT func, seq, max({ord}) FILTER (WHERE named) AS late, max({ord}) FILTER (WHERE NOT named) AS rest,\n  \
         count({ord}) FILTER (WHERE NOT named) AS waiting FROM called GROUP BY func, seq),\n\
         whole AS (SELECT total(max(late - rest, 0)) AS longer_ns, total(max(late - rest, 0) * {waiting}) AS wasted_ns FROM each),\n\
         turn AS (SELECT {turn} AS collectives),\n\
         placed AS (SELECT at_ns, row_number() OVER (ORDER BY at_ns, func, seq) - 1 AS place FROM steps WHERE at_ns BETWEEN {from_ns} AND {to_ns}),\n\
         step AS (SELECT max(1, round(1.0 * wall.collectives / turn.collectives)) AS steps, (wall.collectives - 1) / turn.collectives AS turns,\n  \
         turn.collectives AS collectives FROM wall, turn),\n\
         per AS (SELECT steps, collectives, ((SELECT at_ns FROM placed WHERE place = turns * collectives) - (SELECT at_ns FROM placed WHERE place = 0))\n  \
         * 1.0 / turns AS step_ns FROM step)\n\
         SELECT wasted_ns / 1e9 AS gpu_seconds_wasted, wasted_ns / wall_ns AS gpus_lost, steps, per.collectives AS collectives_a_step, step_ns,\n  \
         longer_ns / steps AS wasted_ns_a_step, wasted_ns / steps / 1e9 AS gpu_seconds_a_step,\n  \
         step_ns / nullif(step_ns - longer_ns / steps, 0) AS slowdown\nFROM whole, wall, per",
        cells.seen(first.basis)?,
        wall(from_ns, to_ns),
        named.join(", "),
    );
    Some(Shown::new("cost", sql))
}
