//! Owns the findings that wait for a collector: some, of bounded bytes; the oldest go.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use opentelemetry_proto::tonic::logs::v1::LogRecord;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::Notify;

/// Findings that may wait (all hosts of a mesh may have one at once) and their bytes, and findings
/// of one request.
pub(super) const WAITING: usize = 8_192;
pub(super) const WAITING_BYTES: usize = 16 << 20;
pub(super) const AT_ONCE: usize = 256;
/// Bytes of the findings of one request: collectors refuse some megabytes.
pub(super) const BYTES_AT_ONCE: usize = 1 << 20;

/// Findings that wait.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    pub(super) dropped: AtomicU64,
    came: Notify,
}

/// Records with their bytes, oldest first.
#[derive(Default)]
struct Waiting {
    records: VecDeque<(usize, LogRecord)>,
    bytes: usize,
}

impl Waiting {
    fn take(&mut self) -> Option<LogRecord> {
        let (bytes, record) = self.records.pop_front()?;
        self.bytes -= bytes;
        Some(record)
    }
}

impl Queue {
    /// Adds findings; when the queue is full, the oldest are dropped.
    pub(super) fn put(&self, record: LogRecord) {
        let bytes = record.encoded_len();
        let mut waiting = self.waiting.lock();
        while waiting.records.len() >= WAITING || (waiting.bytes + bytes > WAITING_BYTES && !waiting.records.is_empty())
        {
            waiting.take();
            self.lost(1);
        }
        waiting.bytes += bytes;
        waiting.records.push_back((bytes, record));
        self.came.notify_one();
    }

    pub(super) fn lost(&self, records: usize) {
        if records > 0 && self.dropped.fetch_add(records as u64, Ordering::Relaxed) == 0 {
            tracing::warn!("findings begin to be dropped: the OpenTelemetry collector does not take them");
        }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.lock().records.len()
    }

    /// Their bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.waiting.lock().bytes
    }

    /// Some to be sent, once there are any.
    pub(super) async fn some(&self) -> Vec<LogRecord> {
        loop {
            {
                let mut waiting = self.waiting.lock();
                let (mut count, mut bytes) = (0, 0);
                for (of_record, _) in waiting.records.iter().take(AT_ONCE) {
                    bytes += of_record;
                    if count > 0 && bytes > BYTES_AT_ONCE {
                        break;
                    }
                    count += 1;
                }
                if count > 0 {
                    return (0..count).filter_map(|_| waiting.take()).collect();
                }
            }
            self.came.notified().await;
        }
    }
}
