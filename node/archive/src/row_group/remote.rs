//! Owns a file of an archive as the Parquet reader reads it: parts that are in memory, and requests
//! for the others.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use crate::place::Place;

/// Bytes read at a time by a sequential reader.
const AHEAD: u64 = 1 << 20;

/// A file of a place, for the Parquet reader.
#[derive(Debug, Clone)]
pub(super) struct Remote {
    pub(super) place: Place,
    pub(super) name: Arc<str>,
    pub(super) bytes: u64,
    /// The complete file, if it is small.
    pub(super) complete: Arc<Mutex<Option<Bytes>>>,
    /// Parts that are being read, with where they begin.
    pub(super) parts: Arc<Mutex<Vec<(u64, Bytes)>>>,
}

impl Remote {
    /// Bytes of a part in memory that has all of this range.
    fn part(&self, range: &Range<u64>) -> Option<Bytes> {
        let parts = self.parts.lock();
        let has = |(start, bytes): &&(u64, Bytes)| *start <= range.start && start + bytes.len() as u64 >= range.end;
        let (start, bytes) = parts.iter().find(has)?;
        Some(bytes.slice((range.start - start) as usize..(range.end - start) as usize))
    }

    /// How far a part in memory goes on from here; none where there is none.
    fn in_memory_from(&self, at: u64) -> Option<u64> {
        let parts = self.parts.lock();
        let left =
            |(start, bytes): &(u64, Bytes)| (start + bytes.len() as u64).checked_sub(at).filter(|_| *start <= at);
        parts.iter().filter_map(left).max().filter(|left| *left > 0)
    }

    /// Reads a part; it is in memory until what is returned is dropped.
    pub(super) fn hold(&self, range: Range<u64>) -> parquet::errors::Result<(Bytes, Held<'_>)> {
        let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let bytes = self.get_bytes(range.start, length)?;
        self.parts.lock().push((range.start, bytes.clone()));
        Ok((bytes, Held { of: self, start: range.start }))
    }
}

/// A part that is in memory.
pub(super) struct Held<'r> {
    of: &'r Remote,
    start: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut parts = self.of.parts.lock();
        if let Some(at) = parts.iter().position(|(start, _)| *start == self.start) {
            parts.swap_remove(at);
        }
    }
}

impl Length for Remote {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for Remote {
    type T = Ahead;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Ahead> {
        Ok(Ahead { of: self.clone(), at: start, have: Bytes::new() })
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let end = start.checked_add(length as u64).filter(|end| *end <= self.bytes);
        let end = end.ok_or_else(|| ParquetError::EOF(format!("{} is too short", self.name)))?;
        if let Some(part) = self.part(&(start..end)) {
            return Ok(part);
        }
        let complete = self.complete.lock().clone();
        let read = match &complete {
            Some(complete) => complete.slice((start as usize).min(complete.len())..(end as usize).min(complete.len())),
            None => self
                .place
                .read_range(&self.name, start..end)
                .map_err(|error| ParquetError::External(Box::new(error)))?,
        };
        if read.len() != length {
            return Err(ParquetError::EOF(format!("{} is shorter than its manifest says", self.name)));
        }
        Ok(read)
    }
}

/// Reads on from a position in the file.
pub(super) struct Ahead {
    of: Remote,
    at: u64,
    have: Bytes,
}

impl Read for Ahead {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.have.is_empty() {
            let left = self.of.in_memory_from(self.at).unwrap_or(AHEAD);
            let length = left.min(self.of.bytes.saturating_sub(self.at));
            if length == 0 {
                return Ok(0);
            }
            self.have = self.of.get_bytes(self.at, length as usize).map_err(std::io::Error::other)?;
            self.at += length;
        }
        let n = into.len().min(self.have.len());
        self.have.copy_to_slice(&mut into[..n]);
        Ok(n)
    }
}
