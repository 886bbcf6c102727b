//! Owns where the rows of a node are: in files of hours, or in its store; and what is missing from
//! them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::holdings::Archive;
use crate::hour::Hour;
use crate::layout::{self, StoreName};
use crate::live::{LiveStore, covers};
use crate::manifest::Manifest;
use crate::place::PlaceError;
use crate::row_group::File;

/// From more hours on, the days that have any hours are listed first.
const DAYS_LISTED_FROM: i64 = 24;
const HOURS_OF_DAY: i64 = 24;

/// A node: its archived hours and its store.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) archive: Arc<Archive>,
    pub(crate) stores: Vec<StoreName>,
    pub(crate) live: Option<Arc<dyn LiveStore>>,
    /// When the question was asked, Unix nanoseconds.
    pub(crate) asked_ns: i64,
}

/// A file of an hour.
#[derive(Debug, Clone)]
pub(crate) struct HourFile {
    pub(crate) store: StoreName,
    pub(crate) hour: Hour,
    pub(crate) bytes: u64,
}

/// The places of the rows of a table in some time.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) files: Vec<HourFile>,
    /// The hours that are not taken from the live store.
    pub(crate) not_live: Vec<Range<i64>>,
}

impl Parts {
    /// Whether nothing in `range` is the live store's.
    pub(crate) fn are_archived(&self, range: &Range<i64>) -> bool {
        covers(&self.not_live, range)
    }
}

impl Node {
    /// The first and last time of archived hours and store.
    pub(crate) fn span_ns(&self) -> Option<(i64, i64)> {
        let hours = self.stores.iter().filter_map(|store| self.archive.stores().get(store));
        let archived = hours.map(|hours| (hours.first_ns, hours.until_ns.saturating_sub(1)));
        let live = self.live.as_ref().and_then(|live| live.facts().span());
        archived.chain(live).reduce(|(first, last), (from, to)| (first.min(from), last.max(to)))
    }

    /// The hours of a store that may have rows in `range`, of those that begin before `before_ns`.
    fn hours_in(&self, store: &StoreName, range: &Range<i64>, before_ns: Option<i64>) -> Result<Hours, PlaceError> {
        let mut hours = Hours::default();
        let Some(known) = self.archive.stores().get(store) else { return Ok(hours) };
        let until_ns = range.end.min(known.until_ns).min(before_ns.unwrap_or(i64::MAX));
        let first = Hour::of_ns(range.start.max(known.first_ns));
        let end = Hour::of_ns(until_ns.saturating_sub(1)).next();
        if first >= end || first.range_ns().start >= until_ns {
            return Ok(hours);
        }
        if end.number() - first.number() <= DAYS_LISTED_FROM {
            hours.some(first, end);
            return Ok(hours);
        }
        // A store may not have been used for months, and its file may claim years: nothing is done
        // for days without any hour.
        let days = self.archive.days()?;
        let mut next = first;
        for day in days.range(first.plus(1 - HOURS_OF_DAY)..end) {
            let (from, to) = ((*day).max(first), day.plus(HOURS_OF_DAY).min(end));
            hours.none(next, from);
            hours.some(from, to);
            next = to;
        }
        hours.none(next, end);
        Ok(hours)
    }

    /// The time from which the live store has all rows of a table, Unix nanoseconds, if it is the
    /// store that was archived.
    fn live_from_ns(&self, store: &StoreName, table: &str) -> Option<i64> {
        let live = self.live.as_ref().filter(|live| live.birth_ns() == Some(store.birth_ns))?;
        Some(match live.dropped_until_ns(table) {
            None => i64::MIN,
            Some(until_ns) => Hour::of_ns(until_ns).range_ns().end,
        })
    }

    /// The places of the rows of a table with times in `range`.
    pub(crate) fn parts(&self, table: &str, range: &Range<i64>) -> Result<Parts, String> {
        let mut parts = Parts::default();
        for store in &self.stores {
            let live_from_ns = self.live_from_ns(store, table);
            let hours = self.hours_in(store, range, live_from_ns).map_err(|error| error.to_string())?.listed;
            let found = self.archive.manifests(store, &hours).map_err(|error| error.to_string())?;
            for (hour, manifest) in hours.into_iter().zip(found) {
                let Some(manifest) = manifest.map_err(|why| why.to_string())? else { continue };
                if live_from_ns.is_some() {
                    parts.not_live.push(hour.range_ns());
                }
                let Some(rows) = manifest.table(table).filter(|table| table.rows > 0) else { continue };
                let meets = rows.last_ns.is_none_or(|last_ns| last_ns >= range.start)
                    && rows.first_ns.is_none_or(|first_ns| first_ns < range.end);
                if meets {
                    parts.files.push(HourFile { store: store.clone(), hour, bytes: rows.bytes });
                }
            }
        }
        parts.files.sort_by(|a, b| (a.hour, &a.store).cmp(&(b.hour, &b.store)));
        join(&mut parts.not_live);
        Ok(parts)
    }

    /// Opens an hour's file of a table; none where the hour has no rows any more.
    pub(crate) fn open(&self, table: &str, of: &HourFile) -> Result<Option<File>, String> {
        let name = layout::rows(table, of.hour, &of.store);
        let place = self.archive.place();
        let first = match File::open(place, name.clone(), of.bytes) {
            Ok(file) => return Ok(Some(file)),
            Err(error) => error,
        };
        // The hour may have been written again meanwhile, with more rows.
        let now = self.archive.manifest_now(&of.store, of.hour).map_err(|error| error.to_string())?;
        let now = now.map_err(|why| why.to_string())?;
        match now
            .and_then(|manifest| Some(manifest.table(table)?.bytes))
            .filter(|bytes| *bytes != of.bytes && *bytes > 0)
        {
            Some(bytes) => File::open(place, name.clone(), bytes).map(Some).map_err(|error| format!("{name}: {error}")),
            None => Err(format!("{name}: {first}")),
        }
    }

    /// Notes on what is missing from `tables` (all when empty) in `range`.
    pub(crate) fn notes(&self, tables: &[&str], range: &Range<i64>) -> Vec<String> {
        let is_asked = |table: &str| tables.is_empty() || tables.iter().any(|asked| asked.eq_ignore_ascii_case(table));
        let mut missing = Missing::default();
        for store in &self.stores {
            // The store makes its own notes on the span of which it has everything.
            let from_ns = tables.iter().map(|table| self.live_from_ns(store, table)).max().flatten();
            let found = self.hours_in(store, range, from_ns).and_then(|hours| {
                let found = self.archive.manifests(store, &hours.listed)?;
                Ok((hours, found))
            });
            match found {
                Err(error) => missing.unreadable.push(error.to_string()),
                Ok((hours, found)) => {
                    missing.hours.merge(hours.unlisted);
                    for (hour, known) in hours.listed.into_iter().zip(found) {
                        match known {
                            Ok(Some(manifest)) => missing.add(&manifest, range, &is_asked),
                            Ok(None) => missing.hours.add(hour, hour.next()),
                            Err(why) => missing.unreadable.push(why.to_string()),
                        }
                    }
                }
            }
        }
        let mut notes = missing.notes();
        for table in ["sessions", "retention"] {
            if self.live.is_none() && tables.iter().any(|asked| asked.eq_ignore_ascii_case(table)) {
                notes.push(format!("{table}: not archived as rows; manifests have gaps and what retention took"));
            }
        }
        if let Some(live) = &self.live {
            let live_notes = live.notes(tables, range);
            // The archive has the rows that retention dropped from the store; if not, its manifests
            // have a note on it.
            let is_archived =
                live.birth_ns().is_some_and(|birth_ns| self.stores.iter().any(|s| s.birth_ns == birth_ns));
            notes.extend(live_notes.into_iter().filter(|note| !(is_archived && note.ends_with(store::DROPPED))));
        }
        notes
    }
}

/// Hours that may have rows.
#[derive(Debug, Default)]
struct Hours {
    /// Those of days that the archive has.
    listed: Vec<Hour>,
    unlisted: Unlisted,
}

impl Hours {
    fn some(&mut self, mut from: Hour, end: Hour) {
        while from < end {
            self.listed.push(from);
            from = from.next();
        }
    }

    fn none(&mut self, from: Hour, end: Hour) {
        if from < end {
            self.unlisted.add(from, end);
        }
    }
}

/// Hours that the archive does not have: how many, and from the first to the end of the last.
#[derive(Debug, Default)]
struct Unlisted {
    count: i64,
    span: Option<(Hour, Hour)>,
}

impl Unlisted {
    fn add(&mut self, from: Hour, end: Hour) {
        self.merge(Self { count: end.number() - from.number(), span: Some((from, end)) });
    }

    fn merge(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        let both = [self.span, other.span].into_iter().flatten();
        self.span = both.reduce(|(from, to), (first, last)| (from.min(first), to.max(last)));
    }
}

/// Makes neighbouring and overlapping ranges one.
fn join(ranges: &mut Vec<Range<i64>>) {
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|later, earlier| {
        let meets = later.start <= earlier.end;
        if meets {
            earlier.end = earlier.end.max(later.end);
        }
        meets
    });
}

/// What is missing from some hours.
#[derive(Debug, Default)]
struct Missing {
    losses: BTreeMap<(String, String), (u64, i64, i64)>,
    gaps: Vec<Range<i64>>,
    dropped: BTreeMap<String, (i64, u64)>,
    /// Hours without a manifest.
    hours: Unlisted,
    unreadable: Vec<String>,
}

impl Missing {
    fn add(&mut self, manifest: &Manifest, range: &Range<i64>, is_asked: &dyn Fn(&str) -> bool) {
        for loss in &manifest.losses {
            let of = record::tables_of_probe(&loss.probe).unwrap_or_default();
            if is_asked(&loss.probe) || of.is_empty() || of.iter().any(|table| is_asked(table)) {
                let key = (loss.probe.clone(), loss.reason.clone());
                let sum = self.losses.entry(key).or_insert((0, loss.since_ns, loss.until_ns));
                *sum = (sum.0.saturating_add(loss.lost), sum.1.min(loss.since_ns), sum.2.max(loss.until_ns));
            }
        }
        let within = |since_ns: i64, until_ns: i64| since_ns.max(range.start)..until_ns.min(range.end);
        let gaps = manifest.gaps.iter().map(|gap| within(gap.since_ns, gap.until_ns));
        self.gaps.extend(gaps.filter(|gap| !gap.is_empty()));
        for dropped in manifest.dropped.iter().filter(|dropped| is_asked(&dropped.table)) {
            let (until_ns, rows) = self.dropped.entry(dropped.table.clone()).or_insert((dropped.until_ns, 0));
            *until_ns = (*until_ns).max(dropped.until_ns);
            *rows = rows.saturating_add(dropped.rows);
        }
    }

    fn notes(mut self) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        if let Some((first, end)) = self.hours.span {
            let n = self.hours.count;
            notes.push(format!("{n} hours from {} to {} are not in the archive", first.text(), end.text()));
        }
        if let Some(first) = self.unreadable.first() {
            let more = self.unreadable.len() - 1;
            let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
            notes.push(format!("an archived hour cannot be read: {first}{more}"));
        }
        for (table, (until_ns, rows)) in self.dropped {
            let until = store::show_time(until_ns);
            let rows = if rows > 0 { format!("{rows} rows") } else { "rows".to_owned() };
            notes.push(format!("{table}: {rows} up to {until} were dropped by retention before they were archived"));
        }
        for ((probe, reason), (lost, since_ns, until_ns)) in self.losses {
            let (since, until) = (store::show_time(since_ns), store::show_time(until_ns));
            notes.push(format!("{probe}: {lost} records lost ({reason}) between {since} and {until}"));
        }
        join(&mut self.gaps);
        if let Some(last) = self.gaps.last() {
            let seconds: f64 = self.gaps.iter().map(|gap| gap.end.saturating_sub(gap.start) as f64 / 1e9).sum();
            let (since, until, n) = (store::show_time(last.start), store::show_time(last.end), self.gaps.len());
            notes.push(format!("no agent recorded for {seconds:.1} s in {n} stretches, the last {since} to {until}"));
        }
        notes
    }
}

#[cfg(test)]
mod tests;
