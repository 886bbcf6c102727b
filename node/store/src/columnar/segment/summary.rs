//! Owns the summary of a large segment: per library, function, process, rank and communicator the
//! count, sum, least and greatest duration and the quantile sketch. It is the coarse form of
//! rollups: made from the segment's own rows when it is written, kept and dropped with it, so that
//! it never says anything else than they do.
//!
//! Stored as the segment's last row of `segment_columns`: a checksum, a version byte, then bincode
//! of [`Stored`]. The sketch's buckets are varints: count of zeros, number of buckets, then
//! distance and count of each.

use query_planner::states::{Buckets, Quantiles};
use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};

use super::super::encode::{Column, Scalar};
use super::{Segment, SegmentError, checksum, column_id};
use crate::FastMap;

/// The place of the summary among a segment's columns.
pub(in super::super) const PLACE: usize = 255;
/// Rows from which on a segment has a summary: more than are joined before a whole segment is full.
const LEAST_ROWS: usize = 16_385;
/// More groups than one in this many rows are no summary.
const ROWS_A_GROUP: usize = 16;
/// Places for keys that came of late.
const RECENT: usize = 256;
const VERSION: u8 = 1;
const MOST_BYTES: usize = 64 << 20;

/// What is grouped by and what is summed up, by table.
const SUMMED: &[(&str, &[&str], &str)] =
    &[("collectives", &["library", "func", "pid", "rank", "comm_hash"], "duration_ns")];

/// The columns that summaries of a table group by, and the one that they sum up.
pub(in super::super) fn summed(table: &str) -> Option<(&'static [&'static str], &'static str)> {
    SUMMED.iter().find(|(name, ..)| *name == table).map(|(_, keys, value)| (*keys, *value))
}

#[derive(Serialize, Deserialize)]
struct Stored {
    keys: Vec<StoredKey>,
    counts: Vec<u64>,
    sums: Vec<i128>,
    least: Vec<i64>,
    greatest: Vec<i64>,
    buckets: Vec<u8>,
}

/// A grouping column: integers, or codes of texts.
#[derive(Serialize, Deserialize)]
struct StoredKey {
    is_text: bool,
    texts: Vec<Vec<u8>>,
    values: Vec<Option<i64>>,
}

/// A group of a summary.
#[derive(Debug, Clone)]
pub(in super::super) struct Group {
    /// In the order of [`summed`].
    pub(in super::super) key: Vec<Scalar>,
    pub(in super::super) count: u64,
    pub(in super::super) sum: i128,
    pub(in super::super) least: i64,
    pub(in super::super) greatest: i64,
    /// The sketch: zeros, and counts by bucket. Empty when it was not asked for.
    pub(in super::super) buckets: (u64, Vec<(usize, u64)>),
}

/// Write the summary of a new segment, where one is worth it.
pub(in super::super) fn write(
    conn: &Connection,
    table: &str,
    segment: i64,
    columns: &[(String, Column)],
) -> Result<(), SegmentError> {
    let Some(stored) = of_columns(table, columns) else { return Ok(()) };
    let config = bincode::config::standard().with_limit::<MOST_BYTES>();
    let Ok(body) = bincode::serde::encode_to_vec(&stored, config) else { return Ok(()) };
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&body);
    let mut data = checksum(&bytes).to_le_bytes().to_vec();
    data.extend_from_slice(&bytes);
    conn.prepare_cached("INSERT INTO segment_columns (id, data) VALUES (?1, ?2)")?
        .execute(params![column_id(segment, PLACE), data])?;
    Ok(())
}

fn of_columns(table: &str, columns: &[(String, Column)]) -> Option<Stored> {
    let (keys, value) = summed(table)?;
    let find = |name: &str| columns.iter().find(|(column, _)| column == name).map(|(_, column)| column);
    let keys: Vec<&Column> = keys.iter().map(|name| find(name)).collect::<Option<_>>()?;
    let values = find(value)?;
    let rows = values.len();
    if rows < LEAST_ROWS {
        return None;
    }
    let buckets = Buckets::table();
    let mut index: FastMap<Vec<Option<i64>>, usize> = FastMap::default();
    let mut groups: Vec<(Vec<Option<i64>>, Group, Quantiles)> = Vec::new();
    // The group of the key that was last at a place: most rows need no look at the map.
    let mut recent = [usize::MAX; RECENT];
    let mut key = Vec::with_capacity(keys.len());
    for row in 0..rows {
        // A duration that is not known, or no duration at all: the rows themselves are to be asked.
        let value = values.raw(row).filter(|value| *value >= 0)?;
        key.clear();
        key.extend(keys.iter().map(|column| column.raw(row)));
        let numbers = key.iter().map(|value| value.unwrap_or_default().cast_unsigned());
        let place = &mut recent[crate::cheap_hash(numbers) % RECENT];
        if groups.get(*place).is_none_or(|(known, ..)| *known != key) {
            *place = match index.get(&key) {
                Some(at) => *at,
                None => {
                    if groups.len() >= rows / ROWS_A_GROUP {
                        return None;
                    }
                    index.insert(key.clone(), groups.len());
                    let (least, greatest) = (i64::MAX, i64::MIN);
                    let group = Group { key: Vec::new(), count: 0, sum: 0, least, greatest, buckets: (0, Vec::new()) };
                    groups.push((key.clone(), group, Quantiles::default()));
                    groups.len() - 1
                }
            };
        }
        let at = *place;
        let (_, group, quantiles) = &mut groups[at];
        group.count += 1;
        group.sum += i128::from(value);
        group.least = group.least.min(value);
        group.greatest = group.greatest.max(value);
        quantiles.add(buckets, value);
    }
    let mut stored = Stored {
        keys: keys
            .iter()
            .enumerate()
            .map(|(at, column)| StoredKey {
                is_text: column.texts().is_some(),
                texts: column.texts().map(<[_]>::to_vec).unwrap_or_default(),
                values: groups.iter().map(|(key, ..)| key[at]).collect(),
            })
            .collect(),
        counts: groups.iter().map(|(_, group, _)| group.count).collect(),
        sums: groups.iter().map(|(_, group, _)| group.sum).collect(),
        least: groups.iter().map(|(_, group, _)| group.least).collect(),
        greatest: groups.iter().map(|(_, group, _)| group.greatest).collect(),
        buckets: Vec::new(),
    };
    for (_, _, quantiles) in &groups {
        let counts: Vec<(usize, u64)> = quantiles.counts().collect();
        put(&mut stored.buckets, quantiles.zeros());
        put(&mut stored.buckets, counts.len() as u64);
        let mut before = 0;
        for (bucket, count) in counts {
            put(&mut stored.buckets, (bucket - before) as u64);
            put(&mut stored.buckets, count);
            before = bucket;
        }
    }
    Some(stored)
}

/// Read a segment's summary, if it has one.
pub(in super::super) fn read(
    conn: &Connection,
    segment: &Segment,
    with_quantiles: bool,
) -> Result<Option<Vec<Group>>, SegmentError> {
    if !segment.is_in_file() {
        return Ok(None);
    }
    let bytes: Option<Vec<u8>> = conn
        .prepare_cached("SELECT data FROM segment_columns WHERE id = ?1")?
        .query_row([column_id(segment.id, PLACE)], |row| Ok(row.get_ref(0)?.as_blob()?.to_vec()))
        .optional()?;
    let Some(bytes) = bytes else { return Ok(None) };
    let damaged = || segment.damaged("its summary");
    let (check, bytes) = bytes.split_first_chunk::<4>().ok_or_else(damaged)?;
    if checksum(bytes) != u32::from_le_bytes(*check) {
        return Err(damaged());
    }
    let body = match bytes.split_first() {
        Some((&VERSION, body)) => body,
        // Of another version: the rows say the same.
        _ => return Ok(None),
    };
    let config = bincode::config::standard().with_limit::<MOST_BYTES>();
    let (stored, _): (Stored, usize) = bincode::serde::decode_from_slice(body, config).map_err(|_| damaged())?;
    groups(stored, with_quantiles).map(Some).ok_or_else(damaged)
}

fn groups(stored: Stored, with_quantiles: bool) -> Option<Vec<Group>> {
    let mut buckets = stored.buckets.as_slice();
    let mut groups = Vec::with_capacity(stored.counts.len());
    for (at, &count) in stored.counts.iter().enumerate() {
        let mut key = Vec::with_capacity(stored.keys.len());
        for column in &stored.keys {
            key.push(match *column.values.get(at)? {
                None => Scalar::Null,
                Some(code) if column.is_text => Scalar::Text(column.texts.get(usize::try_from(code).ok()?)?.clone()),
                Some(value) => Scalar::Integer(value),
            });
        }
        let (least, greatest) = (*stored.least.get(at)?, *stored.greatest.get(at)?);
        let (mut zeros, mut counts) = (0, Vec::new());
        if with_quantiles {
            zeros = take(&mut buckets)?;
            let mut bucket = 0_usize;
            for _ in 0..take(&mut buckets)? {
                bucket = bucket.checked_add(usize::try_from(take(&mut buckets)?).ok()?).filter(|at| *at < 1 << 16)?;
                counts.push((bucket, take(&mut buckets)?));
            }
        }
        groups.push(Group { key, count, sum: *stored.sums.get(at)?, least, greatest, buckets: (zeros, counts) });
    }
    Some(groups)
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
