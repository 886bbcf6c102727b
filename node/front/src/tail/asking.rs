//! The questions behind `rankmesh tail`, and what their rows become.

use std::collections::{BTreeMap, HashMap};

use ask::rows::{Client, Rows};
use model::Coverage;
use model::cells::{integer, quoted, text};
use query_planner::Value;

use super::figures::{self, Figures, Group, Service, Slowest};
use super::parts::{Kind, Part, Request};
use super::{By, Tail, Wanted};

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
/// Services that are looked into, those with the most requests first.
const MOST_SERVICES: usize = 16;
/// Examples of a service.
const EXAMPLES: usize = 3;

/// What is asked about.
struct Asked<'a> {
    wanted: &'a Wanted,
    span_ns: (i64, i64),
}

impl Asked<'_> {
    /// Conditions on a table's rows, by its column of time.
    fn conditions(&self, time: &str, service: Option<&str>) -> String {
        let (since_ns, until_ns) = self.span_ns;
        // A second's sum is of the span where its second begins in it.
        let mut sql = format!("{time} >= {since_ns} AND {time} < {until_ns}");
        let named =
            [("service", service), ("tenant", self.wanted.tenant.as_deref()), ("route", self.wanted.route.as_deref())];
        for (column, name) in named {
            if let Some(name) = name {
                sql.push_str(&format!(" AND {column} = {}", quoted(name)));
            }
        }
        sql
    }
}

/// What requests are grouped by, as SQL.
fn column(by: By) -> &'static str {
    match by {
        By::Host => "node",
        By::Tenant => "tenant",
        By::Route => "ifnull(method || ' ', '') || ifnull(route, '(no path)')",
    }
}

/// The answer of that span.
pub(super) fn asked(client: &Client<'_>, wanted: &Wanted, span_ns: (i64, i64)) -> anyhow::Result<Tail> {
    let of = &Asked { wanted, span_ns };
    let by = wanted.by;
    let rolled = of.conditions("bucket_ns", wanted.service.as_deref());
    let whole = client.ask(format!(
        "SELECT service, '', {} FROM request_rollups WHERE {rolled} GROUP BY service ORDER BY sum(count) DESC, service",
        figures::COLUMNS
    ))?;
    let mut coverage = whole.coverage;
    let groups = client.ask(format!(
        "SELECT service, {0} AS of, {1} FROM request_rollups WHERE {rolled} GROUP BY service, of ORDER BY sum(count) DESC, of",
        column(by),
        figures::COLUMNS
    ))?;
    coverage.also(groups.coverage);
    let mut by_service: BTreeMap<String, Vec<Group>> = BTreeMap::new();
    for row in &groups.rows {
        let group = Group { of: text(row, 1), figures: Figures::of(row), compared: None };
        by_service.entry(text(row, 0)).or_default().push(group);
    }
    let left_out = whole.rows.len().saturating_sub(MOST_SERVICES);
    let mut services = vec![];
    for row in whole.rows.iter().take(MOST_SERVICES) {
        let name = text(row, 0);
        let mut groups = by_service.remove(&name).unwrap_or_default();
        if by == By::Host {
            figures::compare(&mut groups);
        }
        let figures = Figures::of(row);
        let slowest = slowest(client, of, &name, &figures, &mut coverage)?;
        services.push(Service { service: name, figures, groups, slowest });
    }
    let (since_ns, until_ns) = span_ns;
    Ok(Tail { version: 1, since_ns, until_ns, by, services, left_out, coverage })
}

/// What the slowest hundredth of a service's requests have more of.
fn slowest(
    client: &Client<'_>,
    of: &Asked<'_>,
    service: &str,
    figures: &Figures,
    coverage: &mut Coverage,
) -> anyhow::Result<Slowest> {
    let Some(p99_ns) = figures.p99_ns else { return Ok(Slowest::unknown("none of them was answered")) };
    // Else those that all take as long would be on either side of it by chance.
    let from_ns = p99_ns - (p99_ns as f64 * SKETCH_ERROR) as i64;
    let rows = |condition: String, order: &str, most: usize| {
        allowed(client, [column(By::Route)], |[route]| {
            format!(
                "SELECT node, pid, tid, ts_ns, duration_ns, connection, number, {route}, status, stands_for FROM requests \
                 WHERE {} AND {condition} ORDER BY {order} DESC, ts_ns, node, connection LIMIT {most}",
                of.conditions("ts_ns", Some(service))
            )
        })
    };
    let slow = rows(format!("duration_ns >= {from_ns}"), "duration_ns", MOST_SLOW)?;
    let ordinary = rows(format!("duration_ns < {from_ns}"), "ts_ns", MOST_ORDINARY)?;
    let of_rows = |rows: &[Vec<Value>]| rows.iter().map(|row| request(row)).collect::<Vec<Request>>();
    let (mut slow_rows, mut ordinary_rows) = (of_rows(&slow.rows), of_rows(&ordinary.rows));
    coverage.also(slow.coverage);
    coverage.also(ordinary.coverage);
    if slow_rows.len() < LEAST_SLOW || ordinary_rows.len() < LEAST_ORDINARY {
        let (slow, ordinary) = (slow_rows.len(), ordinary_rows.len());
        return Ok(Slowest::unknown(&format!(
            "there are rows of {slow} slow and {ordinary} ordinary requests; {LEAST_SLOW} and {LEAST_ORDINARY} are needed"
        )));
    }
    add_paths(client, &mut slow_rows, coverage)?;
    add_paths(client, &mut ordinary_rows, coverage)?;
    Ok(figures::slowest(from_ns, slow_rows, &ordinary_rows, EXAMPLES))
}

/// Asks with columns that tell on other users, or with '' in their place where the caller may not ask
/// for them.
fn allowed<const N: usize>(
    client: &Client<'_>,
    columns: [&str; N],
    question: impl Fn([&str; N]) -> String,
) -> anyhow::Result<Rows> {
    client.ask(question(columns)).or_else(|error| match ask::is_forbidden(&error) {
        true => client.ask(question(["''"; N])),
        false => Err(error),
    })
}

fn request(row: &[Value]) -> Request {
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

/// What names a request in the mesh.
type Name = (String, i64, i64, i64);

/// Adds what the requests waited for.
fn add_paths(client: &Client<'_>, requests: &mut [Request], coverage: &mut Coverage) -> anyhow::Result<()> {
    let mut times: Vec<i64> = requests.iter().map(|request| request.ts_ns).collect();
    times.sort_unstable();
    times.dedup();
    let mut paths: HashMap<Name, Vec<(Part, i64)>> = HashMap::new();
    for times in times.chunks(PATHS_AT_ONCE) {
        let (Some(first_ns), Some(last_ns)) = (times.first(), times.last()) else { continue };
        let of = times.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
        let found = allowed(client, ["process", "thread", "taken_by"], |[process, thread, taken_by]| {
            format!(
                "SELECT node, ts_ns, connection, number, duration_ns, kind, reason, woken_by, awaited_in, tid = of_pid, \
                 {process}, {thread}, {taken_by} FROM request_stretches \
                 WHERE ts_ns >= {first_ns} AND ts_ns <= {last_ns} AND ts_ns IN ({of}) ORDER BY ts_ns, place"
            )
        })?;
        coverage.also(found.coverage);
        for row in &found.rows {
            let number = |column| integer(row, column).unwrap_or(0);
            let name = (text(row, 0), number(1), number(2), number(3));
            paths.entry(name).or_default().push((part(row), number(4)));
        }
    }
    for request in requests {
        let name = (request.node.clone(), request.ts_ns, request.connection, request.number);
        request.path = paths.remove(&name).unwrap_or_default();
    }
    Ok(())
}

/// From a row of the question above.
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
