//! The questions behind `rankmesh tail`, and what their rows become.

use std::collections::BTreeMap;

use ask::rows::{Client, Rows};
use explain::tail::{self, Paths, Request, Slowest};
use model::Coverage;
use model::cells::{quoted, text};

use super::figures::{self, Figures, Group, Service};
use super::{By, Tail, Wanted};

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

/// What requests are grouped by, as SQL; none: what they wait for is in their rows alone.
fn column(by: By) -> Option<&'static str> {
    match by {
        By::Host => Some("node"),
        By::Tenant => Some("tenant"),
        By::Route => Some(tail::ROUTE),
        By::Cause => None,
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
    let mut by_service: BTreeMap<String, Vec<Group>> = BTreeMap::new();
    if let Some(column) = column(by) {
        let groups = client.ask(format!(
            "SELECT service, {column} AS of, {} FROM request_rollups WHERE {rolled} GROUP BY service, of \
             ORDER BY sum(count) DESC, of",
            figures::COLUMNS
        ))?;
        coverage.also(groups.coverage);
        for row in &groups.rows {
            let group = Group { of: text(row, 1), figures: Figures::of(row), compared: None };
            by_service.entry(text(row, 0)).or_default().push(group);
        }
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
    let from_ns = tail::slow_from_ns(p99_ns);
    let conditions = of.conditions("ts_ns", Some(service));
    let mut rows = |sql: fn(&str, &str, i64) -> String| -> anyhow::Result<Vec<Request>> {
        let found = allowed(client, [tail::ROUTE], |[route]| sql(&conditions, route, from_ns))?;
        coverage.also(found.coverage);
        Ok(found.rows.iter().map(|row| tail::request(row)).collect())
    };
    let (mut slow, mut ordinary) = (rows(tail::slow_sql)?, rows(tail::ordinary_sql)?);
    if let Some(why) = tail::few_rows(slow.len(), ordinary.len()) {
        return Ok(Slowest::unknown(&why));
    }
    add_paths(client, &mut slow, coverage)?;
    add_paths(client, &mut ordinary, coverage)?;
    Ok(tail::slowest(from_ns, &slow, &ordinary, EXAMPLES))
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

/// Adds what the requests waited for.
fn add_paths(client: &Client<'_>, requests: &mut [Request], coverage: &mut Coverage) -> anyhow::Result<()> {
    let mut paths = Paths::default();
    for times in tail::path_times(requests) {
        let found = allowed(client, tail::NAMES, |names| tail::paths_sql(&times, names))?;
        coverage.also(found.coverage);
        found.rows.iter().for_each(|row| paths.add(row));
    }
    paths.give(requests);
    Ok(())
}
