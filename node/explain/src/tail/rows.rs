//! The questions about a service's slowest requests, and what their rows become.

use std::collections::HashMap;

use model::cells::{integer, text};
use query_planner::Value;

use super::parts::{Kind, Part, Request};

/// Rows of slow requests, and of ordinary ones, that are looked into.
const MOST_SLOW: usize = 1_000;
const MOST_ORDINARY: usize = 4_000;
/// How much a quantile may be off by its sketch.
const SKETCH_ERROR: f64 = 0.012;
/// Fewer tell nothing.
const LEAST_SLOW: usize = 5;
const LEAST_ORDINARY: usize = 20;
/// Requests whose paths are asked for at once.
const PATHS_AT_ONCE: usize = 500;

/// Method and path of a request, as SQL.
pub const ROUTE: &str = "ifnull(method || ' ', '') || ifnull(route, '(no path)')";
/// Columns of `request_stretches` that tell on other users: the last three of [`paths_sql`].
pub const NAMES: [&str; 3] = ["process", "thread", "taken_by || ifnull(' of ' || nullif(taken_by_tenant, tenant), '')"];

/// From which duration on requests are slow, where this is the 99th percentile. It is a little less:
/// else those that all take as long would be on either side of it by chance.
#[must_use]
pub fn slow_from_ns(p99_ns: i64) -> i64 {
    p99_ns - (p99_ns as f64 * SKETCH_ERROR) as i64
}

/// The question for rows of slow requests, the slowest first; [`request`] reads them. `conditions`:
/// on the rows of a service; `route`: [`ROUTE`], or '' for who may not ask for it.
#[must_use]
pub fn slow_sql(conditions: &str, route: &str, from_ns: i64) -> String {
    requests_sql(&format!("{conditions} AND duration_ns >= {from_ns}"), route, "duration_ns", MOST_SLOW)
}

/// Likewise for rows of ordinary ones, the latest first.
#[must_use]
pub fn ordinary_sql(conditions: &str, route: &str, from_ns: i64) -> String {
    requests_sql(&format!("{conditions} AND duration_ns < {from_ns}"), route, "ts_ns", MOST_ORDINARY)
}

fn requests_sql(conditions: &str, route: &str, order: &str, most: usize) -> String {
    format!(
        "SELECT node, pid, tid, ts_ns, duration_ns, connection, number, {route}, status, stands_for FROM requests \
         WHERE {conditions} ORDER BY {order} DESC, ts_ns, node, connection LIMIT {most}"
    )
}

/// From a row of these questions, without its path.
#[must_use]
pub fn request(row: &[Value]) -> Request {
    let number = |column| integer(row, column).unwrap_or(0);
    Request {
        node: text(row, 0),
        pid: number(1),
        tid: number(2),
        ts_ns: number(3),
        duration_ns: number(4),
        connection: number(5),
        number: number(6),
        route: text(row, 7),
        status: integer(row, 8),
        weight: number(9) as f64,
        path: vec![],
    }
}

/// Why so few rows tell nothing; none where there are enough.
#[must_use]
pub fn few_rows(slow: usize, ordinary: usize) -> Option<String> {
    (slow < LEAST_SLOW || ordinary < LEAST_ORDINARY).then(|| {
        format!(
            "there are rows of {slow} slow and {ordinary} ordinary requests; {LEAST_SLOW} and {LEAST_ORDINARY} are needed"
        )
    })
}

/// The times of these requests, as many together as [`paths_sql`] asks for at once.
#[must_use]
pub fn path_times(requests: &[Request]) -> Vec<Vec<i64>> {
    let mut times: Vec<i64> = requests.iter().map(|request| request.ts_ns).collect();
    times.sort_unstable();
    times.dedup();
    times.chunks(PATHS_AT_ONCE).map(<[i64]>::to_vec).collect()
}

/// The question for what requests of these times, ascending, waited for; [`Paths::add`] takes its
/// rows. `names`: [`NAMES`], or '' in place of each.
#[must_use]
pub fn paths_sql(times: &[i64], [process, thread, taken_by]: [&str; 3]) -> String {
    let (first_ns, last_ns) = (times.first().unwrap_or(&0), times.last().unwrap_or(&0));
    let of = times.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
    format!(
        "SELECT node, ts_ns, connection, number, duration_ns, kind, reason, woken_by, awaited_in, tid = of_pid, \
         {process}, {thread}, {taken_by} FROM request_stretches \
         WHERE ts_ns >= {first_ns} AND ts_ns <= {last_ns} AND ts_ns IN ({of}) ORDER BY ts_ns, place"
    )
}

/// What names a request in the mesh.
type Name = (String, i64, i64, i64);

/// What requests waited for.
#[derive(Debug, Default)]
pub struct Paths(HashMap<Name, Vec<(Part, i64)>>);

impl Paths {
    /// Takes in a row of [`paths_sql`].
    pub fn add(&mut self, row: &[Value]) {
        let number = |column| integer(row, column).unwrap_or(0);
        let name = (text(row, 0), number(1), number(2), number(3));
        self.0.entry(name).or_default().push((part(row), number(4)));
    }

    /// Gives requests their paths.
    pub fn give(&mut self, requests: &mut [Request]) {
        for request in requests {
            let name = (request.node.clone(), request.ts_ns, request.connection, request.number);
            request.path = self.0.remove(&name).unwrap_or_default();
        }
    }
}

/// From a row of [`paths_sql`].
fn part(row: &[Value]) -> Part {
    let (kind, of) = match text(row, 5).as_str() {
        "unread" => (Kind::Unread, String::new()),
        "ran" => (Kind::OnCpu, String::new()),
        "ready" => (Kind::CpuTaken, text(row, 12)),
        "throttled" => (Kind::Throttled, String::new()),
        "asleep" => (Kind::Asleep, text(row, 6)),
        _ => (Kind::Unknown, text(row, 6)),
    };
    let thread = text(row, 11);
    Part {
        kind,
        of,
        woken_by: text(row, 7),
        process: text(row, 10),
        thread: if integer(row, 9) == Some(1) && !thread.is_empty() { "main".to_owned() } else { thread },
        holds_lock: text(row, 8) == "lock",
    }
}
