//! Owns a file on its way to an archive: written piece by piece, there when it is complete.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::{MultipartUpload, ObjectStoreExt as _};

use super::{Place, PlaceError};

/// Bytes of a part of an upload; S3 takes none smaller but the last.
pub(super) const PART_BYTES: usize = 8 << 20;

/// A file that is being uploaded. Dropped before it is finished, nothing of it appears.
pub struct Upload {
    place: Place,
    name: String,
    /// Started with the first part: a small file is one request.
    parts: Option<Box<dyn MultipartUpload>>,
    waiting: Vec<u8>,
    bytes: u64,
    rate_bytes: u64,
    began: Instant,
}

impl Upload {
    pub(super) fn begin(place: Place, name: String, rate_bytes: u64) -> Self {
        Self { place, name, parts: None, waiting: Vec::new(), bytes: 0, rate_bytes, began: Instant::now() }
    }

    fn send(&mut self) -> Result<(), PlaceError> {
        if self.parts.is_none() {
            let (key, store) = (self.place.key(&self.name)?, Arc::clone(&self.place.store));
            self.parts = Some(self.place.wait(async move { store.put_multipart(&key).await })?);
        }
        let Some(parts) = &mut self.parts else { return Ok(()) };
        let sent = parts.put_part(Bytes::from(std::mem::take(&mut self.waiting)).into());
        self.place.wait(sent)?;
        let due = Duration::from_secs_f64(self.bytes as f64 / self.rate_bytes as f64);
        std::thread::sleep(due.saturating_sub(self.began.elapsed()));
        Ok(())
    }

    /// Completes the file: now it appears. Returns its bytes.
    ///
    /// # Errors
    /// The request failed; then the file does not appear.
    pub fn finish(mut self) -> Result<u64, PlaceError> {
        if self.parts.is_none() {
            self.place.write(&self.name, std::mem::take(&mut self.waiting))?;
            return Ok(self.bytes);
        }
        if !self.waiting.is_empty() {
            self.send()?;
        }
        let Some(mut parts) = self.parts.take() else { return Ok(self.bytes) };
        let done = self.place.wait(async move {
            match parts.complete().await {
                Ok(_) => Ok(()),
                Err(error) => {
                    let _ = parts.abort().await;
                    Err(error)
                }
            }
        });
        done.map(|()| self.bytes)
    }
}

impl Write for Upload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.waiting.extend_from_slice(bytes);
        self.bytes += bytes.len() as u64;
        if self.waiting.len() >= PART_BYTES {
            self.send().map_err(io::Error::other)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(mut parts) = self.parts.take() {
            let _ = self.place.wait(async move { parts.abort().await });
        }
    }
}
