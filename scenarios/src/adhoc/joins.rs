//! Joins made from a seed: two tables, a way to join them, spans of time, aggregates.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::suite::Span;

/// Tables with `ts_ns`, `duration_ns`, `pid` and `rank`, and how many times as long a span of each
/// has as many rows as one of the first.
const TABLES: [(&str, i64); 4] = [("collectives", 1), ("offcpu", 5), ("cuda_calls", 5), ("block_io", 300)];
const WAYS: [&str; 5] = ["join", "left join", "exists", "not exists", "in"];

/// `count` joins over the rows of this time; `near_ns` of `collectives` is some hundreds of
/// rows.
#[must_use]
pub fn generate(seed: u64, count: usize, span: Span, near_ns: i64) -> Vec<String> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..count).map(|_| join(&mut rng, span, near_ns)).collect()
}

fn join(rng: &mut StdRng, span: Span, near_ns: i64) -> String {
    let pick = |rng: &mut StdRng| TABLES[rng.random_range(0..TABLES.len())];
    let ((left, left_times), (right, right_times)) = (pick(rng), pick(rng));
    // Where both spans lie around the same time there is something to join.
    let middle_ns = span.begin_ns + (span.end_ns - span.begin_ns) / 1000 * rng.random_range(100..400);
    let within = |alias: &str, times: i64| {
        let half_ns = (near_ns * times / 2).min((span.end_ns - span.begin_ns) / 10);
        format!("{alias}.ts_ns >= {} AND {alias}.ts_ns < {}", middle_ns - half_ns, middle_ns + half_ns)
    };
    let (of_left, of_right) = (within("a", left_times), within("b", right_times));
    let same_calls = left == "collectives" && right == "collectives" && rng.random_bool(0.7);
    let on = match rng.random_range(0..4) {
        _ if same_calls && rng.random_bool(0.5) => {
            "b.comm_hash = a.comm_hash AND b.func = a.func AND b.seq = a.seq AND b.rank <> a.rank"
        }
        _ if same_calls => "b.comm_hash = a.comm_hash AND b.seq = a.seq AND b.func = a.func AND b.rank = a.rank + 1",
        0 => "b.pid = a.pid AND b.ts_ns >= a.ts_ns AND b.ts_ns < a.ts_ns + a.duration_ns + 1000000",
        1 => "b.pid = a.pid AND b.tid = a.tid AND b.duration_ns > a.duration_ns",
        2 => "b.pid = a.pid AND b.ts_ns / 100000000 = a.ts_ns / 100000000",
        _ => "b.rank = a.rank AND b.ts_ns > a.ts_ns AND b.duration_ns < a.duration_ns",
    };
    let (from, condition) = match WAYS[rng.random_range(0..WAYS.len())] {
        "join" => (format!("{left} AS a JOIN {right} AS b ON {on}"), format!("{of_left} AND {of_right}")),
        "left join" => (format!("{left} AS a LEFT JOIN {right} AS b ON {on} AND {of_right}"), of_left),
        "in" => {
            let inner =
                format!("SELECT b.pid * 1000 + b.rank FROM {right} AS b WHERE {of_right} AND b.duration_ns > 1000000");
            (format!("{left} AS a"), format!("{of_left} AND a.pid * 1000 + a.rank IN ({inner})"))
        }
        way => {
            let inner = format!("SELECT 1 FROM {right} AS b WHERE {on} AND {of_right}");
            (format!("{left} AS a"), format!("{of_left} AND {} ({inner})", way.to_ascii_uppercase()))
        }
    };
    let of_b = if from.contains(" AS b") { ", count(b.ts_ns), max(b.duration_ns)" } else { "" };
    match rng.random_range(0..3) {
        0 => format!("SELECT count(*), sum(a.duration_ns){of_b} FROM {from} WHERE {condition}"),
        1 => format!(
            "SELECT a.rank, count(*), sum(a.duration_ns){of_b} FROM {from} WHERE {condition} GROUP BY a.rank ORDER BY a.rank"
        ),
        _ => format!(
            "SELECT a.pid, a.ts_ns / 1000000000, count(*){of_b} FROM {from} WHERE {condition} GROUP BY 1, 2 ORDER BY 1, 2"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_and_every_way_comes_up() {
        let span = Span { begin_ns: 0, end_ns: 3_600_000_000_000 };
        let joins = generate(1, 60, span, 1_000_000_000);
        assert_eq!(joins, generate(1, 60, span, 1_000_000_000));
        for part in [" JOIN ", "LEFT JOIN", " EXISTS", "NOT EXISTS", " IN (", "comm_hash"] {
            assert!(joins.iter().any(|sql| sql.contains(part)), "{part}");
        }
    }
}
