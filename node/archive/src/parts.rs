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
use crate::row_group::File;

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
        let archived = hours.map(|hours| (hours.first_ns, hours.until_ns - 1));
        let live = self.live.as_ref().and_then(|live| live.facts().span());
        archived.chain(live).reduce(|(first, last), (from, to)| (first.min(from), last.max(to)))
    }

    /// The hours of a store that may have rows in `range`.
    fn hours_in(&self, store: &StoreName, range: &Range<i64>) -> Vec<Hour> {
        let Some(known) = self.archive.stores().get(store) else { return Vec::new() };
        let (first_ns, until_ns) = (range.start.max(known.first_ns), range.end.min(known.until_ns));
        let mut hours = Vec::new();
        let mut hour = Hour::of_ns(first_ns);
        while hour.range_ns().start < until_ns {
            hours.push(hour);
            hour = hour.next();
        }
        hours
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
            let mut hours = self.hours_in(store, range);
            hours.retain(|hour| live_from_ns.is_none_or(|from_ns| hour.range_ns().start < from_ns));
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
            let mut hours = self.hours_in(store, range);
            // The store makes its own notes on the span of which it has everything.
            let from_ns = tables.iter().map(|table| self.live_from_ns(store, table)).max().flatten();
            hours.retain(|hour| from_ns.is_none_or(|from_ns| hour.range_ns().start < from_ns));
            match self.archive.manifests(store, &hours) {
                Err(error) => missing.unreadable.push(error.to_string()),
                Ok(found) => {
                    for (hour, known) in hours.into_iter().zip(found) {
                        match known {
                            Ok(Some(manifest)) => missing.add(&manifest, range, &is_asked),
                            Ok(None) => missing.hours.push(hour),
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
    hours: Vec<Hour>,
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
        if let (Some(first), Some(last)) = (self.hours.first(), self.hours.last()) {
            let n = self.hours.len();
            notes.push(format!("{n} hours from {} to {} are not in the archive", first.text(), last.next().text()));
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
            let seconds: f64 = self.gaps.iter().map(|gap| (gap.end - gap.start) as f64 / 1e9).sum();
            let (since, until, n) = (store::show_time(last.start), store::show_time(last.end), self.gaps.len());
            notes.push(format!("no agent recorded for {seconds:.1} s in {n} stretches, the last {since} to {until}"));
        }
        notes
    }
}
